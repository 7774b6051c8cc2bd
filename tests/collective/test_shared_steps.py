"""A member of a shared group dies, or is stopped, at each step of a call; the others agree.

Shared memory cannot go over the simulated network, so members are tasks of one loop here, each with
mappings of its own of the same pages, and a step is what lies between two awaits of a member: all
that it writes where others look is written between two of them. This shows that the agreement and
the pages bear a member that ends, or sleeps and wakes up too late, at any of these points. What it
cannot show is a process that ends within a step, or the order in which processors see writes:
`make ring-kills` and `test_shared_deaths.py` have real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from aiops.collective.call import Call
from aiops.collective.shared import Arena, Doorbell, SharedGroup, supported
from aiops.collective.shared.board import SMALL_BYTES
from local_jobs import turns

pytestmark = pytest.mark.skipif(not supported(), reason="shared memory needs Linux")

Array = NDArray[Any]

LARGE: Final = SMALL_BYTES // 4 + 3
KINDS: Final = {
    "on the board": ("all_reduce", 1000, False),
    "by copies": ("all_reduce", LARGE, False),
    "in pages": ("all_reduce", 300_000, True),  # large enough to change places with a spare
    "broadcast": ("broadcast", LARGE, False),
}
FATES: Final = ("kill", "freeze", "pause")
WATCHED: Final = ("_until", "_copy", "_reduce", "_gather")
ALWAYS: Final = 23
"""Every so many-eth step is taken always; a prime, so that all kinds and fates have their turn."""
QUIET_TURNS: Final = 40
GUARD_S: Final = 60.0


class Killed(BaseException):
    """A member goes no further."""


class Stopped(Exception):
    """The scheduler has halted the group."""


class Cell(NamedTuple):
    """One run: how many members, which call, which fate, at which step of the victim."""

    size: int
    kind: str
    fate: str
    step: int

    @property
    def victim(self) -> int:
        return self.step % self.size


class Processes:
    """What stays when a group goes: a doorbell and an arena for each process."""

    def __init__(self, size: int) -> None:
        self.bells = [Doorbell() for _ in range(size)]
        self.arenas = [Arena() for _ in range(size)]
        self.groups: list[SharedGroup] = []

    async def group(self, name: str, which: list[int]) -> list[SharedGroup]:
        """Let some processes form a group."""
        links = await asyncio.gather(
            *(
                self.bells[process].meet(
                    name,
                    index,
                    {i: self.bells[other].name for i, other in enumerate(which) if i != index},
                    GUARD_S,
                )
                for index, process in enumerate(which)
            )
        )
        made = [
            SharedGroup(i, len(which), self.arenas[process], links[i], lambda *_: None)
            for i, process in enumerate(which)
        ]
        self.groups += made
        return made


@asynccontextmanager
async def processes(size: int) -> AsyncIterator[Processes]:
    them = Processes(size)
    try:
        async with asyncio.timeout(GUARD_S):
            yield them
    finally:
        for group in them.groups:
            group.close()
        for bell in them.bells:
            bell.close()


def watch(group: SharedGroup, reached: Callable[[], Awaitable[None]]) -> None:
    """Let a member stop before and after everything for which it may wait."""

    def watched(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def step(*arguments: Any) -> Any:
            await reached()
            result = await method(*arguments)
            await reached()
            return result

        return step

    for name in WATCHED:
        setattr(group, name, watched(getattr(group, name)))


def values(cell: Cell, round_: int) -> list[Array]:
    """What each member gives."""
    count = KINDS[cell.kind][1]
    return list(
        np.random.default_rng((cell.size, round_)).normal(size=(cell.size, count)).astype("f4")
    )


def expected(cell: Cell, given: list[Array]) -> Array:
    total = given[0].copy()
    for array in given[1:] if KINDS[cell.kind][0] == "all_reduce" else []:
        np.add(total, array, out=total)
    return total


class Moment:
    """The step of the victim: when it is there, and when it may go on."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.seen = 0
        self.there = asyncio.Event()
        self.go_on = asyncio.Event()

    async def reached(self) -> None:
        self.seen += 1
        if self.seen == self.cell.step:
            self.there.set()
            if self.cell.fate == "kill":
                raise Killed
            await self.go_on.wait()


