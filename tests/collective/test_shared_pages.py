"""Pages that change places with those of an array: bits, addresses, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.collective.call import Call
from aiops.collective.shared import Arena, Doorbell, SharedGroup, mapping, supported
from aiops.collective.shared.mapping import address_of, can_exchange

pytestmark = pytest.mark.skipif(
    not supported() or not can_exchange(), reason="mappings cannot change places here"
)

Array = NDArray[Any]
ALONE = 300_001  # so many float32 have a segment of their own


class Stopped(Exception):
    """What the tests stop a group with."""


class Meeting:
    """Members of one loop that form one group after the other, and keep their arenas."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.arenas = [Arena() for _ in range(size)]
        self.bells = [Doorbell() for _ in range(size)]
        self.groups: list[SharedGroup] = []
        self._met = 0

    async def form(self) -> None:
        """Form the next group."""
        for group in self.groups:
            group.close()
        self._met += 1
        met = await asyncio.gather(
            *(
                bell.meet(
                    f"group {self._met}",
                    i,
                    {j: other.name for j, other in enumerate(self.bells) if j != i},
                    5.0,
                )
                for i, bell in enumerate(self.bells)
            )
        )
        self.groups = [
            SharedGroup(i, self.size, self.arenas[i], met[i], lambda *_: None)
            for i in range(self.size)
        ]

    async def __aenter__(self) -> Meeting:
        await self.form()
        return self

    async def __aexit__(self, *_: object) -> None:
        for group in self.groups:
            group.close()
        for bell in self.bells:
            bell.close()

    def arrays(self, count: int = ALONE) -> list[Array]:
        """Make one array for each member, with numbers in it."""
        made = [arena.empty(count) for arena in self.arenas]
        for index, array in enumerate(made):
            array[:] = np.random.default_rng(index).standard_normal(count)
        return made

    async def reduce(self, arrays: Sequence[Array], op: str = "sum") -> None:
        count = arrays[0].size
        call = Call("all_reduce", count, ((count,),), op=op)
        await asyncio.gather(
            *(group.perform(call, a) for group, a in zip(self.groups, arrays, strict=True))
        )


def folded(arrays: Sequence[Array]) -> bytes:
    total = arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    return total.tobytes()


def test_an_array_shows_the_pages_of_its_spare_and_stays_where_it_is() -> None:
    arena = Arena()
    array = arena.empty((1000, 600))
    view = array[3:7]
    spare = arena.spare(array)
    assert spare is not None
    array[:], spare[:] = 1.0, 255
    at, numbers = address_of(array), (arena.locate(array), arena.locate(spare))
    assert arena.exchange(array, spare)
    assert address_of(array) == at
    assert (arena.locate(spare), arena.locate(array)) == numbers
    assert array.view(np.uint8).min() == view.view(np.uint8).min() == 255
    assert (spare[: array.nbytes].view(np.float32) == 1.0).all()
    del spare
    gc.collect()
    assert len(arena.segments) == 1  # the pages that the array had first
    array[:] = 3.0
    assert (view == 3.0).all()
    del array, view
    gc.collect()
    assert not arena.segments


def test_who_reads_meanwhile_sees_the_old_pages_or_the_new() -> None:
    arena = Arena()
    array = arena.empty(500_000)
    spare = arena.spare(array)
    assert spare is not None
    array[:], spare[:] = 0.0, 0
    over, seen = threading.Event(), set()

    def read() -> None:
        while not over.is_set():
            seen.update(np.unique(array).tolist())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(200):
            spare.view(np.float32)[:] = number % 2
            assert arena.exchange(array, spare)
    finally:
        over.set()
        reader.join()
    assert seen <= {0.0, 1.0}


def test_only_an_array_with_a_segment_of_its_own_has_a_spare() -> None:
    arena = Arena()
    whole = arena.empty(ALONE)
    parts = (whole[:100_000], whole[1024:], whole[2:-2], whole[1:], whole[:-1])
    for other in (*parts, arena.empty(1000), np.empty(ALONE, np.float32)):
        assert arena.spare(other) is None
    spare = arena.spare(whole)
    assert spare is not None
    assert arena.can_exchange(whole, spare)
    assert not arena.can_exchange(arena.empty(2 * ALONE), spare)
    assert not any(arena.can_exchange(part, spare) for part in parts)


@given(
    st.integers(1, 4),
    st.lists(st.sampled_from(["whole", "part", "ordinary"]), min_size=4, max_size=4),
    st.sampled_from(["sum", "mean", "max"]),
)
def test_members_with_all_kinds_of_arrays_have_the_same_bits(
    size: int, kinds: list[str], op: str
) -> None:
    async def run() -> None:
        async with Meeting(size) as them:
            whole = them.arrays()
            wider = [arena.empty(ALONE + 5000) for arena in them.arenas]
            arrays = []
            for one, wide, kind in zip(whole, wider, kinds, strict=False):
                made = {"whole": one, "part": wide[5000:], "ordinary": one.copy()}[kind]
                made[:] = one
                arrays.append(made)
            for _ in range(3):  # spares that were an array's pages before
                at = [address_of(array) for array in arrays]
                before = [array.copy() for array in arrays]
                await them.reduce(arrays, op)
                expected = np.frombuffer(folded(before), np.float32)
                if op != "sum":
                    expected = np.max(before, 0) if op == "max" else expected / np.float32(size)
                assert {array.tobytes() for array in arrays} == {expected.tobytes()}
                assert [address_of(array) for array in arrays] == at

    asyncio.run(run())


@pytest.mark.parametrize("trouble", ["none is left", "the spare is lost", "no room for spares"])
async def test_without_an_exchange_the_result_is_copied(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> bool:
        raise OSError(12, "Cannot allocate memory")

    def one_way(one: int, two: int, size: int) -> bool:
        exchange(one, two, size)
        return False

    exchange = mapping.exchange
    async with Meeting(2) as them:
        arrays = them.arrays()
        if trouble == "no room for spares":
            monkeypatch.setattr("aiops.collective.shared.memory.SPARE_BYTES_MAX", 1000)
        else:
            change = none_left if trouble == "none is left" else one_way
            monkeypatch.setattr("aiops.collective.shared.mapping.exchange", change)
        for _ in range(3):
            expected = folded(arrays)
            await them.reduce(arrays)
            assert {array.tobytes() for array in arrays} == {expected}


async def test_who_still_writes_for_a_call_that_was_given_up_spoils_nothing() -> None:
    async with Meeting(2) as them:
        arrays = them.arrays()
        await them.reduce(arrays)
        before = [array.copy() for array in arrays]
        first, second = them.groups
        count = arrays[0].size
        call = Call("all_reduce", count, ((count,),), op="sum")
        giving_up = asyncio.ensure_future(first.perform(call, arrays[0]))
        await asyncio.sleep(0)
        target = second._memory.of(0, first._own.facts(first.begun).target)
        first.stop(Stopped)
        with pytest.raises(Stopped):
            await giving_up
        second.stop(Stopped)
        await them.form()
        target[:] = 255  # the other one wakes up only now
        assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
        expected = folded(arrays)
        await them.reduce(arrays)
        target[:] = 255
        assert {array.tobytes() for array in arrays} == {expected}
