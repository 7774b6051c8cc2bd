"""The memory van: streams inside one process, without sockets, threads or chance.

It keeps the contract of `base` on any asyncio loop, one with virtual time included: everything
happens by `call_soon`, in an order that depends on nothing but the calls made. A stream has a pipe
of limited capacity, as a socket has; what does not fit is pending at the writer.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final

from aiops.errors import ConfigError, DialFailed
from aiops.observability import get_logger
from aiops.van.base import (
    CLOSE_TIMEOUT_S,
    WRITE_LOW_WATER_BYTES,
    Accept,
    Address,
    Listener,
    Stream,
    StreamHandler,
)
from aiops.van.outgoing import Outgoing
from aiops_protocol.payload import Buffer

__all__ = ["MemoryStream", "MemoryVan"]

PIPE_BYTES: Final = 256 * 1024
"""What lies between two ends, unread: about what the buffers of a socket hold."""

FIRST_FREE_PORT: Final = 49152
"""Where port 0 starts counting; the range that real systems use for it."""

_log = get_logger()


class MemoryStream(Stream):
    """One end of a pair; made by `MemoryVan.dial`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, local: str, remote: str) -> None:
        self.local = local
        self.remote = remote
        self._loop = loop
        self._peer = self
        self._handler: StreamHandler | None = None
        self._outgoing = Outgoing()
        self._pipe = bytearray()  # on the way to this end
        self._held = False
        self._delivering = False  # `_deliver` will be called
        self._peer_finished = False  # nothing follows what is in the pipe
        self._closing = False
        self._ending = False  # `_end` will be called, or was
        self._was_full = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes accepted by `write` that the pipe has no room for yet."""
        return self._outgoing.size

    def write(self, *buffers: Buffer, borrowed: bool = False) -> None:
        """Send the buffers, in order, after everything written before."""
        if self._closing or self._ending:
            return
        waiting = self._outgoing.size > 0
        for buffer in buffers:
            self._outgoing.append(buffer, borrowed=borrowed or not waiting)
        if not waiting:
            self._move()
            if not borrowed:
                self._outgoing.own()
        if self.full:
            self._was_full = True

    def flush(self) -> None:
        """Do nothing: what the pipe has room for is in it at once."""

    def own(self) -> None:
        """Copy all borrowed bytes that are still unsent."""
        self._outgoing.own()

    def close(self) -> None:
        """Send what is pending, then end the stream."""
        if self._closing or self._ending:
            return
        self._closing = True
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._close_expired)
        self._pipe.clear()
        self._loop.call_soon(self._peer._refill)
        self._finish_if_sent()

    def abort(self) -> None:
        """End the stream at once and drop what is pending."""
        self._reset(None)

    def hold(self) -> None:
        """Deliver no bytes to this end until `release`, as if it never read."""
        self._held = True

    def release(self) -> None:
        """Deliver again."""
        self._held = False
        self._deliver_soon()

    # --- for the van ---

    @classmethod
    def pair(
        cls, loop: asyncio.AbstractEventLoop, near: str, far: str
    ) -> tuple[MemoryStream, MemoryStream]:
        """Return the two ends of a new connection, neither with a handler yet."""
        one, other = cls(loop, near, far), cls(loop, far, near)
        one._peer, other._peer = other, one
        return one, other

    def begin(self, accept: Accept) -> None:
        """Give this end its handler; an error of `accept` ends the stream and is raised."""
        if self._ending:
            return
        try:
            self._handler = accept(self)
        except BaseException:
            self.abort()
            raise
        self._deliver_soon()

    # --- moving ---

    def _move(self) -> None:
        """Put into the pipe what it has room for; never calls a handler."""
        peer, outgoing = self._peer, self._outgoing
        if peer._closing or peer._ending:  # it reads and forgets
            outgoing.clear()
            return
        while outgoing.size and (room := PIPE_BYTES - len(peer._pipe)):
            piece = memoryview(outgoing.chunks(1)[0])[:room]
            peer._pipe += piece
            outgoing.advance(len(piece))
        peer._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivering:
            self._delivering = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hand to the handler what is in the pipe now; what comes meanwhile waits for a turn."""
        self._delivering = False
        if self._handler is None:
            return
        arrived = budget = len(self._pipe)
        while budget and self._is_reading():
            try:
                buffer = self._handler.get_buffer()
                if not buffer:
                    raise ValueError("the handler of a stream returned an empty buffer")
                count = min(len(buffer), budget)
                buffer[:count] = self._pipe[:count]
                del self._pipe[:count]
                self._handler.received(count)
            except Exception as error:
                self._reset(error)
                return
            budget -= count
        if arrived and self._is_reading():  # room for more; two idle ends must come to rest
            self._loop.call_soon(self._peer._refill)
        if self._peer_finished and not self._pipe and not self._held:
            self._end_soon(None)

    def _is_reading(self) -> bool:
        return not (self._held or self._closing or self._ending)

    def _refill(self) -> None:
        """Go on sending: the other end has made room."""
        if self._ending:
            return
        self._move()
        if self._was_full and self._outgoing.size <= WRITE_LOW_WATER_BYTES:
            self._was_full = False
            if self._handler is not None and not self._closing:
                try:
                    self._handler.drained()
                except Exception as error:
                    self._reset(error)
        self._finish_if_sent()

    # --- ending ---

    def _finish_if_sent(self) -> None:
        if self._closing and not self._outgoing.size:
            self._peer._peer_finished = True
            self._peer._deliver_soon()

    def _close_expired(self) -> None:
        if self._outgoing.size:
            self._reset(
                TimeoutError(
                    f"{self._outgoing.size} bytes to {self.remote} were not taken within "
                    f"{CLOSE_TIMEOUT_S:g} s"
                )
            )
        else:
            self._end_soon(None)

    def _reset(self, error: Exception | None) -> None:
        """End both ends at once, this one with `error`."""
        if self._ending:
            return
        peer = self._peer
        sent_all = peer._closing and not peer._outgoing.size
        peer._end_soon(None if sent_all else ConnectionResetError(f"reset by {self.local}"))
        self._end_soon(error)

    def _end_soon(self, error: Exception | None) -> None:
        if not self._ending:
            self._ending = True
            self.unsent_bytes += self._outgoing.size
            self._outgoing.clear()
            self._pipe.clear()
            if self._timer is not None:
                self._timer.cancel()
            self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        if self._peer._closing:  # it waited for us to see its end
            self._peer._end_soon(None)
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.lost(error)


