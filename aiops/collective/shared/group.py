"""Members of one host that perform collectives through memory which all of them have mapped.

Each call is a direct reduce-scatter and gather: member i combines chunk i over the arrays of all
members, in the order of their ranks, and puts it into a segment of its own; when all have done so,
each copies all chunks into its array. Nobody writes into memory of another member, and nobody's
array is touched before everybody has voted that its part is there: until then it can be given up
with all inputs intact, and a member that was stopped and comes back later can spoil nothing.

A small array (`SMALL_BYTES`) is put on the board, and each member combines all of it: once all have
come, each can finish whatever becomes of the others, so coming is the vote.

What happens when a member fails is not decided here: `stop` ends what has no vote of this member
yet; what has, waits for `verdict`.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from time import perf_counter
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiops.collective.call import REDUCTIONS, Call, difference
from aiops.collective.shared.board import BOARD_BYTES, SMALL_BYTES, TEXT_BYTES, Board, fence
from aiops.collective.shared.links import ShareLink
from aiops.collective.shared.pages import Arena, Segment, create_segment
from aiops.collective.steps import Span, chunk_spans
from aiops.errors import Closed, CollectiveMismatch

__all__ = ["SharedGroup"]

Array = NDArray[Any]

SPIN_S: Final = 100e-6
"""How long to look again and again before going to sleep. To be woken costs about 50 us here, so a
wait that is at most twice as long is better spent looking."""

BLOCK_BYTES: Final = 128 * 1024
"""What is combined at a time: the result of a block is still in the cache when the next operand
comes."""

STAGED_BYTES_KEPT: Final = 256 * 1024 * 1024
"""Ordinary arrays are copied into pages that are kept for the next one up to this size: fresh pages
cost more than the copy. `Arena.empty` needs none of it."""

TURN_BYTES: Final = 8 * 1024 * 1024
"""How much is combined or copied before the event loop has a turn: about 1 ms."""

_NUDGE_S: Final = 0.05
"""A sleeper looks up by itself this often: if a wake-up was lost, that is all it costs."""


_BOARD: Final = -1
"""The number of a member's board. Segments of the arena count from 0 up, those of a group down."""


class _Private:
    """Memory of a group itself, for what has no place in shared pages yet; it grows on demand."""

    __slots__ = ("array", "number")

    def __init__(self) -> None:
        self.number = 0
        self.array: Array = np.empty(0, np.uint8)


