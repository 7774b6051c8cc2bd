"""Collectives through shared memory: bits, mismatches, stopping, and memory that is given back.

The members here are tasks of one loop, each with its own mappings of the same pages, as processes
would have; `test_shared_deaths.py` has real ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.collective.call import Call
from aiops.collective.shared import Arena, Doorbell, SharedGroup, host_identity, supported
from aiops.collective.steps import chunk_spans
from aiops.errors import CollectiveMismatch, DialFailed, JoinTimeout, UsageError
from shared_members import (
    LARGE,
    all_reduce,
    left_fold,
    members,
    numbers,
    turns,
)

pytestmark = pytest.mark.skipif(not supported(), reason="shared memory needs Linux")

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@BOTH_LOOPS
@pytest.mark.parametrize("count", [0, 1, 7, LARGE, 300_001])
async def test_all_reduce_has_the_bits_of_the_order_of_the_ranks(count: int) -> None:
    for size in (1, 2, 3, 5):
        async with members(size) as them:
            before = numbers(size, count)
            for op in ("sum", "mean"):
                arrays = [array.copy() for array in before]
                assert await them.all(all_reduce(count, op), arrays) == [0] * size
                assert {a.tobytes() for a in arrays} == {left_fold(before, op).tobytes()}
            pages = [arena.empty(count) for arena in them.arenas]
            for page, array in zip(pages, before, strict=True):
                page[:] = array
            await them.all(all_reduce(count), pages)
            assert {page.tobytes() for page in pages} == {left_fold(before).tobytes()}


@pytest.mark.parametrize("count", [5, LARGE])
async def test_what_is_no_number_travels(count: int) -> None:
    async with members(3) as them:
        arrays = numbers(3, count)
        arrays[1][0], arrays[2][1], arrays[0][2], arrays[1][2] = np.nan, np.inf, np.inf, -np.inf
        await them.all(all_reduce(count), arrays)
        assert len({array.tobytes() for array in arrays}) == 1
        assert np.isnan(arrays[0][[0, 2]]).all()
        assert arrays[0][1] == np.inf


@given(st.integers(1, 4), st.integers(0, 3 * LARGE), st.data())
def test_the_other_collectives(size: int, count: int, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, size - 1))
    op = data.draw(st.sampled_from(["sum", "max", "min"]))

    async def all_of_them() -> None:
        async with members(size) as them:
            before = numbers(size, count)
            spans = chunk_spans(count, size)
            arrays = [array.copy() for array in before]
            call = Call("reduce_scatter", count, ((count,),), op=op)
            assert await them.all(call, arrays) == [0] * size
            expected = getattr(np, op)(before, axis=0)
            for array, span in zip(arrays, spans, strict=True):
                assert np.allclose(array[slice(*span)], expected[slice(*span)], atol=1e-5)

            arrays = [np.full(count, np.nan, np.float32) for _ in range(size)]
            for array, span in zip(arrays, spans, strict=True):
                array[slice(*span)] = before[0][slice(*span)]
            await them.all(Call("all_gather", count, ((1,),)), arrays)
            assert all(np.array_equal(array, before[0]) for array in arrays)

            arrays = [array.copy() for array in before]
            await them.all(Call("broadcast", count, ((count,),), root=root), arrays)
            assert all(np.array_equal(array, before[root]) for array in arrays)
            await them.all(Call("barrier"), [np.empty(0, np.float32)] * size)

    asyncio.run(all_of_them())


async def test_many_calls_of_many_sizes_one_after_the_other() -> None:
    """Boards, results and staged arrays are used again, and grow, while others still read."""
    chance = np.random.default_rng(7)
    sizes = [int(n) for n in chance.choice([1, 1000, LARGE, 40_000, 200_000], 60)]

    async def run(group: SharedGroup, arena: Arena) -> None:
        for number, count in enumerate(sizes):
            array = arena.empty(count) if number % 2 else np.empty(count, np.float32)
            array[:] = number + group.index
            await group.perform(all_reduce(count), array)
            assert np.all(array == 3 * number + 3)
            if (number + group.index) % 4 == 0:
                await asyncio.sleep(0)

    async with members(3) as them:
        await asyncio.gather(*map(run, them.groups, them.arenas))
        assert [group.done for group in them.groups] == [60] * 3


@pytest.mark.parametrize("count", [10, LARGE])
@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            lambda n: all_reduce(n, "max"),
            r'differ in operation: rank 0 .* rank 2 called .*op="max"',
        ),
        (lambda n: all_reduce(n, order="rank"), "differ in order"),
        (lambda n: Call("broadcast", n, ((n,),), root=1), "differ in operation"),
    ],
)
async def test_members_that_differ_hear_it_everywhere(
    count: int, other: Callable[[int], Call], words: str
) -> None:
    async with members(3) as them:
        arrays = numbers(3, count)
        before = [array.copy() for array in arrays]
        calls = [all_reduce(count), all_reduce(count), other(count)]
        errors = await asyncio.gather(
            *(g.perform(c, a) for g, c, a in zip(them.groups, calls, arrays, strict=True)),
            return_exceptions=True,
        )
        for error in errors:
            with pytest.raises(CollectiveMismatch, match=words):
                raise error  # type: ignore[misc]
        assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))


async def test_very_long_lists_of_shapes_are_compared_too() -> None:
    async with members(2) as them:
        shapes = [tuple((n, 2) for n in range(1000)) for _ in range(2)]
        shapes[1] = (*shapes[1][:-1], (7, 7))
        errors = await asyncio.gather(
            *(
                group.perform(Call("all_reduce", 8, mine, op="sum"), np.ones(8, np.float32))
                for group, mine in zip(them.groups, shapes, strict=True)
            ),
            return_exceptions=True,
        )
        assert all(isinstance(error, CollectiveMismatch) for error in errors)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:aiops-ring")


async def test_arrays_give_their_memory_back_here_and_there() -> None:
    async with members(2) as them:
        seen = []
        for _ in range(5):
            pages = [arena.empty(1_000_000) for arena in them.arenas]
            for page in pages:
                page[:] = 1.0
            view = pages[0][5:].reshape(-1, 5)
            await them.all(all_reduce(1_000_000), pages)
            assert np.all(view == 2.0)
            del pages, page, view
            gc.collect()
            await them.all(all_reduce(10), numbers(2, 10))
            await turns()
            seen.append((open_files(), mappings()))
        assert len(set(seen)) == 1, "each time more is left"


async def test_more_arrays_than_a_socket_has_room_for() -> None:
    """Each is told to the others, who may not listen meanwhile."""
    count = 300_001  # so many have a segment of their own
    async with asyncio.timeout(60), members(2) as them:
        arrays = []
        pages = [[arena.empty(count) for arena in them.arenas] for _ in range(300)]
        for arrays in (*pages[:2], *pages[-2:]):
            arrays[0][:], arrays[1][:] = 1.0, 2.0
            assert await them.all(all_reduce(count), arrays) == [0, 0]
            assert all((array == 3.0).all() for array in arrays)
        assert not them.lost
        files = open_files()
        del pages, arrays
        await them.all(all_reduce(10), numbers(2, 10))
        await them.all(all_reduce(count), numbers(2, count))
        await turns()
        assert open_files() < files - 500
        assert all(
            len(link.segments) < 10 for group in them.groups for link in group._links.values()
        )


@pytest.mark.parametrize("kept", [0, 1 << 30])
async def test_pages_for_very_large_ordinary_arrays_are_not_kept(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiops.collective.shared.memory.STAGED_BYTES_KEPT", kept)
    async with members(2) as them:
        for _ in range(2):  # the second time with pages of its own again, or with the same
            arrays = numbers(2, LARGE)
            expected = left_fold(arrays)
            await them.all(all_reduce(LARGE), arrays)
            assert {array.tobytes() for array in arrays} == {expected.tobytes()}
        await them.all(all_reduce(10), numbers(2, 10))
        await turns()
        staged = [group._memory.staged.array.size for group in them.groups]
        assert all(size > 0 for size in staged) == bool(kept)


async def test_room_for_a_very_large_result_goes_with_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiops.collective.shared.memory.STAGED_BYTES_KEPT", 0)
    gc.collect()
    async with members(2) as them:
        seen = []
        for count in (10 * LARGE, LARGE, LARGE, LARGE):
            arrays = numbers(2, count)
            expected = left_fold(arrays)
            await them.all(all_reduce(count), arrays)
            assert {array.tobytes() for array in arrays} == {expected.tobytes()}
            seen.append([group._memory.results.array.size for group in them.groups])
        assert seen[0] > seen[1]
        assert seen[1] == seen[2] == seen[3]
        await turns()
        assert all(
            len(link.segments) <= 3  # the board, that of the result, and one that is about to go
            for group in them.groups
            for link in group._links.values()
        )


async def test_nothing_is_left_of_a_group() -> None:
    gc.collect()
    files, maps = open_files(), mappings()
    async with members(3) as them:
        await them.all(all_reduce(LARGE), numbers(3, LARGE))
    del them
    gc.collect()
    assert (open_files(), mappings()) == (files, maps)


async def test_flags_of_one_are_known_to_all_at_the_same_call() -> None:
    async with members(3) as them:
        for count in (3, LARGE):
            calls = [
                group.perform(all_reduce(count), array, int(group.index == 1))
                for group, array in zip(them.groups, numbers(3, count), strict=True)
            ]
            assert await asyncio.gather(*calls) == [1, 1, 1]
            assert await them.all(all_reduce(count), numbers(3, count)) == [0, 0, 0]


async def test_small_arrays_share_a_segment() -> None:
    arena = Arena()
    arrays = [arena.empty((3, 5)) for _ in range(100)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert all(np.all(array == number) for number, array in enumerate(arrays))
    assert len(arena.segments) == 1
    assert all(array.ctypes.data % 64 == 0 for array in arrays)
    assert arena.locate(np.ones(3)) is None
    with pytest.raises(UsageError, match="numbers and sizes from 0 up"):
        arena.empty(-1)
    with pytest.raises(UsageError, match="object"):
        arena.empty(3, object)


def test_the_segment_of_small_arrays_ends_with_the_arena_and_its_arrays() -> None:
    gc.collect()
    files, mapped = open_files(), mappings()
    arena = Arena()
    array = arena.empty(1000)
    del arena
    gc.collect()
    assert mappings() == mapped + 1
    array[:] = 1.0  # arrays outlive it
    del array
    gc.collect()
    assert (open_files(), mappings()) == (files, mapped)


async def test_strangers_and_absentees() -> None:
    bell, other = Doorbell(), Doorbell()
    with pytest.raises(DialFailed, match="nobody-here"):
        await bell.meet("g", 1, {0: "nobody-here"}, 1.0)
    with pytest.raises(JoinTimeout, match=r"members 1 did not connect .* 0\.05 s"):
        await bell.meet("g", 0, {1: other.name}, 0.05)
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect(f"\0{bell.name}")
    stranger.send(b"let me in")
    stranger.setblocking(False)
    await asyncio.wait_for(asyncio.get_running_loop().sock_recv(stranger, 1), 5.0)
    stranger.close()
    absent, waiting = await asyncio.gather(  # who knows another group's name is not in this one
        bell.meet("one", 0, {1: other.name}, 0.05),
        other.meet("another", 1, {0: bell.name}, 0.05),
        return_exceptions=True,
    )
    assert isinstance(absent, JoinTimeout)
    assert isinstance(waiting, dict)
    ended = asyncio.Event()
    waiting[0].open(lambda: None, lambda _: ended.set())
    bell.close()
    await asyncio.wait_for(ended.wait(), 5.0)
    waiting[0].close()
    bell.close()
    other.close()


def test_the_host_is_known_by_its_kernel() -> None:
    assert host_identity() == host_identity()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in host_identity()
    assert socket.gethostname() not in host_identity()


@pytest.mark.parametrize("count", [1000, LARGE])
async def test_what_members_read_of_each_other_is_counted(count: int) -> None:
    """What one reads, another lends; a large all-reduce moves what a ring would."""
    calls = {
        all_reduce(count): None,
        Call("reduce_scatter", count, ((count,),), op="sum"): None,
        Call("all_gather", count, ((count,),)): 2 * count * 4,  # all parts, at two others
        Call("broadcast", count, ((count,),), root=1): 2 * count * 4,
    }
    async with members(3) as them:
        for call, moved in calls.items():
            before = sum(group.reading.read for group in them.groups)
            results = await them.all(call, numbers(3, count))
            assert not any(isinstance(result, BaseException) for result in results), results
            reading = [group.reading for group in them.groups]
            total = sum(one.read for one in reading) - before
            assert sum(one.lent for one in reading) == before + total
            if call.kind == "all_reduce" and count == LARGE:
                moved = 2 * 2 * count * 4
            assert moved in (None, total), call
