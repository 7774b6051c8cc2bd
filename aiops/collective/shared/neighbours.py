"""The members of one host, as one of them sees the others: their boards, how it waits and is woken.

What is written where, and what becomes of a call, is decided in `group.py` and `host_part.py`; both
wait here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiops.collective.shared.board import BOARD_BYTES, Board, fence
from aiops.collective.shared.calls import check_same
from aiops.collective.shared.links import ShareLink
from aiops.collective.shared.memory import BOARD, GroupMemory
from aiops.collective.shared.pages import Arena
from aiops.collective.shared.reading import Reading
from aiops.collective.steps import Span
from aiops.errors import Closed

__all__ = ["BLOCK_BYTES", "TURN_BYTES", "Neighbours"]

Array = NDArray[Any]
_T = TypeVar("_T")

SPIN_S: Final = 100e-6
"""How long to look again and again before going to sleep. To be woken costs about 50 us here, so a
wait that is at most twice as long is better spent looking. Between two looks others may run: with
four members on two processors calls of up to 1 MB take two thirds of the time that they take when
nobody looks."""

BLOCK_BYTES: Final = 128 * 1024
"""What is combined at a time: the result of a block is still in the cache when the next operand
comes."""

TURN_BYTES: Final = 8 * 1024 * 1024
"""How much is combined or copied before the event loop has a turn: about 1 ms."""

_NUDGE_S: Final = 0.05
"""A sleeper looks up by itself this often: if a wake-up was lost, that is all it costs."""


class Neighbours:
    """One member's view of the processes of its host that share memory with it.

    Parameters
    ----------
    index, size
        This member, and how many there are.
    arena
        The shared memory of this process.
    links
        Connections to all other members, by index (`Doorbell.meet`); they are closed with this.
    lost
        Called with the index of a member whose connection has ended, and why: it is dead or has
        left. What becomes of the calls is for the owner to say.
    names
        What errors call the members.

    Attributes
    ----------
    begun
        The last call that this member has begun.
    reading
        How much has gone from member to member.
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
        self.begun = 0
        self.reading = Reading(size)
        self._memory = GroupMemory(arena, links)
        self._links = links
        self._flags = 0
        self._performing = False
        self._closed = False
        self._stopped: Callable[[], Exception] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._arena = arena

        def ended(other: int, error: Exception | None) -> None:
            lost(other, "its process has ended or left" if error is None else str(error))

        for other, link in links.items():
            link.open(self._wake_up, partial(ended, other))
        self._own = Board(self._memory.create(BOARD_BYTES)[1])
        self._boards: dict[int, Board] = {index: self._own}
        self._memory.open()

    # --- calls ---

    async def _alone(self, steps: Coroutine[Any, Any, _T]) -> _T:
        """Go some steps of a call, after which nothing of it may be kept here by an error."""
        self._performing = True
        try:
            return await steps
        except Exception as error:
            if self._stopped is None:
                raise
            # The frames that it has passed look at pages which are to be given back now, and the
            # caller may keep the error for long.
            raise error.with_traceback(None) from error.__cause__
        finally:
            self._performing = False
            if self._closed:
                self._release()

    async def _begin(self) -> int:
        """Begin a call, and return its number."""
        self.check()
        self.begun += 1
        self._memory.tell_dropped()
        if len(self._boards) < self.size:
            await self._until(self._all_boards, self.begun)
        return self.begun

    async def _arrive(self, number: int) -> None:
        """Come to a call of which this member's memory is described, and wait for the others."""
        if not self._all_told():
            await self._until(self._all_told, number)
        self._tell(Board.ARRIVED, number)
        await self._until(partial(self._all, Board.ARRIVED, number), number)
        self._compare(number)

    def _all_told(self) -> bool:
        """Whether the others can know of all memory of this member."""
        return all(link.flush() for link in self._links.values())

    def _compare(self, number: int) -> None:
        """Look whether all members mean the same; all find the same two of whom they speak."""
        for board in self._boards.values():
            self._flags |= board.flags(number)
        check_same(self._names, [self._boards[at].text(number) for at in range(self.size)])

    async def _stage(self, flat: Array, staged: Array, mine: Span) -> None:
        """Copy what the others read of this member's array: all but its own chunk."""
        for part in (slice(0, mine.begin), slice(mine.end, None)):
            await self._copy(flat[part], staged[part])

    def _parts(self, flat: Array, mine: Span, number: int) -> list[Array]:
        """Return this member's chunk of the arrays of all, in the order of the members."""
        arrays = []
        for member in range(self.size):
            if member == self.index:
                arrays.append(flat[slice(*mine)])
                continue
            segment, offset, _, _ = self._boards[member].facts(number)
            whole = self._memory.of(member, segment)[offset : offset + flat.nbytes]
            arrays.append(whole.view(flat.dtype)[slice(*mine)])
        return arrays

    async def _copy(self, source: Array, target: Array) -> None:
        step = TURN_BYTES // source.itemsize
        for begin in range(0, source.size, step):
            if begin:
                await self._turn()
            np.copyto(target[begin : begin + step], source[begin : begin + step])

    async def _turn(self) -> None:
        """Let others have the loop."""
        await asyncio.sleep(0)

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
            if other not in self._boards and BOARD in link.segments:
                self._boards[other] = Board(link.segments[BOARD])
        return len(self._boards) == self.size

    async def _until(self, true: Callable[[], bool], number: int) -> None:
        """Wait for other members, unless this is stopped."""
        self.check()
        until = perf_counter() + SPIN_S
        while not true():
            if perf_counter() >= until:
                await self._sleep(true, number)
                break
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
                if self._stopped is not None and await self._outlasts(number):
                    return
                self.check()
        finally:
            self._woken = None
            words[Board.ASLEEP] = 0

    async def _outlasts(self, number: int) -> bool:
        """Whether a call ends well although this was stopped; waits until that is known."""
        return False

    def _wake_up(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def missing(self, word: int = Board.ARRIVED) -> list[int]:
        """Return who has not come to the call that this one has come to, or `VOTED` on it."""
        boards = self._boards
        come = [at for at in boards if boards[at].words[word] >= self.begun]
        return [member for member in range(self.size) if member not in come]

    # --- the end ---

    def check(self) -> None:
        """Raise what `stop` was given, once it was."""
        if self._stopped is not None:
            raise self._stopped()

    def stop(self, error: Callable[[], Exception]) -> None:
        """End what waits for others here with this error, and refuse what comes."""
        if self._stopped is None:
            self._stopped = error
            self._wake_up()

    def close(self) -> None:
        """Let go of all memory and connections; the arena stays. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.stop(_closed_error)
        self._memory.close()
        for link in self._links.values():
            link.close()
        if not self._performing:
            self._release()

    def _release(self) -> None:
        self._memory.release()
        self._boards.clear()
        self._own = _NOWHERE
        self._stopped = _closed_error  # the error keeps frames that look at all this


_NOWHERE: Final = Board(np.zeros(BOARD_BYTES, np.uint8))


def _closed_error() -> Exception:
    return Closed("the ring is closed")
