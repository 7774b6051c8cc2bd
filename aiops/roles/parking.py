"""Where requests wait by rule of consistency: bounded, in order, and told why once a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias, TypeVar

import msgspec

from aiops_protocol.frames import Request
from aiops_protocol.limits import WINDOW_BYTES

__all__ = ["NOTICE_S", "Parking", "Session", "Waiting", "owned"]

NOTICE_S: Final = 1.0
"""How often a waiting request is told for whom it waits: well under any deadline."""

PARKED_BYTES_MAX: Final = 4 * WINDOW_BYTES
"""Payload of one worker's mutations that wait for their round. A worker has one window in flight;
the rest is room for calls that it gave up waiting for, which still take effect."""

R = TypeVar("R", bound=Request)

Session: TypeAlias = tuple[int, int]
"""Rank of a worker and the small index of its customer."""


class Waiting(msgspec.Struct):
    """A request that waits."""

    peer: int
    request: Request
    noticed_at: float


class Parking:
    """Mutations of a table that wait for their round, by session, in the order of arrival."""

    __slots__ = ("_bytes", "_queues")

    def __init__(self) -> None:
        self._queues: dict[Session, dict[int, Waiting]] = {}  # by seq
        self._bytes: dict[int, int] = {}  # by rank

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, session: Session) -> bool:
        return session in self._queues

    def bytes_of(self, rank: int) -> int:
        """Return the size of what a worker has here."""
        return self._bytes.get(rank, 0)

    def get(self, session: Session, seq: int) -> Waiting | None:
        """Return a mutation that waits here."""
        queue = self._queues.get(session)
        return None if queue is None else queue.get(seq)

    def add(self, peer: int, session: Session, request: Request, now: float) -> bool:
        """Keep a mutation; `False` if the worker has too much here already."""
        rank, size = session[0], _size(request)
        parked = self._bytes.get(rank, 0)
        if parked and parked + size > PARKED_BYTES_MAX:
            return False
        self._bytes[rank] = parked + size
        self._queues.setdefault(session, {})[request.seq] = Waiting(peer, owned(request), now)
        return True

    def sessions(self) -> list[tuple[Session, list[Waiting]]]:
        """Return all that wait, per session and in order."""
        return [(session, list(queue.values())) for session, queue in self._queues.items()]

    def take(self, session: Session, seq: int) -> None:
        """Let one go."""
        queue = self._queues[session]
        waiting = queue.pop(seq)
        if not queue:
            del self._queues[session]
        rank = session[0]
        left = self._bytes.get(rank, 0) - _size(waiting.request)
        if left:
            self._bytes[rank] = left
        else:
            self._bytes.pop(rank, None)

    def forget(self, session: Session) -> None:
        """Drop what a session has here."""
        for seq in list(self._queues.get(session, ())):
            self.take(session, seq)

    def __iter__(self) -> Iterator[Waiting]:
        for queue in self._queues.values():
            yield from queue.values()

    def validate(self) -> None:
        """Check what must always hold."""
        assert all(self._queues.values())
        assert sum(_size(waiting.request) for waiting in self) == sum(self._bytes.values())


def owned(request: R) -> R:
    """Return a request with memory of its own: keys and values are borrowed from the connection."""
    return msgspec.structs.replace(
        request, payload=bytes(request.payload), keys=bytes(request.keys)
    )


def _size(request: Request) -> int:
    return len(request.payload) + len(request.keys)
