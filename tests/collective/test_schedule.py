"""Schedules: what they compute, and that every length and number of ranks is one of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.collective import schedule
from aiops.collective.schedule import ALGORITHMS, Algorithm, Groups
from aiops.collective.steps import Schedule, chunk_spans
from schedule_runs import ScheduleRun

Array = NDArray[Any]
FLOAT_EPS = float(np.finfo(np.float32).eps)

world_sizes = st.integers(1, 9)
counts = st.integers(0, 40)
algorithms = st.sampled_from(ALGORITHMS)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[int, Groups]:
    """A number of ranks, and which of them share a host: equal groups or not, in any order."""
    world_size = draw(world_sizes)
    ranks = draw(st.permutations(range(world_size)))
    divisors = [part for part in range(1, world_size + 1) if world_size % part == 0]
    if draw(st.booleans()):
        part = draw(st.sampled_from(divisors))
        cuts = list(range(part, world_size, part))
    else:
        cuts = sorted(draw(st.sets(st.integers(1, max(1, world_size - 1)), max_size=3)))
    bounds = sorted({0, *cuts, world_size})
    groups = [tuple(ranks[a:b]) for a, b in pairwise(bounds)]
    return world_size, tuple(groups)


def inputs(world_size: int, count: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-3, 4, (world_size, count))
    return list((rng.standard_normal((world_size, count)) * scale).astype(np.float32))


def schedules(algorithm: Algorithm, world_size: int, count: int, groups: Groups) -> list[Schedule]:
    return [
        schedule.all_reduce(algorithm, rank, world_size, count, groups)
        for rank in range(world_size)
    ]


def left_fold(arrays: list[Array]) -> Array:
    total = arrays[0].copy()
    for array in arrays[1:]:
        total = total + array
    return total


@given(algorithms, worlds(), counts, st.integers(0, 1000))
def test_each_algorithm_sums_and_all_ranks_have_the_same_bits(
    algorithm: Algorithm, world: tuple[int, Groups], count: int, seed: int
) -> None:
    world_size, groups = world
    before = inputs(world_size, count, seed)
    arrays = [array.copy() for array in before]
    ScheduleRun(schedules(algorithm, world_size, count, groups), arrays)

    exact = np.sum([array.astype(np.float64) for array in before], axis=0)
    bound = world_size * FLOAT_EPS * np.sum(np.abs(before), axis=0, dtype=np.float64)
    for array in arrays:
        assert array.tobytes() == arrays[0].tobytes()
        assert np.all(np.abs(array - exact) <= bound)


@given(algorithms, worlds(), counts, st.data())
def test_what_is_no_number_travels_with_the_same_bits_to_all(
    algorithm: Algorithm, world: tuple[int, Groups], count: int, data: st.DataObject
) -> None:
    """Also NaNs of several payloads, whose survivor depends on the order of the operands."""
    world_size, groups = world
    arrays = inputs(world_size, count)
    patterns = [0x7FC00001, 0x7FC12345, 0xFFC00002, 0x7F800000, 0xFF800000, 0x80000000]
    for array in arrays:
        for at in data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=count and 3)):
            array.view(np.uint32)[at] = data.draw(st.sampled_from(patterns))
    with np.errstate(invalid="ignore"):
        expected = left_fold(arrays)
        ScheduleRun(schedules(algorithm, world_size, count, groups), arrays)
    for array in arrays:
        assert array.tobytes() == arrays[0].tobytes()
        assert np.array_equal(np.isnan(array), np.isnan(expected))
        assert np.array_equal(np.isinf(array), np.isinf(expected))


@pytest.mark.parametrize("operation", [np.maximum, np.minimum])
@given(algorithms, worlds(), counts, st.integers(0, 1000))
def test_the_zeros_of_both_signs_are_the_same_on_all_ranks(
    operation: Any, algorithm: Algorithm, world: tuple[int, Groups], count: int, seed: int
) -> None:
    world_size, groups = world
    rng = np.random.default_rng(seed)
    arrays = list(rng.choice(np.array([0.0, -0.0, 1.0], np.float32), (world_size, count)))
    expected = operation.reduce(arrays)
    ScheduleRun(schedules(algorithm, world_size, count, groups), arrays, operation)
    for array in arrays:
        assert array.tobytes() == arrays[0].tobytes()
        assert np.array_equal(array, expected)


@given(world_sizes, counts, st.integers(0, 1000))
def test_the_chain_is_a_left_fold_in_the_order_of_the_ranks(
    world_size: int, count: int, seed: int
) -> None:
    arrays = inputs(world_size, count, seed)
    expected = left_fold(arrays).tobytes()
    scattered, reduced = [a.copy() for a in arrays], [a.copy() for a in arrays]
    ranks = range(world_size)
    ScheduleRun([schedule.all_reduce("chain", r, world_size, count) for r in ranks], arrays)
    assert all(array.tobytes() == expected for array in arrays)

    ScheduleRun([schedule.reduce_scatter("chain", r, world_size, count) for r in ranks], scattered)
    spans = chunk_spans(count, world_size)
    parts = [array[slice(*span)] for array, span in zip(scattered, spans, strict=True)]
    assert np.concatenate(parts).tobytes() == expected

    root = seed % world_size
    ScheduleRun([schedule.reduce("chain", r, world_size, count, root) for r in ranks], reduced)
    assert reduced[root].tobytes() == expected


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "chain"])
@given(world_sizes, counts, st.integers(0, 1000))
def test_reduce_scatter_leaves_chunk_i_at_rank_i(
    algorithm: Algorithm, world_size: int, count: int, seed: int
) -> None:
    arrays = [np.rint(array) for array in inputs(world_size, count, seed)]
    expected = np.sum(arrays, axis=0)
    ranks = range(world_size)
    ScheduleRun([schedule.reduce_scatter(algorithm, r, world_size, count) for r in ranks], arrays)
    for array, (begin, end) in zip(arrays, chunk_spans(count, world_size), strict=True):
        assert np.allclose(array[begin:end], expected[begin:end])


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling"])
@given(world_sizes, counts)
def test_all_gather_gives_everybody_all_chunks(
    algorithm: Algorithm, world_size: int, count: int
) -> None:
    expected = np.arange(count, dtype=np.float32)
    arrays = [np.full(count, -1.0, np.float32) for _ in range(world_size)]
    for array, span in zip(arrays, chunk_spans(count, world_size), strict=True):
        array[slice(*span)] = expected[slice(*span)]
    ScheduleRun(
        [schedule.all_gather(algorithm, r, world_size, count) for r in range(world_size)], arrays
    )
    assert all(np.array_equal(array, expected) for array in arrays)


@pytest.mark.parametrize("algorithm", ["tree", "chain"])
@given(world_sizes, counts, st.data())
def test_broadcast_and_reduce_know_their_root(
    algorithm: Algorithm, world_size: int, count: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, world_size - 1))
    ranks = range(world_size)
    arrays = inputs(world_size, count)
    expected = arrays[root].copy()
    ScheduleRun([schedule.broadcast(algorithm, r, world_size, count, root) for r in ranks], arrays)
    assert all(np.array_equal(array, expected) for array in arrays)
    run = ScheduleRun(
        [schedule.reduce(algorithm, r, world_size, count, root) for r in ranks], arrays
    )
    assert np.allclose(run.arrays[root], expected * np.float32(world_size))


@given(st.integers(1, 20))
def test_nobody_passes_a_barrier_before_everybody_has_come(world_size: int) -> None:
    """Each rank hears, over any number of others, of every rank's arrival."""
    steps = [schedule.barrier(rank, world_size) for rank in range(world_size)]
    known = [{rank} for rank in range(world_size)]
    for at in range(len(steps[0])):
        sources = [step[at].receive for step in steps]
        heard = [known[source.peer] for source in sources if source is not None]
        known = [mine | news for mine, news in zip(known, heard, strict=True)]
    assert all(ranks == set(range(world_size)) for ranks in known)
    ScheduleRun(steps, [np.empty(0, np.float32)] * world_size)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: schedule.all_reduce("ring", 3, 3, 1), "rank is 3, but world_size is 3"),
        (lambda: schedule.all_reduce("ring", 0, 1, -1), "cannot be negative"),
        (lambda: schedule.all_reduce("hierarchical", 0, 2, 1), "needs groups="),
        (
            lambda: schedule.all_reduce("hierarchical", 0, 2, 1, ((0,),)),
            "each of the ranks 0 to 1 once",
        ),
        (lambda: schedule.broadcast("tree", 0, 2, 1, root=2), "root is 2, but the ranks are 0 to"),
        (lambda: schedule.all_gather("tree", 0, 2, 1), "there are: ring, halving-doubling"),
        (lambda: schedule.reduce("ring", 0, 2, 1), "there are: tree, chain"),
        (lambda: schedule.reduce_scatter("tree", 0, 2, 1), "no reduce-scatter by 'tree'"),
        (lambda: schedule.broadcast("ring", 0, 2, 1), "no broadcast by 'ring'"),
    ],
)
def test_what_cannot_be_is_said_in_words(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
