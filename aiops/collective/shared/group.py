"""Members of one host that perform collectives through memory which all of them have mapped.

Each call is a direct reduce-scatter and gather: member i combines chunk i over the arrays of all
members, in the order of their ranks, and puts it where the others find it; when all have done so,
the result takes effect. Where it is put depends on whose array it is for. An array that fills a
segment of its own has a spare of the same size: every member writes its chunk into that, and at the
end the pages of both change places. For any other array each member puts its chunk into a segment
of its own, and whoever has such an array copies all chunks into it.

Nobody's array is touched before everybody has voted that its part is there: until then it can be
given up with all inputs intact. A member that was stopped and comes back later may still write into
a spare, and can spoil nothing: a group that was given up does not use its spares again.

A small array (`SMALL_BYTES`) is put on the board, and each member combines all of it: once all have
come, each can finish whatever becomes of the others, so coming is the vote.

What happens when a member fails is not decided here: `stop` ends what has no vote of this member
yet; what has, waits for `verdict`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiops.collective.call import Call
from aiops.collective.shared.board import NONE, SMALL_BYTES, Board, Facts, fence
from aiops.collective.shared.calls import combine, contributions, text_of
from aiops.collective.shared.neighbours import BLOCK_BYTES, TURN_BYTES, Neighbours
from aiops.collective.shared.pages import Location
from aiops.collective.steps import Span

__all__ = ["SharedGroup"]

Array = NDArray[Any]


class SharedGroup(Neighbours):
    """One member's part in a group of processes of one host.

    For the parameters see `Neighbours`; closing it closes `links`.

    Attributes
    ----------
    done
        How many calls are in effect here.
    voted
        The last call that this member cannot give up by itself any more.
    """

    done = 0
    voted = 0
    _interrupted: asyncio.CancelledError | None = None  # comes when a call is complete
    _doubtful: asyncio.Future[None] | None = None
    _refused: Callable[[], Exception] | None = None  # what a verdict was, if the call has no effect
    _vote = Board.VOTED  # the word in which the members vote on this call

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
        the owner then has to `stop` the group. Otherwise the others may have the result. Of a small
        array they have copies, and it is as it was; from a large one they may still read, so it
        is held until they have the result, and has it, too.
        """
        self._flags = flags
        self._interrupted = None
        await self._alone(self._perform(call, flat))
        return self._flags

    async def _perform(self, call: Call, flat: Array) -> None:
        number = await self._begin()
        if flat.nbytes <= SMALL_BYTES:
            await self._perform_small(call, flat, number)
        else:
            await self._perform_large(call, flat, number)
        chunk = contributions(call, self.size)[self.index].elements * flat.itemsize
        self.reading.count(call, flat.nbytes, chunk, at_once=flat.nbytes <= SMALL_BYTES)
        if self._interrupted is not None:
            raise self._interrupted

    async def _begin(self) -> int:
        number = await super()._begin()
        if self.voted > self.done:
            # A small call that was cancelled here. The board has room for two calls, and with a
            # third one it would be gone before a slow member has read it.
            await self._until(partial(self._all, Board.ARRIVED, self.voted), self.voted)
            self.done = self.voted
        return number

    async def _perform_small(self, call: Call, flat: Array, number: int) -> None:
        spans = contributions(call, self.size)
        mine = slice(*(spans[self.index] if call.op == "" else (0, call.count)))
        slot = self._own.small(number, flat.nbytes).view(flat.dtype)
        slot[mine] = flat[mine]
        self._own.describe(number, text_of(call), self._flags, Facts())
        self.voted = number  # whoever has come needs nothing more of this member
        self._vote = Board.ARRIVED
        self._tell(Board.ARRIVED, number)
        await self._until(partial(self._all, Board.ARRIVED, number), number)
        self._compare(number)
        self.done = number
        parts = [
            self._boards[member].small(number, flat.nbytes).view(flat.dtype)
            for member in range(self.size)
        ]
        if call.op:
            where = slice(*(spans[self.index] if call.kind == "reduce_scatter" else (0, None)))
            combine(call, [part[where] for part in parts], flat[where])
            return
        for span, part in zip(spans, parts, strict=True):
            flat[slice(*span)] = part[slice(*span)]

    async def _perform_large(self, call: Call, flat: Array, number: int) -> None:
        spans = contributions(call, self.size)
        mine, memory = spans[self.index], self._memory
        location = self._arena.locate(flat) if call.op else None
        spare = None
        if call.op and location is None:
            staged = memory.grown(memory.staged, flat.nbytes)
            await self._stage(flat, staged.array[: flat.nbytes].view(flat.dtype), mine)
            location = Location(staged.number, 0)
        elif call.kind == "all_reduce":
            spare = memory.spare(flat)
        results = memory.grown(memory.results, mine.elements * flat.itemsize)
        segment, offset = location or (0, 0)
        target = NONE if spare is None else memory.number_of(spare)
        facts = Facts(segment, offset, results.number, target)
        self._own.describe(number, text_of(call), self._flags, facts)
        await self._arrive(number)

        result = results.array[: mine.elements * flat.itemsize].view(flat.dtype)
        if call.op:
            places = self._places(flat, mine, result, spare, number)
            await self._reduce(call, flat, mine, places, number)
        else:
            await self._copy(flat[slice(*mine)], result)
        # Whoever votes can finish: what it cannot map it hears of before.
        copies = self._copies(call, flat, spans, number) if spare is None else []
        self.check()
        self.voted = number
        self._vote = Board.VOTED
        self._tell(Board.VOTED, number)
        await self._all_voted(number)
        self.done = number
        memory.trim()
        if spare is None:
            await self._gather(copies)
            return
        try:
            memory.exchange(flat, spare)
        except OSError:  # the system allows no more mappings
            await self._copy(spare[: flat.nbytes].view(flat.dtype), flat)

    def _places(
        self, flat: Array, mine: Span, result: Array, spare: Array | None, number: int
    ) -> list[Array]:
        """Return where this member's chunk of the result is to be written, its own memory first."""
        places = [] if spare is None else [spare]
        copied = spare is None
        for step in range(1, self.size):
            member = (self.index + step) % self.size
            target = self._boards[member].facts(number).target
            if target == NONE:
                copied = True
            else:
                places.append(self._memory.of(member, target))
        chunks = [place[: flat.nbytes].view(flat.dtype)[slice(*mine)] for place in places]
        return [result, *chunks] if copied else chunks

    async def _reduce(
        self, call: Call, flat: Array, mine: Span, places: Sequence[Array], number: int
    ) -> None:
        """Combine this member's chunk over the arrays of all members, in the order of the ranks."""
        arrays = self._parts(flat, mine, number)
        result, *copies = places
        block = BLOCK_BYTES // flat.itemsize
        since = 0
        for begin in range(0, mine.elements, block):
            where = slice(begin, begin + block)
            warm = result[where]
            combine(call, [array[where] for array in arrays], warm)
            for copy in copies:
                np.copyto(copy[where], warm)
            since += BLOCK_BYTES * (self.size + len(copies))
            if since >= TURN_BYTES:
                since = 0
                await asyncio.sleep(0)
                self.check()

    def _copies(
        self, call: Call, flat: Array, spans: Sequence[Span], number: int
    ) -> list[tuple[Array, Array]]:
        """Return where members will have which parts of the array, each with the part itself.

        They stay there until all have come to the next call.
        """
        copies = []
        for step in range(self.size):
            member = (self.index + step) % self.size
            span = spans[member]
            if (call.kind == "reduce_scatter" and step) or not (call.op or step):
                continue  # others' chunks do not matter; one's own is there
            if step == 0:
                memory = self._memory.results.array
            elif span.elements:
                memory = self._memory.of(member, self._boards[member].facts(number).result)
            else:
                continue
            part = memory[: span.elements * flat.itemsize].view(flat.dtype)
            copies.append((part, flat[slice(*span)]))
        return copies

    async def _gather(self, copies: Sequence[tuple[Array, Array]]) -> None:
        """Copy what all members have."""
        for part, where in copies:
            await self._copy(part, where)

    # --- waiting ---

    async def _all_voted(self, number: int) -> None:
        """Wait until no member reads this one's array any more; cancelling comes afterwards."""
        true = partial(self._all, Board.VOTED, number)
        while True:
            try:
                if self._interrupted is None:
                    await self._until(true, number)
                elif self._stopped is not None:
                    await self._judged(number)
                elif not true():
                    await self._sleep(true, number)
                return
            except asyncio.CancelledError as error:
                self._interrupted = error

    async def _turn(self) -> None:
        """Let others have the loop; a result that is in effect is copied to its end."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            if self.done < self.begun:
                raise
            self._interrupted = error

    async def _until(self, true: Callable[[], bool], number: int) -> None:
        """Wait for other members; a call without this member's vote ends when it is stopped."""
        if self._stopped is not None and await self._outlasts(number):
            return  # stopped since its vote: to tell it is to find out who is dead
        await super()._until(true, number)
        if self.voted >= number > self.done and self._given_up(number):
            await self._judged(number)

    async def _outlasts(self, number: int) -> bool:
        if self.voted < number:
            return False
        await self._judged(number)
        return True

    def _given_up(self, number: int) -> bool:
        """Whether another member does without this call: then what it says no longer counts.

        A member that was stopped for long may find all votes of a call that the others have given
        up since, and their arrays in use again. Each gives up before it looks for the last time,
        and votes before it looks whether others have given up, so one of two always sees the other.
        """
        ends = (board.words[Board.ENDED] for i, board in self._boards.items() if i != self.index)
        return any(0 < end <= number for end in ends)

    async def _judged(self, number: int) -> None:
        while self.done < number:
            if self._refused is not None:
                raise self._refused()
            self._doubtful = self._loop.create_future()
            await self._doubtful

    # --- the end ---

    @property
    def in_doubt(self) -> bool:
        """Whether a call waits for `verdict`, or will when the group is stopped."""
        return self.voted > self.done

    def stop(self, error: Callable[[], Exception]) -> None:
        """End the group: what has no vote of this member fails, what has waits for `verdict`."""
        if self._stopped is None:
            super().stop(error)
            words = self._own.words
            words[Board.ENDED] = self.done + 1
            fence()
            complete = self.in_doubt and self._all(self._vote, self.voted)
            if complete and not self._given_up(self.voted):
                self.done = self.voted
                words[Board.ENDED] = self.done + 1
                self._end_doubt()  # who had given up has seen all votes, too

    def verdict(self, done: int, error: Callable[[], Exception]) -> None:
        """Say that calls up to `done` are in effect for some member, so for all; others are not."""
        self.stop(error)
        # It is kept: whoever waits for it may be cancelled in this moment, and then waits again.
        if self.in_doubt and self.voted <= done:
            self.done = self.voted
        elif self.in_doubt:
            self._refused = self._refused or error
        self._end_doubt()

    def _end_doubt(self) -> None:
        if self._doubtful is not None and not self._doubtful.done():
            self._doubtful.set_result(None)
