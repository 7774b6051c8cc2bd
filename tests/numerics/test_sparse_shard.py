"""A sparse shard holds the rows that a dictionary would hold, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.init import Constant, Initializer, Normal, Uniform
from aiops.optim import FTRL, SGD, Adagrad, Adam, Add, Momentum, Optimizer, Schedule, WarmUp
from aiops.roles.memory import Budget
from aiops.shards.reduction import Mean, Median, Reduction, Sum
from aiops.shards.sparse import NoRoom, SparseAssignment, SparseContribution, SparseShard
from aiops.shards.sparse import rows as rows_module
from aiops_protocol.key_list import KEY_END, Keys, mix
from aiops_protocol.payload import Float32Array
from row_model import RowModel

F = np.float32
OPTIMIZERS = [SGD(lr=0.3), Momentum(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.01), FTRL(lr=0.1, l1=0.01)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def shard(
    width: int = 3,
    optimizer: Optimizer | None = None,
    init: Initializer | None = None,
    *,
    hashed: bool = True,
    limit: int = 1 << 40,
) -> SparseShard:
    return SparseShard(
        0,
        KEY_END,
        width,
        hashed=hashed,
        optimizer=optimizer or SGD(lr=0.3),
        initializer=init or Constant(0.0),
        memory=Budget(limit),
    )


def wire(keys: Any, *, hashed: bool = True) -> tuple[Keys, Any]:
    """Keys as they travel, and the order that puts them so."""
    given = np.asarray(keys, np.uint64)
    words = mix(given) if hashed else given
    order = np.argsort(words)
    return words[order], order


def gradients(count: int, width: int, seed: int) -> Float32Array:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(F)


some_keys = st.lists(st.integers(0, 40) | st.integers(0, 2**64 - 2), unique=True, max_size=25)


@given(
    pushes=st.lists(st.tuples(some_keys, st.booleans()), max_size=8),
    optimizer=st.sampled_from(OPTIMIZERS),
    init=st.sampled_from([Constant(0.5), Normal(std=1.0, seed=4), Uniform(-1.0, 1.0)]),
    hashed=st.booleans(),
    width=st.sampled_from([1, 2, 5]),
)
def test_pushes_and_assignments_are_those_of_a_dictionary(
    pushes: list[tuple[list[int], bool]],
    optimizer: Optimizer,
    init: Initializer,
    hashed: bool,
    width: int,
) -> None:
    """Values, and through later pushes also state and steps; nothing else has a row."""
    ours = shard(width, optimizer, init, hashed=hashed)
    model = RowModel(width, optimizer, init)
    for number, (keys, assigned) in enumerate(pushes):
        words, order = wire(keys, hashed=hashed)
        rows = gradients(len(keys), width, number)
        if assigned:
            ours.write(words, rows[order].reshape(-1))
            model.assign(keys, rows)
        else:
            ours.apply(words, rows[order].reshape(-1))
            model.push(keys, rows)
        ours.validate()
    asked = sorted({*model.rows, 3, 2**64 - 2})
    words, order = wire(asked, hashed=hashed)
    expected = model.pull(asked)[order]
    assert ours.read(words).reshape(-1, width).tobytes() == expected.tobytes()
    assert ours.rows == len(model.rows)


@given(
    given_=st.lists(st.lists(some_keys, max_size=3), max_size=4),
    reduction=st.sampled_from([Sum(), Mean()]),
    optimizer=st.sampled_from([SGD(lr=0.3), Adam(lr=0.01)]),
)
def test_a_round_is_a_left_fold_row_by_row(
    given_: list[list[list[int]]], reduction: Reduction, optimizer: Optimizer
) -> None:
    """Each worker's pushes are added up first, then the workers in the order of their ranks."""
    ours = shard(2, optimizer)
    model = RowModel(2, optimizer)
    contributions = []
    totals: dict[int, Float32Array] = {}
    for rank, pushes in enumerate(given_):
        contribution = SparseContribution(ours)
        mine: dict[int, Float32Array] = {}
        for number, keys in enumerate(pushes):
            words, order = wire(keys)
            rows = gradients(len(keys), 2, 10 * rank + number)
            contribution.add(words, rows[order].reshape(-1))
            for key, row in zip(keys, rows, strict=True):
                mine[key] = mine[key] + row if key in mine else row
        contributions.append(contribution)
        for key, row in mine.items():
            totals[key] = totals[key] + row if key in totals else row
    ours.step([contribution.whole() for contribution in contributions], reduction, 1)
    for contribution in contributions:
        contribution.reset()
    for key, total in totals.items():
        model.step(key, total if reduction.name == "sum" else total / F(len(given_)))
    words, order = wire(sorted(totals))
    assert ours.read(words).tobytes() == model.pull(sorted(totals))[order].tobytes()
    assert ours.rows == len(totals)
    assert ours.memory.taken == ours.nbytes  # type: ignore[attr-defined]


def test_a_negative_zero_that_one_worker_gives_stays_negative() -> None:
    ours = shard(1, SGD(lr=1.0))
    contribution, other = SparseContribution(ours), SparseContribution(ours)
    contribution.add(np.array([5], np.uint64), np.array([-0.0], F))
    other.add(np.array([7], np.uint64), np.array([1.0], F))
    wholes = [contribution.whole(), other.whole()]
    assert np.signbit(wholes[0].values[0, 0])
    ours.step(wholes, Sum(), 1)
    ours.write(np.array([5], np.uint64), np.array([-0.0], F))
    assert np.signbit(ours.read(np.array([5], np.uint64))[0])