async def run(cell: Cell) -> bool:
    """Run one cell and check it; False if the victim has not so many steps."""
    kind, count, shared = KINDS[cell.kind]
    call = Call(kind, count, ((count,),), op="sum" if kind == "all_reduce" else "")  # type: ignore[arg-type]
    async with processes(cell.size) as them:
        everybody = list(range(cell.size))
        groups = await them.group("first", everybody)
        given = values(cell, 0)
        arrays = [arena.empty(count) if shared else np.empty(count, "f4") for arena in them.arenas]
        for array, value in zip(arrays, given, strict=True):
            array[:] = value
        moment = Moment(cell)
        watch(groups[cell.victim], moment.reached)
        calls = [
            asyncio.ensure_future(group.perform(call, array))
            for group, array in zip(groups, arrays, strict=True)
        ]
        there = asyncio.ensure_future(moment.there.wait())
        await asyncio.wait([there, *calls], return_when=asyncio.FIRST_COMPLETED)
        if not moment.there.is_set():
            await asyncio.gather(*calls)
        if not moment.there.is_set():
            there.cancel()
            return False
        await turns(QUIET_TURNS)
        if cell.fate == "pause":
            moment.go_on.set()
            await asyncio.gather(*calls)
            right = expected(cell, given)
            assert all(np.array_equal(array, right) for array in arrays)
            return True
        await _without(cell, them, groups, calls, given, arrays, moment)
    return True


async def _without(
    cell: Cell,
    them: Processes,
    groups: list[SharedGroup],
    calls: Sequence[asyncio.Future[int]],
    given: list[Array],
    arrays: list[Array],
    moment: Moment,
) -> None:
    """Go on without the victim, as the scheduler lets the others do; it may wake up meanwhile."""
    left = [member for member in range(cell.size) if member != cell.victim]
    victim = groups[cell.victim]
    if cell.fate == "kill":
        for link in victim._links.values():
            link.close()
    for member in left:
        groups[member].stop(Stopped)
    await turns(QUIET_TURNS)
    done = max(groups[member].done for member in left)
    for member in left:
        groups[member].verdict(done, Stopped)
    ended = await asyncio.gather(*(calls[member] for member in left), return_exceptions=True)
    right = expected(cell, given)
    for member, outcome in zip(left, ended, strict=True):
        assert isinstance(outcome, Stopped) == (done == 0), (member, outcome)
        assert np.array_equal(arrays[member], right if done else given[member])
    for member in left:
        groups[member].close()

    again = await them.group("again", left)
    given_again = [values(cell, 1)[member] for member in left]
    for member, value in zip(left, given_again, strict=True):
        arrays[member][:] = value
    moment.go_on.set()  # it finds what it was about to write or to read
    count = arrays[0].size
    call = Call("all_reduce", count, ((count,),), op="sum")
    for _ in range(2):
        await asyncio.gather(
            *(group.perform(call, arrays[m]) for group, m in zip(again, left, strict=True))
        )
    right_again = expected(cell._replace(kind="by copies"), given_again)
    twice = np.zeros_like(right_again)
    for _ in left:
        np.add(twice, right_again, out=twice)
    await turns(QUIET_TURNS)
    assert all(np.array_equal(arrays[member], twice) for member in left)

    victim.verdict(0, Stopped)  # the end of its connection to the scheduler
    (outcome,) = await asyncio.gather(calls[cell.victim], return_exceptions=True)
    if cell.fate == "kill":
        assert isinstance(outcome, Killed), outcome  # and nobody looks at its array any more
        return
    assert isinstance(outcome, int | Stopped), outcome
    is_right = right if isinstance(outcome, int) else given[cell.victim]
    assert np.array_equal(arrays[cell.victim], is_right)
    if done:
        assert isinstance(outcome, int), "all have it but the victim"


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("kind", KINDS)
async def test_the_same_result_or_none(
    size: int, fate: str, kind: str, request: pytest.FixtureRequest
) -> None:
    stride = 1 if request.config.getoption("--ring-matrix") else ALWAYS
    offset = size * len(FATES) + FATES.index(fate) + 7 * list(KINDS).index(kind)
    step = 1 + offset % 12 if stride > 1 else 1
    while True:
        cell = Cell(size, kind, fate, step)
        try:
            if not await run(cell):
                assert step > 4
                return
        except Exception as error:
            raise AssertionError(f"{cell}: {type(error).__name__}: {error}") from error
        step += stride
