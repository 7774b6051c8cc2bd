"""A schedule cut into pieces: what waits for what, so that each piece goes on as soon as it can.

A plan is worked out once for each kind of call and used again and again; it holds numbers only, no
arrays. `operation.py` carries it out. Positions and lengths are elements, never bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from aiops.collective.steps import Combine, Schedule, Span

__all__ = ["PIECE_ELEMENTS", "Plan", "ReceivePiece", "SendPiece", "make_plan", "piece_elements"]

PIECE_ELEMENTS: Final = 128 * 1024
"""512 KiB of float32: long against the cost of a frame, short enough to be summed while it is in
the cache and to keep the next member busy early."""

LONGER: Final = 4
"""How many times longer the pieces of long messages are at the most: 4 MiB of float64, the largest
payload. A frame takes 70 us of Python between two streams of data that empty the cache."""

PIECES_PER_MESSAGE: Final = 4
"""So many at least before pieces get longer: the members work at the same time."""


def piece_elements(message_elements: int, least: int = PIECE_ELEMENTS) -> int:
    """Return how long the pieces of a message are: `least`, or two or four times that.

    It depends on nothing but the message, because both ends have to agree.
    """
    size = least
    while size < LONGER * least and message_elements >= 2 * size * PIECES_PER_MESSAGE:
        size *= 2
    return size


class SendPiece(NamedTuple):
    """Some elements of one message out."""

    peer: int
    message: int
    begin: int
    end: int
    from_work: bool  # else from the caller's array, which nothing changes before the end
    borrowed: bool  # nothing is combined into these elements before they have left
    final: bool  # these elements are finished: nothing comes for them any more


class ReceivePiece(NamedTuple):
    """Some elements of one message in."""

    peer: int
    message: int
    begin: int
    end: int
    combine: Combine
    own_in_work: bool  # else this rank's operand is still the caller's array


class Plan(NamedTuple):
    """What one rank does in one operation.

    Pieces are numbered, sends from 0 up and receives likewise. `after_send[i]` are the receives
    that wait for send i, `after_receive[i]` the sends and then the receives that wait for receive
    i; the counts say for how many each one waits.
    """

    sends: tuple[SendPiece, ...]
    receives: tuple[ReceivePiece, ...]
    after_send: tuple[tuple[int, ...], ...]
    after_receive: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    send_waits: tuple[int, ...]
    receive_waits: tuple[int, ...]
    messages: dict[tuple[int, int], tuple[int, int, int]]
    """Of each (peer, message) that comes: number of its first piece, begin and end."""
    peers: tuple[int, ...]
    written: tuple[Span, ...]
    """The elements that the operation gives this rank."""
    starts_with_copy: bool
    """The working array begins as a copy of the caller's: some piece needs parts of both."""


