"""What a worker gives in a round is the sum of its pushes in call order, to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.optim import Add
from aiops.shards.contribution import PIECES_MAX, Assignment, Contribution
from aiops.shards.shard import Selection, Shard
from aiops_protocol.payload import Float32Array
from bits import odd_values, same_bits

F = np.float32
SIZE = 40

seeds = st.integers(0, 2**32 - 1)
slices = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda t: slice(min(t), max(t)))
indices = st.sets(st.integers(0, SIZE - 1), min_size=1).map(lambda s: np.array(sorted(s)))
wheres: st.SearchStrategy[Selection] = st.one_of(slices, indices)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


class Naive:
    """One element at a time: the first push is copied, later ones are added."""

    def __init__(self, size: int) -> None:
        self.sum: list[np.float32 | None] = [None] * size

    def add(self, where: Selection, values: Float32Array) -> None:
        keys = np.arange(len(self.sum))[where]
        for key, value in zip(keys.tolist(), values, strict=True):
            old = self.sum[key]
            self.sum[key] = value if old is None else F(old + value)

    def whole(self) -> Float32Array:
        return np.array([F(0) if value is None else value for value in self.sum], F)


def values_for(where: Selection, size: int, seed: int) -> Float32Array:
    return odd_values(seed, np.arange(size)[where].size)


@given(rounds=st.lists(st.lists(wheres, max_size=6), min_size=1, max_size=3), seed=seeds)
def test_overlapping_pushes_add_up_in_call_order(rounds: list[list[Selection]], seed: int) -> None:
    """Slices and rows mixed; the memory of one round shows nothing of the round before."""
    contribution = Contribution(SIZE)
    for pushes in rounds:
        naive = Naive(SIZE)
        for where in pushes:
            seed += 1
            values = values_for(where, SIZE, seed)
            contribution.add(where, values)
            naive.add(where, values)
        assert same_bits(contribution.whole(), naive.whole())
        contribution.reset()


@given(seed=seeds, order=st.permutations(range(3 * PIECES_MAX)))
def test_very_many_separate_slices_are_as_good_as_few(seed: int, order: list[int]) -> None:
    size = 2 * len(order)
    contribution, naive = Contribution(size), Naive(size)
    for i in order:
        where = slice(2 * i, 2 * i + 1)
        value = odd_values(seed + i, 1)
        contribution.add(where, value)
        naive.add(where, value)
    again = odd_values(seed, size)
    contribution.add(slice(0, size), again)
    naive.add(slice(0, size), again)
    assert same_bits(contribution.whole(), naive.whole())


@given(where=wheres, seed=seeds)
def test_bits_do_not_depend_on_how_the_same_elements_are_named(where: Selection, seed: int) -> None:
    """Rows of one shard may be a slice in one cut of the table and many ranges in another."""
    named = np.arange(SIZE)[where]
    values = odd_values(seed, named.size)
    at_once, one_by_one = Contribution(SIZE), Contribution(SIZE)
    for _ in range(2):
        at_once.add(where, values)
        for key, value in zip(named.tolist(), values, strict=True):
            one_by_one.add(slice(key, key + 1), value.reshape(1))
    assert same_bits(at_once.whole(), one_by_one.whole())


def test_nothing_pushed_is_zero_and_no_size_is_no_problem() -> None:
    assert same_bits(Contribution(3).whole(), np.zeros(3, F))
    empty = Contribution(0)
    empty.add(slice(0, 0), np.empty(0, F))
    assert empty.whole().size == 0


@given(calls=st.lists(wheres, max_size=6), seed=seeds)
def test_assignments_set_what_they_name_and_the_last_wins(
    calls: list[Selection], seed: int
) -> None:
    start = odd_values(seed, SIZE)
    shard = Shard(0, SIZE, Add(), start.copy())
    assignment, expected = Assignment(SIZE), start.copy()
    for i, where in enumerate(calls):
        values = values_for(where, SIZE, seed + i)
        assignment.set(where, values)
        expected[where] = values
    assert same_bits(shard.values, start), "nothing happens before the close"
    assignment.write_to(shard)
    assert same_bits(shard.values, expected)
