"""Collectives through shared memory: bits, mismatches, stopping, and memory that is given back.

The members here are tasks of one loop, each with its own mappings of the same pages, as processes
would have; `test_shared_deaths.py` has real ones.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.collective.call import Call
from aiops.collective.shared import Arena, Doorbell, SharedGroup, host_identity, supported
from aiops.collective.shared.board import SMALL_BYTES
from aiops.collective.shared.links import ShareLink
from aiops.collective.shared.pages import Segment, create_segment
from aiops.collective.steps import chunk_spans
from aiops.errors import CollectiveMismatch, DialFailed, JoinTimeout, UsageError

pytestmark = pytest.mark.skipif(not supported(), reason="shared memory needs Linux")

Array = NDArray[Any]
BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
LARGE = SMALL_BYTES // 4 + 3  # does not divide by anything


class Stopped(Exception):
    """What the tests stop a group with."""


class Members:
    """Groups of one loop that have met."""

    def __init__(self, groups: Sequence[SharedGroup], arenas: Sequence[Arena]) -> None:
        self.groups, self.arenas = groups, arenas
        self.lost: list[tuple[int, int]] = []

    async def all(self, call: Call, arrays: Sequence[Array]) -> list[Any]:
        """Let each member perform a call; return results and errors in order."""
        return await asyncio.gather(
            *(group.perform(call, a) for group, a in zip(self.groups, arrays, strict=True)),
            return_exceptions=True,
        )


@asynccontextmanager
async def members(size: int) -> AsyncIterator[Members]:
    bells = [Doorbell() for _ in range(size)]
    arenas = [Arena() for _ in range(size)]
    met = await asyncio.gather(
        *(
            bell.meet("test", i, {j: b.name for j, b in enumerate(bells) if j != i}, 5.0)
            for i, bell in enumerate(bells)
        )
    )
    together = Members([], arenas)

    def lost(index: int, other: int, _: str) -> None:
        together.lost.append((index, other))

    together.groups = [
        SharedGroup(i, size, arenas[i], met[i], partial(lost, i)) for i in range(size)
    ]
    try:
        yield together
    finally:
        for group in together.groups:
            group.close()
        for bell in bells:
            bell.close()


def all_reduce(count: int, op: str = "sum", **more: Any) -> Call:
    return Call("all_reduce", count, ((count,),), op=op, **more)


def numbers(size: int, count: int) -> list[Array]:
    return list(np.random.default_rng(size).standard_normal((size, count)).astype(np.float32))


def left_fold(arrays: Sequence[Array], op: str = "sum") -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    return np.asarray(total / np.float32(len(arrays)) if op == "mean" else total)


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


@pytest.mark.parametrize("count", [10, LARGE])
async def test_who_has_not_voted_stops_at_once_and_keeps_its_input(count: int) -> None:
    """One member never comes. A large call has no vote of the others yet and ends; in a small one
    their coming was the vote, and they wait for the verdict."""
    async with members(3) as them:
        arrays = numbers(3, count)
        before = [array.copy() for array in arrays]
        tasks = [
            asyncio.ensure_future(group.perform(all_reduce(count), array))
            for group, array in zip(them.groups[:2], arrays, strict=False)
        ]
        await turns()
        assert them.groups[0].missing() == [2]
        for group in them.groups[:2]:
            group.stop(Stopped)
        await turns()
        small = count == 10
        assert [task.done() for task in tasks] == [not small] * 2
        assert [group.in_doubt for group in them.groups[:2]] == [small] * 2
        for group in them.groups[:2]:
            group.verdict(0, Stopped)
        for task in tasks:
            with pytest.raises(Stopped):
                await task
        assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
        with pytest.raises(Stopped):  # nor is there anything later
            await them.groups[0].perform(all_reduce(count), arrays[0])


@pytest.mark.parametrize("count", [10, LARGE])
async def test_the_verdict_can_be_that_it_is_in_effect(count: int) -> None:
    """Another member has seen all votes: those that were stopped before they saw them follow."""
    async with members(2) as them:
        arrays = numbers(2, count)
        expected = left_fold(arrays)
        first, second = them.groups
        task = asyncio.ensure_future(first.perform(all_reduce(count), arrays[0]))
        await turns()
        slow = asyncio.ensure_future(second.perform(all_reduce(count), arrays[1]))
        while not first.voted or not second.voted:
            await asyncio.sleep(0)
        first.stop(Stopped)
        await slow
        assert second.done == 1
        first.verdict(1, Stopped)
        await task
        assert first.done == 1
        assert {array.tobytes() for array in arrays} == {expected.tobytes()}


async def test_a_verdict_may_come_before_anybody_waits_for_it() -> None:
    async with members(2) as them:
        array = np.ones(10, np.float32)
        task = asyncio.ensure_future(them.groups[0].perform(all_reduce(10), array))
        await turns()
        them.groups[0].verdict(0, Stopped)
        with pytest.raises(Stopped):
            await task


@pytest.mark.parametrize("count", [10, LARGE])
async def test_cancelling_leaves_the_array_as_it_was(count: int) -> None:
    async with members(2) as them:
        arrays = numbers(2, count)
        before = arrays[0].copy()
        task = asyncio.ensure_future(them.groups[0].perform(all_reduce(count), arrays[0]))
        await turns()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert np.array_equal(arrays[0], before)
        assert them.groups[0].voted == (1 if count == 10 else 0)
        them.groups[0].stop(Stopped)
        them.groups[0].verdict(0, Stopped)  # nobody waits for it


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter", "broadcast"])
async def test_who_is_cancelled_keeps_its_array_until_nobody_reads_it(
    kind: Any, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other member is slow: what the first one does with its array then must not matter."""
    async with members(2) as them:
        first, second = them.groups
        arrays = [arena.empty(LARGE) for arena in them.arenas] if shared else numbers(2, LARGE)
        for array, values in zip(arrays, numbers(2, LARGE), strict=True):
            array[:] = values
        op = "" if kind == "broadcast" else "sum"
        call = Call(kind, LARGE, ((LARGE,),), op=op)
        expected = arrays[0].copy() if kind == "broadcast" else left_fold(arrays)
        go, work = asyncio.Event(), "_reduce" if op else "_copy"
        performed = getattr(second, work)

        async def slowly(*arguments: Any) -> None:
            await go.wait()
            await performed(*arguments)

        monkeypatch.setattr(second, work, slowly)
        slow = asyncio.ensure_future(second.perform(call, arrays[1]))
        task = asyncio.ensure_future(first.perform(call, arrays[0]))
        while not first.voted:
            await asyncio.sleep(0)
        for _ in range(3):
            task.cancel()
            await turns()
        assert not task.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        chunk = slice(0, LARGE // 2) if kind == "reduce_scatter" else slice(None)
        assert np.array_equal(arrays[0][chunk], expected[chunk])
        arrays[0][:] = 7
        await slow
        chunk = slice(LARGE // 2, None) if kind == "reduce_scatter" else slice(None)
        assert np.array_equal(arrays[1][chunk], expected[chunk])
        for array, values in zip(arrays, numbers(2, LARGE), strict=True):
            array[:] = values  # and the group goes on
        await them.all(all_reduce(LARGE), arrays)
        assert np.array_equal(arrays[0], left_fold(numbers(2, LARGE)))


async def test_who_is_cancelled_after_its_vote_hears_the_verdict() -> None:
    async with members(2) as them:
        arrays = numbers(2, LARGE)
        before = arrays[0].copy()
        first, second = them.groups
        go, reduce = asyncio.Event(), second._reduce
        second._reduce = lambda *given: go.wait()  # type: ignore[method-assign,assignment]
        slow = asyncio.ensure_future(second.perform(all_reduce(LARGE), arrays[1]))
        task = asyncio.ensure_future(first.perform(all_reduce(LARGE), arrays[0]))
        while not first.voted:
            await asyncio.sleep(0)
        task.cancel()
        await turns()
        for group in them.groups:
            group.stop(Stopped)
        task.cancel()
        await turns()
        assert not task.done()
        first.verdict(0, Stopped)
        with pytest.raises(Stopped):
            await task
        assert np.array_equal(arrays[0], before)
        go.set()
        second._reduce = reduce  # type: ignore[method-assign]
        with pytest.raises(Stopped):
            await slow


async def test_the_end_of_a_member_is_noticed_by_all_others() -> None:
    async with members(3) as them:
        await them.all(all_reduce(10), numbers(3, 10))
        them.groups[1].close()
        them.groups[1].close()
        while len(them.lost) < 2:
            await asyncio.sleep(0)
        assert sorted(them.lost) == [(0, 1), (2, 1)]


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


async def turns() -> None:
    """Let everything happen that does not wait for anybody, also over sockets."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_what_a_member_handed_over_before_its_death_is_there() -> None:
    """It dies with a wake-up of ours unread: the end is a reset, and comes before what it sent."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    dying, survivor = map(ShareLink, ends)
    fd, array = create_segment(10)
    array[0] = 7
    dying.made(Segment(-3, fd, array.size))
    survivor.wake()
    ends[0].close()
    errors: list[Exception | None] = []
    survivor.open(lambda: None, errors.append)
    while not errors:
        await asyncio.sleep(0)
    assert survivor.segments[-3][0] == 7
    assert "reset" in str(errors[0])
    survivor.close()
    os.close(fd)


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