class _Latest:
    """Who wrote each element last: intervals that do not overlap, in order."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._items: list[tuple[int, int, int]] = []

    def overlapping(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        """Return (begin, end, writer) of all intervals that share elements with this one."""
        at = bisect_left(self._begins, begin)
        if at and self._items[at - 1][1] > begin:
            at -= 1
        found = []
        while at < len(self._items) and self._items[at][0] < end:
            found.append(self._items[at])
            at += 1
        return found

    def put(self, begin: int, end: int, writer: int) -> None:
        """Note a new writer of an interval."""
        for item in self.overlapping(begin, end):
            at = bisect_left(self._begins, item[0])
            del self._begins[at], self._items[at]
            for low, high in ((item[0], begin), (end, item[1])):
                if low < high:
                    self._insert(low, high, item[2])
        self._insert(begin, end, writer)

    def _insert(self, begin: int, end: int, writer: int) -> None:
        at = bisect_left(self._begins, begin)
        self._begins.insert(at, begin)
        self._items.insert(at, (begin, end, writer))

    def spans(self) -> Iterator[Span]:
        """Return what was written, joined where it touches."""
        low = high = 0
        for begin, end, _ in self._items:
            if begin != high and low < high:
                yield Span(low, high)
                low = begin
            elif low == high:
                low = begin
            high = end
        if low < high:
            yield Span(low, high)


class _Builder:
    """Takes the steps of a schedule in order."""

    def __init__(self, least: int, *, copied: bool) -> None:
        self._least = least
        self._copied = copied
        self.mixed = False  # some piece needs parts of the caller's array and of the working one
        self.sends: list[SendPiece] = []
        self.receives: list[ReceivePiece] = []
        self.send_after: list[list[int]] = []  # receives that send i waits for
        self.receive_after: list[tuple[list[int], list[int]]] = []  # sends, receives
        self.messages: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.latest = _Latest()
        self._readers: list[int] = []
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}

    def step(self, index: int, schedule: Schedule) -> None:
        """Add one step: what it sends is as it was before the step."""
        send, receive, combine = schedule[index]
        if send is not None and send.begin < send.end:
            message = self._sent.get(send.peer, 0)
            self._sent[send.peer] = message + 1
            for begin, end in self._cut(send.begin, send.end):
                self._send(send.peer, message, begin, end)
        if receive is not None and receive.begin < receive.end:
            message = self._received.get(receive.peer, 0)
            self._received[receive.peer] = message + 1
            key = (receive.peer, message)
            self.messages[key] = (len(self.receives), receive.begin, receive.end)
            for begin, end in self._cut(receive.begin, receive.end):
                self._receive(receive.peer, message, begin, end, combine)

    def _cut(self, begin: int, end: int) -> Iterator[Span]:
        size = piece_elements(end - begin, self._least)
        for low in range(begin, end, size):
            yield Span(low, min(low + size, end))

    def _sources(self, begin: int, end: int) -> tuple[bool, list[int]]:
        """Return whether these elements are in the working array, and who put them there."""
        found = self.latest.overlapping(begin, end)
        covered = sum(min(high, end) - max(low, begin) for low, high, _ in found)
        if 0 < covered < end - begin:
            self.mixed = True
        return self._copied or bool(found), [writer for _, _, writer in found]

    def _send(self, peer: int, message: int, begin: int, end: int) -> None:
        from_work, writers = self._sources(begin, end)
        if from_work:
            self._readers.append(len(self.sends))
        self.send_after.append(writers)
        self.sends.append(
            SendPiece(peer, message, begin, end, from_work, borrowed=True, final=from_work)
        )

    def _receive(self, peer: int, message: int, begin: int, end: int, combine: Combine) -> None:
        in_work, writers = self._sources(begin, end)
        kept, waits_for = [], []
        for number in self._readers:
            piece = self.sends[number]
            if piece.begin < end and begin < piece.end:
                waits_for.append(number)
                lent = piece.borrowed and combine is Combine.REPLACE
                self.sends[number] = piece._replace(borrowed=lent, final=False)
            if not begin <= piece.begin < piece.end <= end:
                kept.append(number)
        self._readers = kept
        self.receive_after.append((waits_for, writers))
        self.latest.put(begin, end, len(self.receives))
        self.receives.append(ReceivePiece(peer, message, begin, end, combine, in_work))


@lru_cache(256)
def make_plan(schedule: Schedule, least: int = PIECE_ELEMENTS) -> Plan:
    """Cut the messages of a schedule into pieces, of `least` elements or more.

    Both ends of a message cut it in the same way (`piece_elements`). A piece is sent on when the
    pieces that it was made of have come, whatever else of their messages is still on its way.
    """
    builder = _built(schedule, least, copied=False)
    if builder.mixed:
        builder = _built(schedule, least, copied=True)
    after_send: list[list[int]] = [[] for _ in builder.sends]
    after_receive: list[tuple[list[int], list[int]]] = [([], []) for _ in builder.receives]
    for number, writers in enumerate(builder.send_after):
        for writer in writers:
            after_receive[writer][0].append(number)
    for number, (readers, writers) in enumerate(builder.receive_after):
        for reader in readers:
            after_send[reader].append(number)
        for writer in writers:
            after_receive[writer][1].append(number)
    peers = [piece.peer for piece in builder.sends]
    peers += [piece.peer for piece in builder.receives]
    return Plan(
        sends=tuple(builder.sends),
        receives=tuple(builder.receives),
        after_send=tuple(map(tuple, after_send)),
        after_receive=tuple((tuple(sends), tuple(others)) for sends, others in after_receive),
        send_waits=tuple(len(writers) for writers in builder.send_after),
        receive_waits=tuple(len(a) + len(b) for a, b in builder.receive_after),
        messages=builder.messages,
        peers=tuple(sorted(set(peers))),
        written=tuple(builder.latest.spans()),
        starts_with_copy=builder.mixed or builder._copied,
    )


def _built(schedule: Schedule, least: int, *, copied: bool) -> _Builder:
    builder = _Builder(least, copied=copied)
    for index in range(len(schedule)):
        builder.step(index, schedule)
    return builder
