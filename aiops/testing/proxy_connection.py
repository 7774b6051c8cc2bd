"""One connection through a fault proxy: how it begins, and the four ways in which it ends."""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final

from aiops.testing.faults import Counters, Cut, Line
from aiops.testing.proxy_pipe import ConnectionBroken, Pipe, until_ready

__all__ = ["ProxiedConnection", "reset"]

LINGER_S: Final = 5.0
"""How long the two ends may take to close after an orderly cut."""


class Ending(enum.Enum):
    """How a connection ends."""

    DONE = enum.auto()  # both directions came to their end
    BROKEN = enum.auto()  # one end has reset it, so the other end sees a reset
    CUT = enum.auto()  # by a fault, with resets
    CUT_ORDERLY = enum.auto()  # by a fault, with an end of stream both ways


class ProxiedConnection:
    """A client's connection and the one to the target, with what flows between them.

    Attributes
    ----------
    up, down
        Its directions: from client to target, and back.
    """

    def __init__(
        self,
        client: socket.socket,
        target: socket.socket,
        lines: tuple[Line, Line],
        gates: tuple[asyncio.Event, asyncio.Event],
        buffer_bytes: int,
        counters: Counters,
    ) -> None:
        self._client = client
        self._target = target
        self._counters = counters
        self.up = Pipe(client, target, lines[0], gates[0], buffer_bytes, counters, upward=True)
        self.down = Pipe(target, client, lines[1], gates[1], buffer_bytes, counters, upward=False)
        self._ending: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._pumping = 4

    def cut(self, *, reset: bool) -> None:
        """Cut this connection; it happens in the next turn of the loop."""
        self._end(Ending.CUT if reset else Ending.CUT_ORDERLY)

    def forget(self) -> None:
        """Let nothing pass any more, silently."""
        self.up.forget()
        self.down.forget()

    def _end(self, ending: Ending) -> None:
        if not self._ending.done():
            self._ending.set_result(ending)

    async def run(self) -> None:
        """Forward until the connection has ended; cancelling resets both ends."""
        loop = asyncio.get_running_loop()
        pumps = [
            loop.create_task(self._pump(pump))
            for pipe in (self.up, self.down)
            for pump in (pipe.read(), pipe.write())
        ]
        ending = Ending.BROKEN
        try:
            ending = await self._ending
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            if ending in (Ending.BROKEN, Ending.CUT):
                self._reset(counted=ending is Ending.CUT)
        if ending is Ending.CUT_ORDERLY:
            await self._close_orderly()
        self._client.close()
        self._target.close()

    async def _pump(self, pump: Coroutine[None, None, Cut | None]) -> None:
        try:
            cut = await pump
        except ConnectionBroken:
            self._end(Ending.BROKEN)
            return
        if cut is not None:
            self.cut(reset=cut.reset)
        self._pumping -= 1
        if not self._pumping:
            self._end(Ending.DONE)

    def _reset(self, *, counted: bool) -> None:
        if counted:
            self._counters.cuts += 1
            self.up.count_lost()
            self.down.count_lost()
        reset(self._client)
        reset(self._target)

    async def _close_orderly(self) -> None:
        """End both directions, and take what still comes: a close with unread bytes is a reset."""
        self._counters.cuts += 1
        self.up.close()
        self.down.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await asyncio.gather(
                    _swallow(self.up, self._client), _swallow(self.down, self._target)
                )
        except TimeoutError:
            pass


def reset(sock: socket.socket) -> None:
    """Close a socket so that the other end sees a reset; what is unsent is dropped."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def _swallow(pipe: Pipe, source: socket.socket) -> None:
    while not pipe.swallow():
        await until_ready(source)
