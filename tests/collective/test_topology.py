"""The order of a ring: exact where it says so, never worse than the ranks, one for all members."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.collective import schedule
from aiops.collective.steps import Combine
from aiops.collective.topology import (
    EXACT_MAX,
    WORTH_IT,
    in_order,
    pairings,
    ring_order,
    slowest_link,
)

Matrix = NDArray[Any]


def matrices(least: int, most: int) -> st.SearchStrategy[Matrix]:
    def of(size: int) -> st.SearchStrategy[Matrix]:
        cell = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0])
        return st.lists(cell, min_size=size * size, max_size=size * size).map(
            lambda cells: np.array(cells).reshape(size, size)
        )

    return st.integers(least, most).flatmap(of)


def both_ways(bandwidth: Matrix) -> Matrix:
    return np.asarray(np.minimum(bandwidth, bandwidth.T))


@given(matrices(1, 6))
def test_no_other_order_has_a_faster_slowest_link(bandwidth: Matrix) -> None:
    size = len(bandwidth)
    order = ring_order(bandwidth)
    assert sorted(order) == list(range(size))
    assert order[0] == 0
    links = both_ways(bandwidth)
    best = max(slowest_link(links, (0, *rest)) for rest in permutations(range(1, size)))
    found = slowest_link(links, order)
    if order == tuple(range(size)):
        assert best < WORTH_IT * found or size < 4
    else:
        assert found == best
    assert ring_order(bandwidth.T) == order  # what a member measures of a link counts for both


@given(matrices(EXACT_MAX + 1, EXACT_MAX + 6))
def test_many_members_are_never_worse_off_than_in_the_order_of_the_ranks(bandwidth: Matrix) -> None:
    order = ring_order(bandwidth)
    assert sorted(order) == list(range(len(bandwidth)))
    assert order[0] == 0
    links = both_ways(bandwidth)
    ranks = tuple(range(len(bandwidth)))
    assert order == ranks or slowest_link(links, order) >= WORTH_IT * slowest_link(links, ranks)


@given(st.sampled_from([6, EXACT_MAX, EXACT_MAX + 8]), st.randoms(use_true_random=False))
def test_a_hidden_ring_of_fast_links_is_found(size: int, chance: Any) -> None:
    hidden = list(range(size))
    chance.shuffle(hidden)
    bandwidth = np.ones((size, size))
    for a, b in zip(hidden, hidden[1:] + hidden[:1], strict=True):
        bandwidth[a, b] = bandwidth[b, a] = 10.0
    assert slowest_link(bandwidth, ring_order(bandwidth)) == 10.0


def test_racks_are_left_and_entered_once_where_links_between_them_differ() -> None:
    """Even members are in one rack, odd ones in another, and of the links between only two are
    good: the order of the ranks would cross at every step."""
    size = 8
    bandwidth = np.fromfunction(lambda i, j: np.where((i + j) % 2, 1.0, 100.0), (size, size))
    for a, b in ((2, 5), (6, 1)):
        bandwidth[a, b] = bandwidth[b, a] = 40.0
    order = ring_order(bandwidth)
    crossings = sum((a + b) % 2 for a, b in zip(order, (*order[1:], order[0]), strict=True))
    assert crossings == 2
    assert slowest_link(bandwidth, order) == 40.0
    assert slowest_link(bandwidth, range(size)) == 1.0


def test_the_order_that_is_usual_stays_where_none_is_a_quarter_better() -> None:
    """Even members on one host, odd ones on another: however they follow each other, one link
    between hosts is in it, but who goes by the usual order leaves each host once."""
    bandwidth = np.fromfunction(lambda i, j: np.where((i + j) % 2, 10.0, 500.0), (4, 4))
    assert ring_order(bandwidth, (0, 2, 1, 3)) == (0, 2, 1, 3)
    assert ring_order(bandwidth[:3, :3], (0, 2, 1)) == (0, 2, 1)
    bandwidth[0, 3] = bandwidth[3, 0] = 1.0
    assert slowest_link(bandwidth, ring_order(bandwidth, (0, 2, 1, 3))) == 10.0


def time_of_ring(order: Sequence[int], bandwidth: Matrix, count: int) -> float:
    """Seconds of an all-reduce of so many elements; a link carries one message after the other."""
    size = len(order)
    ready = [0.0] * size
    free = np.zeros((size, size))
    for step in range(2 * (size - 1)):
        came = [0.0] * size
        for place, member in enumerate(order):
            send = in_order(schedule.all_reduce("ring", place, size, count), order)[step].send
            assert send is not None
            begun = max(ready[member], free[member, send.peer])
            free[member, send.peer] = begun + send.elements / bandwidth[member, send.peer]
            came[send.peer] = free[member, send.peer]
        ready = [max(times) for times in zip(ready, came, strict=True)]
    return max(ready)


def test_the_order_saves_the_time_that_the_slow_links_take() -> None:
    bandwidth = np.full((6, 6), 1000.0)
    for a, b in ((0, 1), (2, 3)):
        bandwidth[a, b] = bandwidth[b, a] = 50.0
    order = ring_order(bandwidth)
    by_rank = time_of_ring(range(6), bandwidth, 6000)
    assert by_rank == pytest.approx(10 * 1000 / 50)
    assert time_of_ring(order, bandwidth, 6000) == pytest.approx(10 * 1000 / 1000)


@given(st.integers(2, 7), st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_schedule_in_another_order_gives_the_same_sum_everywhere(
    size: int, count: int, chance: Any
) -> None:
    order = list(range(size))
    chance.shuffle(order)
    place = {member: at for at, member in enumerate(order)}
    steps = [
        in_order(schedule.all_reduce("ring", place[member], size, count), order)
        for member in range(size)
    ]
    arrays = [np.arange(count, dtype=float) * 7 + member for member in range(size)]
    total = np.sum(arrays, axis=0)
    for number in range(len(steps[0])):
        sent = {}
        for member in range(size):
            send = steps[member][number].send
            assert send is not None
            sent[member, send.peer] = arrays[member][send.begin : send.end].copy()
        for member in range(size):
            receive, combine = steps[member][number].receive, steps[member][number].combine
            assert receive is not None
            own = arrays[member][receive.begin : receive.end]
            incoming = sent[receive.peer, member]
            own[:] = incoming if combine is Combine.REPLACE else own + incoming
    assert all(np.array_equal(array, total) for array in arrays)


@given(st.integers(1, 20))
def test_each_two_members_meet_once(size: int) -> None:
    rounds = pairings(size)
    assert len(rounds) <= size
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs.items()]
    assert sorted(met) == sorted(
        2 * [(a, b) for a in range(size) for b in range(a + 1, size)]
    )  # fmt: skip
    assert all(pairs[pairs[member]] == member for pairs in rounds for member in pairs)


@pytest.mark.parametrize("wrong", [np.ones((2, 3)), np.zeros((4, 4)), np.full((4, 4), np.nan)])
def test_a_matrix_that_is_none(wrong: Matrix) -> None:
    with pytest.raises(ValueError, match=r"square matrix|above zero"):
        ring_order(wrong)
