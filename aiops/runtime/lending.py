"""Memory that a server lends, so that a payload is copied as rarely as possible.

Segment buffers are lent to connections, to receive pushes into. The live values are lent to
streams, to send answers from, and are taken back before they change.
"""

from __future__ import annotations

from typing import Final

from aiops.errors import ConnectionLost
from aiops.roles.requests import ANSWERS_BYTES_MAX
from aiops.van.link import Link
from aiops_protocol.frames import Frame, Value
from aiops_protocol.limits import SEGMENT_BYTES

__all__ = ["AnswerLoans", "SegmentPool"]

SPARE_SEGMENTS_MAX: Final = 4
"""Buffers kept for the next payloads: more connections than this rarely receive at a time."""

SLOW_READER_BYTES: Final = ANSWERS_BYTES_MAX + 2 * SEGMENT_BYTES
"""A correct worker never has more than this unread; who has more does not read, and is cut off."""

LEND_BYTES: Final = 64 * 1024
"""Answers from this size on are sent from the live values, without a copy; what is unsent when
the values change is copied then. Smaller ones fit into the kernel at once anyway."""


class SegmentPool:
    """Buffers to receive payloads into; at most one per connection is out at a time.

    A request is used up as soon as it is whole, so its buffer comes back before the next one.
    """

    def __init__(self) -> None:
        self._spare: list[bytearray] = []
        self._lent: dict[int, bytearray] = {}  # by link

    def lend(self, link: Link, size: int) -> memoryview:
        """Return memory for one payload that is on its way."""
        buffer = self._spare.pop() if self._spare else bytearray(SEGMENT_BYTES)
        if len(buffer) < size:
            buffer = bytearray(size)
        self._lent[link.number] = buffer
        return memoryview(buffer)[:size]

    def take_back(self, link: Link) -> None:
        """Note that the request is handled, or will never be whole. Without a loan: nothing."""
        if self._lent:
            buffer = self._lent.pop(link.number, None)
            if buffer is not None and len(self._spare) < SPARE_SEGMENTS_MAX:
                self._spare.append(buffer)


class AnswerLoans:
    """Sends answers; large ones straight from the values."""

    def __init__(self) -> None:
        self._lent: dict[int, Link] = {}

    def send(self, link: Link, frame: Frame) -> None:
        """Send an answer, and cut off who does not read."""
        if type(frame) is Value and len(frame.payload) >= LEND_BYTES:
            link.send(frame, borrowed=True)
            if link.stream.pending_bytes:
                self._lent[link.number] = link
        else:
            link.send(frame)
        if link.stream.pending_bytes > SLOW_READER_BYTES:
            link.abort(ConnectionLost(f"{link} does not read its answers", peer=str(link)))

    def take_back(self) -> None:
        """Copy what is lent and not sent yet: the values are about to change."""
        if self._lent:
            lent, self._lent = self._lent, {}
            for link in lent.values():
                link.stream.own()

    def ended(self, link: Link) -> None:
        """Forget a connection that is no more."""
        self._lent.pop(link.number, None)
