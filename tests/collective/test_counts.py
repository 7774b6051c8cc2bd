"""Counted messages and elements of executed schedules equal the formulas, exactly."""

from __future__ import annotations

from math import ceil, log2

import numpy as np
import pytest

from aiops.collective import schedule
from aiops.collective.counts import all_reduce_counts
from aiops.collective.schedule import ALGORITHMS, Algorithm, Groups
from schedule_runs import ScheduleRun

WORLD_SIZES = (2, 3, 4, 5, 7, 8)
COUNTS = (0, 1, 7, 1000, 1_000_000)


def groups_of(world_size: int) -> Groups:
    """Pairs where that works, else two groups of different sizes."""
    if world_size % 2 == 0:
        return tuple((i, i + 1) for i in range(0, world_size, 2))
    return (tuple(range(world_size // 2)), tuple(range(world_size // 2, world_size)))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("world_size", [1, *WORLD_SIZES])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_sent_equals_the_formula(algorithm: Algorithm, world_size: int, count: int) -> None:
    groups = groups_of(world_size) if world_size > 1 else ((0,),)
    ranks = range(world_size)
    run = ScheduleRun(
        [schedule.all_reduce(algorithm, rank, world_size, count, groups) for rank in ranks],
        [np.ones(count, np.float32) for _ in ranks],
    )
    for rank in ranks:
        counts = all_reduce_counts(algorithm, rank, world_size, count, groups)
        assert run.messages[rank] == counts.messages
        assert run.elements[rank] == counts.elements
        assert run.rounds == counts.rounds


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_formulas_are_those_of_the_literature(world_size: int, count: int) -> None:
    """What the tables of the papers say, up to the rounding of a chunk to whole elements."""
    chunk = ceil(count / world_size)
    levels = int(log2(world_size))
    power_of_two = world_size == 2**levels
    fold = 0 if power_of_two else 2
    for rank in range(world_size):
        ring = all_reduce_counts("ring", rank, world_size, count)
        assert ring.messages == ring.rounds == 2 * (world_size - 1)
        assert abs(ring.elements - 2 * count * (world_size - 1) / world_size) <= 2 * chunk
        assert abs(ring.elements - 2 * count * (world_size - 1) / world_size) < 2

        doubling = all_reduce_counts("recursive-doubling", rank, world_size, count)
        assert doubling.rounds == levels + fold
        halving = all_reduce_counts("halving-doubling", rank, world_size, count)
        assert halving.rounds == 2 * levels + fold
        if power_of_two:
            assert (doubling.messages, doubling.elements) == (levels, levels * count)
            assert halving.messages == 2 * levels
            rounding = 1 + levels  # a chunk kept, and a block of chunks at each level
            expected = 2 * count * (world_size - 1) / world_size
            assert abs(halving.elements - expected) <= rounding

        tree = all_reduce_counts("tree", rank, world_size, count)
        assert tree.rounds == 2 * ceil(log2(world_size))
        assert tree.elements <= count * ceil(log2(world_size))


def test_groups_spare_the_links_between_hosts() -> None:
    """Of four hosts with four ranks, each rank sends 2(n/m)(g-1)/g between hosts, not 2n(p-1)/p."""
    groups = tuple(tuple(range(i, i + 4)) for i in range(0, 16, 4))
    count = 16_000
    steps = schedule.all_reduce("hierarchical", 5, 16, count, groups)
    sends = [step.send for step in steps if step.send is not None]
    between = sum(send.elements for send in sends if send.peer not in groups[1])
    inside = sum(send.elements for send in sends if send.peer in groups[1])
    assert between == 2 * (count // 4) * 3 // 4
    assert inside == 2 * count * 3 // 4
    assert all_reduce_counts("hierarchical", 5, 16, count, groups).messages == 2 * 3 + 2 * 3
