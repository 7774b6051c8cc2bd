"""A ring in one process: what it computes, what it refuses, and that it is all or nothing."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.collective import InProcessMember, InProcessRing
from aiops.collective.call import Call
from aiops.collective.counts import all_reduce_counts
from aiops.collective.schedule import ALGORITHMS, Algorithm
from aiops.collective.steps import chunk_spans
from aiops.errors import (
    CollectiveAborted,
    CollectiveMismatch,
    CollectiveTimeout,
    UsageError,
)

Array = NDArray[Any]
Work = Callable[[InProcessMember], Coroutine[Any, Any, Any]]
GROUPS = {p: (tuple(range(p // 2)), tuple(range(p // 2, p))) for p in range(2, 9)}


def numbers(world_size: int, shape: int | tuple[int, ...], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    size = (shape,) if isinstance(shape, int) else shape
    return list(rng.standard_normal((world_size, *size)).astype(np.float32))


def bsp_mean(arrays: list[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        np.add(total, array, out=total)
    return np.asarray(total / np.float32(len(arrays)))


async def reduce_mine(
    member: InProcessMember, *, arrays: list[Array], algorithm: Algorithm
) -> None:
    await member.all_reduce(arrays[member.rank], algorithm=algorithm)


async def everybody(ring: InProcessRing, work: Work) -> list[Any]:
    """Run work once per rank, at the same time; return results and errors in rank order."""
    members = [ring.member(rank) for rank in range(ring.world_size)]
    return await asyncio.gather(*(work(member) for member in members), return_exceptions=True)


@given(st.integers(1, 6), st.integers(0, 50), st.sampled_from(["sum", "mean", "max", "min"]))
def test_all_reduce_equals_numpy(world_size: int, count: int, op: Any) -> None:
    before = numbers(world_size, count)
    arrays = [array.copy() for array in before]
    ring = InProcessRing(world_size)
    asyncio.run(everybody(ring, lambda m: m.all_reduce(arrays[m.rank], op)))
    expected = getattr(np, op)(np.array(before, np.float64), axis=0)
    for array in arrays:
        assert array.tobytes() == arrays[0].tobytes()
        assert np.allclose(array, expected, atol=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_what_was_sent_equals_the_formula_and_the_bits_are_repeated(
    algorithm: Algorithm,
) -> None:
    """A large array is performed in parts by several threads; bits and messages do not change."""
    for world_size, count in ((4, 300_001), (3, 7), (5, 1000)):
        before = numbers(world_size, count)
        groups = GROUPS[world_size]
        results = []
        ring = InProcessRing(world_size, trace=True, groups=groups)
        again = InProcessRing(world_size, groups=[list(group) for group in groups])
        for each in (ring, again):
            arrays = [array.copy() for array in before]
            await everybody(each, partial(reduce_mine, arrays=arrays, algorithm=algorithm))
            results += arrays
        assert len({array.tobytes() for array in results}) == 1
        sent: Counter[int] = Counter()
        for message in ring.trace:
            sent[message.sender] += message.end - message.begin
        for rank in range(world_size):
            counts = all_reduce_counts(algorithm, rank, world_size, count, groups)
            assert sent[rank] == counts.elements
            assert counts.messages == sum(message.sender == rank for message in ring.trace)


async def test_a_trace_reads_aloud() -> None:
    ring = InProcessRing(2, trace=True)
    await everybody(ring, lambda m: m.all_reduce(np.ones(4, np.float32), algorithm="ring"))
    assert [str(message) for message in ring.trace] == [
        "step 0: rank 1 to rank 0, elements [0, 2), combined",
        "step 0: rank 0 to rank 1, elements [2, 4), combined",
        "step 1: rank 1 to rank 0, elements [2, 4)",
        "step 1: rank 0 to rank 1, elements [0, 2)",
    ]


@pytest.mark.parametrize("count", [5, 400_000])
async def test_the_order_of_the_ranks_gives_the_bits_of_a_round_of_bsp(count: int) -> None:
    before = numbers(5, count)
    arrays = [array.copy() for array in before]
    ring = InProcessRing(5)
    await everybody(ring, lambda m: m.all_reduce(arrays[m.rank], "mean", order="rank"))
    assert all(array.tobytes() == bsp_mean(before).tobytes() for array in arrays)

    chunks = await everybody(ring, lambda m: m.reduce_scatter(before[m.rank], "mean", order="rank"))
    assert np.concatenate(chunks).tobytes() == bsp_mean(before).tobytes()


@given(st.integers(1, 6), st.integers(0, 20), st.data())
def test_the_other_collectives(world_size: int, count: int, data: st.DataObject) -> None:
    before = numbers(world_size, (2, count))
    root = data.draw(st.integers(0, world_size - 1))

    async def all_of_them() -> None:
        ring = InProcessRing(world_size)
        chunks = await everybody(ring, lambda m: m.reduce_scatter(before[m.rank]))
        expected = np.sum(before, axis=0).reshape(-1)
        for chunk, span in zip(chunks, chunk_spans(2 * count, world_size), strict=True):
            assert np.allclose(chunk, expected[slice(*span)], atol=1e-5)

        stacked = await everybody(ring, lambda m: m.all_gather(before[m.rank]))
        assert all(np.array_equal(array, np.array(before)) for array in stacked)

        arrays = [array.copy() for array in before]
        await everybody(ring, lambda m: m.broadcast(arrays[m.rank], root=root))
        assert all(np.array_equal(array, before[root]) for array in arrays)

    asyncio.run(all_of_them())


async def test_nobody_passes_a_barrier_before_the_last_has_come() -> None:
    ring, passed = InProcessRing(3), []

    async def come(member: InProcessMember) -> None:
        await member.barrier()
        passed.append(member.rank)

    early = asyncio.gather(*(come(ring.member(rank)) for rank in (0, 2)))
    await asyncio.sleep(0)
    assert not passed
    await come(ring.member(1))
    await early
    assert sorted(passed) == [0, 1, 2]


def test_ranks_may_be_threads_with_a_loop_each() -> None:
    arrays = numbers(4, 200_000)
    expected = np.sum(arrays, axis=0)
    ring = InProcessRing(4)

    def train(rank: int) -> None:
        async def work() -> None:
            for _ in range(3):
                await ring.member(rank).all_reduce(arrays[rank], "mean")
            await ring.member(rank).all_reduce(arrays[rank], "sum")

        asyncio.run(work())

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.allclose(array, expected, atol=1e-4) for array in arrays)


async def test_calls_begun_together_keep_their_order_and_overlap_with_work() -> None:
    before = numbers(3, 10)
    ring = InProcessRing(3)

    async def train(member: InProcessMember) -> tuple[Array, Array]:
        first, second = before[member.rank].copy(), before[member.rank].copy()
        handle = member.all_reduce_async(first, "sum")
        await member.all_reduce(second, "max")  # begun later, performed later
        await handle
        return first, second

    for first, second in await everybody(ring, train):
        assert np.allclose(first, np.sum(before, axis=0), atol=1e-5)
        assert np.array_equal(second, np.max(before, axis=0))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([np.float32, np.float64])), max_size=6),
    st.integers(4, 64),
)
def test_a_list_is_reduced_as_its_arrays_would_be(
    kinds: list[tuple[int, Any]], bucket_bytes: int
) -> None:
    def arrays(rank: int) -> list[Array]:
        made = [np.full((2, n), rank + 1, dtype) for n, dtype in kinds]
        return [array.T if index % 2 else array for index, array in enumerate(made)]

    async def train(member: InProcessMember) -> list[Array]:
        mine = arrays(member.rank)
        await member.all_reduce_async(mine, "sum", bucket_bytes=bucket_bytes)
        return mine

    for mine in asyncio.run(everybody(InProcessRing(3), train)):
        assert all(np.all(array == 6) for array in mine)


async def test_the_time_of_a_call_is_that_of_all_its_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: list[float] = []
    loop = asyncio.get_running_loop()

    async def perform(call: Call, flat: Array, timeout_s: float) -> None:
        times.append(timeout_s)
        now = loop.time() + 20.0
        monkeypatch.setattr(loop, "time", lambda: now)

    member = InProcessRing(1).member(0)
    monkeypatch.setattr(member, "_perform", perform)
    await member.all_reduce_async(numbers(4, 100), bucket_bytes=1, timeout_s=50.0)
    assert times[:3] == pytest.approx([50.0, 30.0, 10.0], abs=1.0)
    assert times[3] == 1e-9


async def test_a_list_that_is_given_no_time_is_refused_and_the_next_call_goes_on() -> None:
    member = InProcessRing(1).member(0)
    for wrong in (0, -1.0, float("nan"), "soon"):
        with pytest.raises(UsageError, match="timeout_s is"):
            await member.all_reduce(numbers(2, 10), timeout_s=wrong)  # type: ignore[arg-type]
        await asyncio.wait_for(member.all_reduce(numbers(2, 10), timeout_s=10**400), 60.0)


@pytest.mark.parametrize(
    ("odd_one", "words"),
    [
        (lambda m, a: m.all_reduce(np.ones(4, np.float32)), "differ in shape: rank 0 called all_"),
        (lambda m, a: m.all_reduce(a.astype(np.float64)), "differ in dtype"),
        (lambda m, a: m.all_reduce(a, "max"), r'op="max"'),
        (lambda m, a: m.all_reduce(a, order="rank"), 'rank 2 called .* order="rank"'),
        (lambda m, a: m.barrier(), r"differ in operation: rank 0 called all_reduce.*barrier\(\)"),
        (lambda m, a: m.broadcast(a, root=1), "differ in operation"),
        (lambda m, a: m.all_reduce(a, algorithm="tree"), "differ in algorithm"),
    ],
)
async def test_members_that_differ_hear_it_on_every_rank(odd_one: Any, words: str) -> None:
    ring = InProcessRing(3)
    arrays = numbers(3, 5)
    before = [array.copy() for array in arrays]

    def work(member: InProcessMember) -> Coroutine[Any, Any, None]:
        array = arrays[member.rank]
        if member.rank == 2:
            return odd_one(member, array)  # type: ignore[no-any-return]
        return member.all_reduce(array, algorithm="ring")

    errors = await everybody(ring, work)
    for error in errors:
        with pytest.raises(CollectiveMismatch, match=words):
            raise error
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
    assert await everybody(ring, lambda m: m.barrier()) == [None] * 3


async def test_two_ranks_cannot_give_the_same_memory() -> None:
    ring, shared = InProcessRing(2), np.ones(6, np.float32)
    errors = await everybody(ring, lambda m: m.all_reduce(shared[m.rank : m.rank + 4]))
    assert all(isinstance(error, CollectiveMismatch) for error in errors)
    assert "the same memory" in str(errors[0])
    assert np.all(shared == 1)


async def test_who_leaves_by_an_error_ends_the_call_for_all() -> None:
    ring = InProcessRing(3)
    arrays = numbers(3, 5)
    before = [array.copy() for array in arrays]

    async def train(member: InProcessMember) -> None:
        async with member:
            if member.rank == 1:
                raise RuntimeError("no more data")
            await member.all_reduce(arrays[member.rank])

    errors = await everybody(ring, train)
    assert isinstance(errors[1], RuntimeError)
    for error in (errors[0], errors[2]):
        assert isinstance(error, CollectiveAborted)
        assert "rank 1 has left the ring: RuntimeError: no more data" in str(error)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
    for error in await everybody(ring, lambda m: m.barrier()):  # also for whoever comes later
        assert isinstance(error, CollectiveAborted)
        assert error.cause == "left"
    smaller = InProcessRing(2)
    await everybody(smaller, lambda m: m.all_reduce(arrays[m.rank]))
    assert np.array_equal(arrays[0], before[0] + before[1])


async def test_who_does_not_come_is_named() -> None:
    ring = InProcessRing(3, timeout_s=30)
    arrays = numbers(3, 5)
    waiting = asyncio.ensure_future(ring.member(2).all_reduce(arrays[2]))
    await asyncio.sleep(0)
    with pytest.raises(CollectiveTimeout, match=r"rank 1 did not come within 0\.01 s of rank 0"):
        await ring.member(0).all_reduce(arrays[0], timeout_s=0.01)
    with pytest.raises(CollectiveAborted):
        await waiting
    with pytest.raises(CollectiveAborted, match="rank 1 did not come"):  # it comes at last
        await ring.member(1).all_reduce(arrays[1])
    assert await everybody(ring, lambda m: m.barrier()) == [None] * 3


@pytest.mark.parametrize("turns", range(4))
async def test_cancelling_ends_the_call_for_all_and_changes_nothing(turns: int) -> None:
    ring = InProcessRing(2)
    arrays = numbers(2, 5)
    before = [array.copy() for array in arrays]
    first = ring.member(0).all_reduce_async(arrays[0])
    second = ring.member(0).all_reduce_async(arrays[0])
    for _ in range(turns):
        await asyncio.sleep(0)
    second.cancel()  # while it waits for its turn
    first.cancel()
    for task in (first, second):
        with pytest.raises(asyncio.CancelledError):
            await task
    for _ in range(2):
        with pytest.raises(CollectiveAborted, match="rank 0 cancelled its call"):
            await ring.member(1).all_reduce(arrays[1])
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))
    assert await everybody(ring, lambda m: m.barrier()) == [None] * 2


async def test_cancelling_what_is_under_way_waits_for_its_end() -> None:
    """The threads write into the arrays: nobody gets them back before that is over."""
    ring = InProcessRing(2)
    arrays = [np.full(1_000_000, rank + 1, np.float32) for rank in range(2)]
    tasks = [ring.member(rank).all_reduce_async(arrays[rank]) for rank in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # both have come
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert {float(array[0]) for array in arrays} <= {3.0, 1.0, 2.0}
    assert all(np.all(array == array[0]) for array in arrays)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m.all_reduce(np.ones(3, np.int64)), "float32 and float64 can be moved"),
        (lambda m: m.all_reduce([1.0]), "an array of numpy is needed, not float"),
        (lambda m: m.all_reduce(np.ones(3, np.float32), "product"), "sum, mean, max, min"),
        (lambda m: m.all_reduce(np.ones(3, np.float32), order="any order"), "order is 'any order'"),
        (lambda m: m.all_reduce(np.ones(3, np.float32), algorithm="hierarchical"), "needs groups="),
        (lambda m: m.all_reduce(np.ones(3, np.float32), algorithm="bcube"), "no all-reduce by"),
        (
            lambda m: m.all_reduce(np.ones(3, np.float32), order="rank", algorithm="ring"),
            "leave it out",
        ),
        (lambda m: m.broadcast(np.ones(3, np.float32), root=2), "ranks are 0 to 1"),
        (lambda m: m.all_reduce(np.broadcast_to(np.float32(1), (3,))), "read-only"),
    ],
)
async def test_a_wrong_call_is_refused_before_anybody_is_asked(call: Any, words: str) -> None:
    ring = InProcessRing(2)
    with pytest.raises(UsageError, match=words):
        await call(ring.member(0))
    assert await everybody(ring, lambda m: m.barrier()) == [None] * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: InProcessRing(0), "from 1 to 1024"),
        (lambda: InProcessRing("2"), "world_size is '2'; .* whole number"),  # type: ignore[arg-type]
        (lambda: InProcessRing(2.5), "world_size is 2.5; .* whole number"),  # type: ignore[arg-type]
        (lambda: InProcessRing(2, timeout_s=0), "timeout_s is 0; .* above 0"),
        (lambda: InProcessRing(2).member(2), "ranks are 0 to 1"),
        (lambda: InProcessRing(2).member("0"), "rank is '0'"),  # type: ignore[arg-type]
        (lambda: InProcessRing(1).member(0).explain("sum", 5), "there are: all_reduce"),
        (lambda: InProcessRing(1).member(0).explain("all_reduce", -5), "count is -5"),
        (lambda: InProcessRing(1).member(0).empty("x"), "shape is 'x'"),  # type: ignore[arg-type]
        (lambda: InProcessRing(1).member(0).empty(-1), "sizes from 0 up"),
        (lambda: InProcessRing(1).member(0).empty(1, object), "dtype <class 'object'>"),
    ],
)
def test_what_cannot_be_is_refused_in_words(call: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call()


def test_the_reason_for_an_algorithm_can_be_printed() -> None:
    choice = InProcessRing(4).member(0).explain("all_reduce", 16)
    assert choice.algorithm == "chain"
    assert str(choice).startswith("all_reduce of 64 bytes over 4 ranks: chain, for it is predicted")


async def test_auto_is_settled_once_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """As calls of a training are the same in every step; what is remembered has a limit."""
    asked: list[int] = []
    choose = InProcessMember._choose

    def counted(member: InProcessMember, kind: str, count: int, item_bytes: int) -> Algorithm:
        asked.append(count)
        return choose(member, kind, count, item_bytes)

    monkeypatch.setattr(InProcessMember, "_choose", counted)
    monkeypatch.setattr("aiops.collective.member.CHOICES_MAX", 2)
    member = InProcessRing(1).member(0)
    for count in (3, 3, 4, 3, 5, 3):
        await member.all_reduce(np.ones(count, np.float32))
        assert len(member._choices) <= 2
    assert asked == [3, 4, 5, 3]


@pytest.mark.parametrize(
    "groups",
    [
        5,
        "0123",
        [0, 1, 2, 3],
        [[0, 1], [2]],
        [[0, 1], [1, 2, 3]],
        [[0, 1, 2, 3], []],
        [[0.0, 1, 2, 3]],
    ],
)
def test_groups_that_hold_not_each_rank_once_are_refused(groups: Any) -> None:
    with pytest.raises(UsageError, match=r"InProcessRing: groups is .*in one of them, such as"):
        InProcessRing(4, groups=groups)