def test_who_did_not_push_a_row_counts_as_zeros_there() -> None:
    """A median over five workers of whom two have pushed a row is 0."""
    ours = shard(1, Add())
    wholes = []
    for rank in range(5):
        contribution = SparseContribution(ours)
        keys = np.array([3, 9] if rank < 2 else [9], np.uint64)
        contribution.add(keys, np.full(keys.size, rank + 1, F))
        wholes.append(contribution.whole())
    ours.step(wholes, Median(), 1)
    assert ours.read(np.array([3, 9], np.uint64)).tolist() == [0.0, 3.0]
    weighted = shard(1, Add())
    weighted.step(wholes[:2], Mean(), 1, [3.0, 1.0])
    assert weighted.read(np.array([3], np.uint64)).tolist() == [(3 * 1 + 2) / 4]


def test_many_rows_in_several_slabs_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of several slabs in one request, more than one block of arithmetic, in any order."""
    monkeypatch.setattr(rows_module, "FIRST_SLAB_BYTES", 64 * 1024)
    count, width = 14_000, 5
    ours, model = shard(width, Adam(lr=0.1)), {}
    rng = np.random.default_rng(3)
    for number in range(3):
        keys = rng.permutation(count).astype(np.uint64)[: count - 1000]
        words, order = wire(keys)
        rows = gradients(keys.size, width, number)
        ours.apply(words, rows[order].reshape(-1))
        model.update(dict.fromkeys(keys.tolist()))
    assert ours.rows == len(model)
    picked = rng.choice(count, 50, replace=False)
    reference = RowModel(width, Adam(lr=0.1))
    rng = np.random.default_rng(3)
    for number in range(3):
        keys = rng.permutation(count).astype(np.uint64)[: count - 1000]
        rows = gradients(keys.size, width, number)
        mine = np.flatnonzero(np.isin(keys, picked))
        reference.push(keys[mine].tolist(), rows[mine])
    words, order = wire(picked)
    expected = reference.pull(picked.tolist())[order]
    np.testing.assert_allclose(ours.read(words).reshape(-1, width), expected, rtol=1e-6, atol=0)


def test_reading_makes_no_row_and_costs_no_memory() -> None:
    ours = shard(init=Normal(std=1.0))
    words, _ = wire(range(1000))
    first = ours.read(words)
    assert (ours.rows, ours.nbytes) == (0, 0)
    ours.apply(words[::2], np.zeros(1500, F))
    assert ours.read(words).tobytes() == first.tobytes()
    assert ours.rows == 500


def test_rates_go_by_the_furthest_clock() -> None:
    ours = shard(1, SGD(lr=Schedule(1.0, WarmUp(10))))
    key = np.array([1], np.uint64)
    model = RowModel(1, SGD(lr=Schedule(1.0, WarmUp(10))))
    for clock, effective in [(3, 3), (7, 7), (2, 7)]:
        ours.apply(key, np.ones(1, F), clock)
        model.step(1, np.ones(1, F), effective)
    assert ours.read(key) == model.pull([1])[0]


class Failing(SGD):
    """A stranger's optimizer that changes values and then fails."""

    def update(self, values: Any, *_: Any) -> None:
        values += 7
        raise ZeroDivisionError


def test_an_optimizer_that_fails_changes_nothing() -> None:
    ours = shard(1, Failing(lr=1.0))
    words, _ = wire(range(100))
    ours.write(words[:50], np.ones(50, F))
    with pytest.raises(ZeroDivisionError):
        ours.apply(words, np.ones(100, F))
    assert ours.read(words).tolist() == [1.0] * 50 + [0.0] * 50
    assert ours.rows == 50
    ours.validate()


def test_rows_that_have_no_room_are_refused_whole() -> None:
    ours = shard(4, Add(), limit=200_000)
    words, _ = wire(range(20_000))
    ours.apply(words[:1000], np.ones(4000, F))
    taken = ours.nbytes
    for change in (
        ours.apply,
        ours.write,
        SparseContribution(ours).add,
        SparseAssignment(ours).set,
    ):
        with pytest.raises(NoRoom, match="memory"):
            change(words, np.ones(80_000, F))
    assert (ours.rows, ours.nbytes) == (1000, taken)
    ours.apply(words[:1000], np.ones(4000, F))  # rows that are there need no room
    assert (ours.read(words[:1000]) == 2).all()
    ours.release()
    assert ours.memory.taken == 0  # type: ignore[attr-defined]


def test_what_waits_for_a_round_is_counted_and_given_back() -> None:
    ours = shard(4)
    contribution, assignment = SparseContribution(ours), SparseAssignment(ours)
    words, _ = wire(range(100))
    contribution.add(words, np.ones(400, F))
    assignment.set(words, np.full(400, 5, F))
    assignment.set(words[:10], np.full(40, 6, F))
    assert ours.memory.taken >= 2 * 100 * (8 + 16) + 100 * 16  # type: ignore[attr-defined]
    assignment.write_to(ours)
    contribution.reset()
    assignment.reset()
    assert ours.memory.taken == ours.nbytes  # type: ignore[attr-defined]
    assert ours.read(words).tolist() == [6.0] * 40 + [5.0] * 360


@pytest.mark.parametrize("optimizer", [Add(), Adagrad(lr=0.1)], ids=["values", "values-and-state"])
def test_memory_is_within_half_of_values_and_state(optimizer: Optimizer) -> None:
    """Width 16, and a number of rows right after the index has grown, which is the worst."""
    ours = shard(16, optimizer)
    words = mix(np.arange(150_000, dtype=np.uint64))
    worst = 0.0
    for start in range(0, words.size, 5_000):
        part = np.sort(words[start : start + 5_000])
        ours.apply(part, np.ones(16 * part.size, F))
        if ours.rows > 20_000:
            worst = max(worst, ours.nbytes / (ours.rows * 64 * (1 + len(optimizer.slots))))
    assert worst <= 1.5
