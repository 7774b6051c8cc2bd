"""The open door of the TCP van: accepts connections, but never more than the process can hold.

`loop.create_server` is not used: when the descriptors run out, asyncio floods the log and leaves
peers hanging, and uvloop closes them in silence. Here the surplus is closed at once, below the
system's limit, and one line says so.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Final

from aiops.observability import RateLimited, get_logger
from aiops.van.base import Address, Listener

__all__ = ["TcpListener"]

ACCEPTS_PER_TURN: Final = 64
"""Connections taken in one turn of the loop: a burst of joins must not stop everything else."""

PAUSE_S: Final = 0.1
"""Rest after the system refused to accept (no descriptors, no memory); peers wait in the queue."""

_PEER_WENT: Final = {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTUNREACH}
"""Errors of one connection, not of the door."""

_log = get_logger()


class TcpListener(Listener):
    """A listening socket on an event loop.

    Parameters
    ----------
    sock
        Bound and listening; the listener owns it.
    has_room
        Tells whether one more connection may be taken.
    adopt
        Turns an accepted socket into a stream, in a coroutine that owns the socket.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        has_room: Callable[[], bool],
        adopt: Callable[[socket.socket], asyncio.Task[None]],
    ) -> None:
        host, port = sock.getsockname()[:2]
        self.address = Address(host, port)
        self._loop = loop
        self._sock = sock
        self._has_room = has_room
        self._adopt = adopt
        self._starting: dict[asyncio.Task[None], None] = {}  # a set has no order to repeat
        self._resting: asyncio.TimerHandle | None = None
        self._refusals = RateLimited(burst=1)
        self._rests = RateLimited(burst=1)
        self._watch()

    async def close(self) -> None:
        """Accept nobody any more and free the port; open streams are not touched."""
        if self._sock.fileno() < 0:
            return
        if self._resting is not None:
            self._resting.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        for task in list(self._starting):  # each ends on the next turn
            await asyncio.wait([task])

    def _watch(self) -> None:
        self._resting = None
        self._loop.add_reader(self._sock.fileno(), self._knocked)

    def _knocked(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _peer = self._sock.accept()
                if self._has_room():
                    task = self._adopt(sock)
                    self._starting[task] = None
                    task.add_done_callback(self._starting.pop)
                else:
                    sock.close()
                    self._complain(
                        self._refusals, "connection_refused", "too many connections are open"
                    )
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _PEER_WENT:
                    self._rest(error)
                    return

    def _rest(self, error: OSError) -> None:
        """Stop accepting for a moment; a door that cannot open would keep the loop spinning."""
        self._loop.remove_reader(self._sock.fileno())
        self._resting = self._loop.call_later(PAUSE_S, self._watch)
        self._complain(self._rests, "accepting_paused", os.strerror(error.errno or 0))

    def _complain(self, limit: RateLimited, event: str, reason: str) -> None:
        if limit.allows(self._loop.time()):
            _log.warning(
                event,
                address=str(self.address),
                reason=reason,
                not_shown=limit.take_suppressed(),
            )