class MemoryListener(Listener):
    """An open door in a `MemoryVan`."""

    def __init__(self, van: MemoryVan, address: Address, accept: Accept) -> None:
        self.address = address
        self._van = van
        self._accept = accept

    async def close(self) -> None:
        """Accept nobody any more and free the port; open streams are not touched."""
        self._van.forget(self)

    def knock(self, stream: MemoryStream) -> None:
        """Take the far end of a new connection."""
        if not self._van.knows(self):
            stream.abort()
            return
        try:
            stream.begin(self._accept)
        except Exception as error:  # the owner's fault; the door stays open
            _log.warning("connection_not_taken", peer=stream.remote, exc_info=error)


class MemoryVan:
    """Makes streams between those who share this object; any host name will do."""

    def __init__(self) -> None:
        self._listeners: dict[Address, MemoryListener] = {}
        self._free_ports = count(FIRST_FREE_PORT)

    async def listen(self, address: Address, accept: Accept) -> Listener:
        """Open a door at `address`; port 0 takes a free port.

        Raises
        ------
        ConfigError
            The address is taken.
        """
        if not address.port:
            address = self._free(address.host)
        if address in self._listeners:
            raise ConfigError(
                f"cannot listen on {address}: the address is in use (EADDRINUSE); "
                f"use port 0 for a free one"
            )
        listener = MemoryListener(self, address, accept)
        self._listeners[address] = listener
        return listener

    async def dial(self, address: Address, accept: Accept) -> Stream:
        """Open a stream to `address`, once. Cancelling leaves nothing behind.

        Raises
        ------
        DialFailed
            Nobody listens there.
        """
        listener = self._listeners.get(address)
        if listener is None:
            raise DialFailed(
                f"cannot connect to {address}: nobody listens there (ECONNREFUSED)",
                peer=str(address),
                retryable=True,
                refused=True,
            )
        loop = asyncio.get_running_loop()
        local = Address("memory", next(self._free_ports))
        near, far = MemoryStream.pair(loop, str(local), str(address))
        near.begin(accept)
        loop.call_soon(listener.knock, far)
        try:
            await asyncio.sleep(0)
        except BaseException:
            near.abort()
            raise
        return near

    def _free(self, host: str) -> Address:
        ports = (Address(host, port) for port in self._free_ports)
        return next(address for address in ports if address not in self._listeners)

    def knows(self, listener: MemoryListener) -> bool:
        """Tell whether this listener is open."""
        return self._listeners.get(listener.address) is listener

    def forget(self, listener: MemoryListener) -> None:
        """Close this listener."""
        if self.knows(listener):
            del self._listeners[listener.address]