class SharedGroup:
    """One member's part in a group of processes of one host.

    Parameters
    ----------
    index, size
        This member, and how many there are.
    arena
        The shared memory of this process.
    links
        Connections to all other members, by index (`Doorbell.meet`); they are closed with the
        group.
    lost
        Called with the index of a member whose connection has ended, and why: it is dead or has
        left. What becomes of the calls is for the owner to say.
    names
        What errors call the members.

    Attributes
    ----------
    done
        How many calls are in effect here.
    voted
        The last call that this member cannot give up by itself any more.
    begun
        The last call that this member has begun.
    """

    def __init__(
        self,
        index: int,
        size: int,
        arena: Arena,
        links: Mapping[int, ShareLink],
        lost: Callable[[int, str], None],
        names: Sequence[str] = (),
    ) -> None:
        self._names = names or [f"rank {member}" for member in range(size)]
        self.index = index
        self.size = size
        self.done = 0
        self.voted = 0
        self.begun = 0
        self._arena = arena
        self._links = links
        self._flags = 0
        self._performing = False
        self._closed = False
        self._stopped: Callable[[], Exception] | None = None
        self._doubtful: asyncio.Future[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._dropped: deque[int] = deque()
        self._private = _BOARD
        self._staged, self._results = _Private(), _Private()
        # Looking again and again takes a processor from those that are waited for.
        self._spin_s = SPIN_S if size <= (os.cpu_count() or 1) else 0.0

        def ended(other: int, error: Exception | None) -> None:
            lost(other, "its process has ended or left" if error is None else str(error))

        for other, link in links.items():
            link.open(self._wake_up, partial(ended, other))
        self._own = Board(self._create(BOARD_BYTES)[1])
        self._boards: dict[int, Board] = {index: self._own}
        arena.watch(self._announce, self._dropped.append)

    # --- memory ---

    def _announce(self, segment: Segment) -> None:
        for link in self._links.values():
            link.made(segment)

    def _create(self, size: int) -> tuple[int, Array]:
        fd, array = create_segment(size)
        number, self._private = self._private, self._private - 1
        try:
            self._announce(Segment(number, fd, array.size))
        finally:
            os.close(fd)  # the mapping stays, here and there
        return number, array

    def _grown(self, memory: _Private, size: int) -> _Private:
        if memory.array.size < size:
            if memory.number:
                self._dropped.append(memory.number)
            memory.number, memory.array = self._create(size)
        return memory

    def _memory(self, member: int, number: int) -> Array:
        """Return a segment of another member."""
        link = self._links[member]
        if number not in link.segments:
            link.take()  # it was sent before the call was described
        return link.segments[number]

    # --- calls ---

    async def perform(self, call: Call, flat: Array, flags: int = 0) -> int:
        """Perform a call in place on a flat array; one at a time, in the same order everywhere.

        Parameters
        ----------
        call, flat
            What, and on which elements.
        flags
            Bits that this member wants all to know.

        Returns
        -------
        flags
            The bits of all members; the same on all.

        Raises
        ------
        CollectiveMismatch
            The members' calls differ; on every member, nothing was changed.
        Exception
            What `stop` or `verdict` was given; nothing was changed.

        Notes
        -----
        When it is cancelled, the call is in effect for nobody if `voted` is still below its number;
        the owner then has to `stop` the group. Otherwise the others may have the result; here the
        array is as it was.
        """
        self._refuse()
        self.begun = number = self.begun + 1
        self._flags = flags
        self._performing = True
        try:
            while self._dropped:
                dropped = self._dropped.popleft()
                for link in self._links.values():
                    link.dropped(dropped)
            if len(self._boards) < self.size:
                await self._until(self._all_boards, number)
            if flat.nbytes <= SMALL_BYTES:
                await self._perform_small(call, flat, number)
            else:
                await self._perform_large(call, flat, number)
        finally:
            self._performing = False
            if self._closed:
                self._release()
        return self._flags

    async def _perform_small(self, call: Call, flat: Array, number: int) -> None:
        spans = _spans(call, self.size)
        mine = slice(*(spans[self.index] if call.op == "" else (0, call.count)))
        slot = self._own.small(number, flat.nbytes).view(flat.dtype)
        slot[mine] = flat[mine]
        self._own.describe(number, _text(call), self._flags, 0, 0, 0)
        self.voted = number  # whoever has come needs nothing more of this member
        self._tell(Board.ARRIVED, number)
        await self._until(partial(self._all, Board.ARRIVED, number), number)
        self._compare(call, number)
        self.done = number
        parts = [
            self._boards[member].small(number, flat.nbytes).view(flat.dtype)
            for member in range(self.size)
        ]
        if call.op:
            where = slice(*(spans[self.index] if call.kind == "reduce_scatter" else (0, None)))
            _combine(call, [part[where] for part in parts], flat[where])
            return
        for span, part in zip(spans, parts, strict=True):
            flat[slice(*span)] = part[slice(*span)]

    async def _perform_large(self, call: Call, flat: Array, number: int) -> None:
        spans = _spans(call, self.size)
        mine = spans[self.index]
        location = self._arena.locate(flat) if call.op else None
        if call.op and location is None:
            staged = self._grown(self._staged, flat.nbytes)
            await self._copy(flat, staged.array[: flat.nbytes].view(flat.dtype))
            segment, offset = staged.number, 0
        else:
            segment, offset = location or (0, 0)
        results = self._grown(self._results, mine.elements * flat.itemsize)
        self._own.describe(number, _text(call), self._flags, segment, offset, results.number)
        self._tell(Board.ARRIVED, number)
        await self._until(partial(self._all, Board.ARRIVED, number), number)
        self._compare(call, number)

        result = results.array[: mine.elements * flat.itemsize].view(flat.dtype)
        if call.op:
            await self._reduce(call, flat, mine, result, number)
        else:
            await self._copy(flat[slice(*mine)], result)
        self._refuse()
        self.voted = number
        self._tell(Board.VOTED, number)
        await self._until(partial(self._all, Board.VOTED, number), number)
        self.done = number
        if self._staged.array.size > STAGED_BYTES_KEPT:
            self._dropped.append(self._staged.number)
            self._staged = _Private()
        await self._gather(call, flat, spans, number)

    def _compare(self, call: Call, number: int) -> None:
        """Look whether all members mean the same; all find the same two of whom they speak."""
        for board in self._boards.values():
            self._flags |= board.flags(number)
        texts = [self._boards[member].text(number) for member in range(self.size)]
        for member, text in enumerate(texts):
            if text != texts[0]:
                first, other = self._names[0], self._names[member]
                words = difference(first, _call(texts[0]), other, _call(text))
                raise CollectiveMismatch(words or f"{first} and {other} gave different lists")

    async def _reduce(
        self, call: Call, flat: Array, mine: Span, result: Array, number: int
    ) -> None:
        """Combine this member's chunk over the arrays of all members, in the order of the ranks."""
        arrays = []
        for member in range(self.size):
            if member == self.index:
                arrays.append(flat)
                continue
            segment, offset, _ = self._boards[member].facts(number)
            whole = self._memory(member, segment)[offset : offset + flat.nbytes]
            arrays.append(whole.view(flat.dtype))
        block = BLOCK_BYTES // flat.itemsize
        since = 0
        for begin in range(mine.begin, mine.end, block):
            end = min(begin + block, mine.end)
            parts = [array[begin:end] for array in arrays]
            _combine(call, parts, result[begin - mine.begin : end - mine.begin])
            since += BLOCK_BYTES * self.size
            if since >= TURN_BYTES:
                since = 0
                await asyncio.sleep(0)
                self._refuse()

    async def _gather(self, call: Call, flat: Array, spans: Sequence[Span], number: int) -> None:
        """Copy what all members have; it stays there until all have come to the next call."""
        for step in range(self.size):
            member = (self.index + step) % self.size
            span = spans[member]
            if (call.kind == "reduce_scatter" and step) or not (call.op or step):
                continue  # others' chunks do not matter; one's own is there
            if step == 0:
                memory = self._results.array
            elif span.elements:
                memory = self._memory(member, self._boards[member].facts(number)[2])
            else:
                continue
            part = memory[: span.elements * flat.itemsize].view(flat.dtype)
            await self._copy(part, flat[slice(*span)])

    async def _copy(self, source: Array, target: Array) -> None:
        step = TURN_BYTES // source.itemsize
        for begin in range(0, source.size, step):
            if begin:
                await asyncio.sleep(0)
            np.copyto(target[begin : begin + step], source[begin : begin + step])

    # --- waiting ---

    def _tell(self, word: int, number: int) -> None:
        fence()
        self._own.words[word] = number
        fence()
        for other, board in self._boards.items():
            if other != self.index and board.words[Board.ASLEEP]:
                self._links[other].wake()

    def _all(self, word: int, number: int) -> bool:
        return all(board.words[word] >= number for board in self._boards.values())

    def _all_boards(self) -> bool:
        for other, link in self._links.items():
            if other not in self._boards and _BOARD in link.segments:
                self._boards[other] = Board(link.segments[_BOARD])
        return len(self._boards) == self.size

    async def _until(self, true: Callable[[], bool], number: int) -> None:
        """Wait for other members; a call without this member's vote ends when it is stopped."""
        self._refuse()
        until = perf_counter() + self._spin_s
        while not true():
            if perf_counter() >= until:
                await self._sleep(true, number)
                return
            os.sched_yield()
        fence()

    async def _sleep(self, true: Callable[[], bool], number: int) -> None:
        words = self._own.words
        try:
            while True:
                self._woken = self._loop.create_future()
                words[Board.ASLEEP] = 1
                fence()
                if true():
                    return
                timer = self._loop.call_later(_NUDGE_S, self._wake_up)
                try:
                    await self._woken
                finally:
                    timer.cancel()
                if self._stopped is not None and self.voted >= number:
                    await self._judged()
                    return
                self._refuse()
        finally:
            self._woken = None
            words[Board.ASLEEP] = 0

    async def _judged(self) -> None:
        self._doubtful = self._loop.create_future()
        await self._doubtful

    def _wake_up(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    # --- the end ---

    def _refuse(self) -> None:
        if self._stopped is not None:
            raise self._stopped()

    def missing(self) -> list[int]:
        """Return the members that have not come to the call that this one has come to."""
        here = range(self.size)
        return [
            member
            for member in here
            if member not in self._boards or self._boards[member].words[Board.ARRIVED] < self.begun
        ]

    @property
    def in_doubt(self) -> bool:
        """Whether a call waits for `verdict`, or will when the group is stopped."""
        return self.voted > self.done

    def stop(self, error: Callable[[], Exception]) -> None:
        """End the group: what has no vote of this member fails, what has waits for `verdict`."""
        if self._stopped is None:
            self._stopped = error
            self._wake_up()

    def verdict(self, done: int, error: Callable[[], Exception]) -> None:
        """Say that calls up to `done` are in effect for some member, so for all; others are not."""
        self.stop(error)
        if not (self.in_doubt and self._performing):
            return
        if self._doubtful is None:
            self._loop.call_soon(self.verdict, done, error)  # the waiting call is about to look
        elif not self._doubtful.done():
            if self.voted <= done:
                self._doubtful.set_result(None)
            else:
                self._doubtful.set_exception(error())

    def close(self) -> None:
        """Let go of all memory and connections; the arena stays. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.stop(_closed_error)
        self._arena.unwatch(self._announce, self._dropped.append)
        for link in self._links.values():
            link.close()
        if not self._performing:
            self._release()

    def _release(self) -> None:
        """Unmap everything now: a garbage collection may be far away, and this is large."""
        for link in self._links.values():
            link.segments.clear()
        self._boards.clear()
        self._staged, self._results = _Private(), _Private()
        self._own = _NOWHERE
        self._stopped = _closed_error  # the error keeps frames that look at all this


_NOWHERE: Final = Board(np.zeros(BOARD_BYTES, np.uint8))


def _closed_error() -> Exception:
    return Closed("the ring is closed")


def _spans(call: Call, size: int) -> Sequence[Span]:
    """Return which elements each member contributes to the result."""
    if call.kind == "broadcast":
        return [Span(0, call.count if member == call.root else 0) for member in range(size)]
    return chunk_spans(call.count, size)


def _combine(call: Call, parts: Sequence[Array], result: Array) -> None:
    """Fold parts from the left, and divide once for a mean."""
    operation = REDUCTIONS[call.op]
    with np.errstate(all="ignore"):  # infinity less infinity is NaN, and travels on
        if len(parts) == 1:
            np.copyto(result, parts[0])
        else:
            operation(parts[0], parts[1], out=result)
        for part in parts[2:]:
            operation(result, part, out=result)
        if call.op == "mean":
            np.divide(result, result.dtype.type(len(parts)), out=result)


def _text(call: Call) -> bytes:
    """Write a call so that equal calls are equal bytes; of very long ones shapes are a digest."""
    text = msgspec.json.encode(call)
    if len(text) <= TEXT_BYTES:
        return text
    digest = int.from_bytes(blake2b(text, digest_size=7).digest(), "little")
    return msgspec.json.encode(replace(call, shapes=((call.count,), (digest,))))


def _call(text: bytes) -> Call:
    return msgspec.json.decode(text, type=Call)
