"""Which rows go into which batch: fair, repeatable, and known without history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError
from aiops.trainers.batches import Batches

shapes = st.tuples(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9)).filter(
    lambda shape: shape[0] >= shape[2]
)


def team(rows: int, batch_size: int, parts: int, seed: int = 0) -> list[Batches]:
    return [Batches(rows, batch_size, part, parts, seed) for part in range(parts)]


@given(shape=shapes, epoch=st.integers(0, 5), seed=st.integers(0, 2**64 - 1))
def test_an_epoch_visits_rows_at_most_once_and_leaves_out_less_than_a_batch_each(
    shape: tuple[int, int, int], epoch: int, seed: int
) -> None:
    rows, batch_size, parts = shape
    workers = team(*shape, seed)
    per_epoch = {worker.per_epoch for worker in workers}
    assert len(per_epoch) == 1, "in BSP all must take the same number of steps"
    (steps,) = per_epoch
    assert steps >= 1
    seen: list[int] = []
    for part, worker in enumerate(workers):
        for step in range(epoch * steps, (epoch + 1) * steps):
            batch = worker.at(step)
            assert len(batch) == worker.size <= batch_size
            assert (batch % parts == part).all()
            seen.extend(batch.tolist())
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(rows))
    assert rows - len(seen) < parts * workers[0].size + parts


@given(shape=shapes, steps=st.lists(st.integers(0, 500), min_size=1), seed=st.integers(0, 99))
def test_a_batch_is_known_without_history(
    shape: tuple[int, int, int], steps: list[int], seed: int
) -> None:
    """A worker restarted at step 120 trains on what it would have trained on."""
    worker = Batches(shape[0], shape[1], shape[2] - 1, shape[2], seed)
    for step in steps:
        fresh = Batches(shape[0], shape[1], shape[2] - 1, shape[2], seed)
        np.testing.assert_array_equal(worker.at(step), fresh.at(step))


def test_orders_differ_between_epochs_workers_and_seeds() -> None:
    first, second = team(200, 100, 2)
    assert first.per_epoch == 1
    orders = [
        tuple(first.at(0) // 2),
        tuple(first.at(1) // 2),
        tuple(second.at(0) // 2),
        tuple(team(200, 100, 2, seed=1)[0].at(0) // 2),
    ]
    assert len(set(orders)) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(100))}


def test_the_rows_left_over_are_others_in_each_epoch() -> None:
    """Seven of ten rows fit; over some epochs every row must have its turn."""
    worker = Batches(10, 7, 0, 1)
    assert worker.per_epoch == 1
    assert {int(row) for epoch in range(20) for row in worker.at(epoch)} == set(range(10))


def test_the_published_set_up_takes_440_steps() -> None:
    """1,437 rows, four workers, batch 32, 40 epochs."""
    assert 40 * Batches(1437, 32, 0, 4).per_epoch == 440


def test_a_small_shard_is_one_batch() -> None:
    worker = Batches(7, 32, 1, 3)
    assert (worker.size, worker.per_epoch) == (2, 1)
    assert sorted(worker.at(3).tolist()) == [1, 4]


def test_more_workers_than_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 rows to train on cannot be shared by 4 workers"):
        Batches(3, 32, 0, 4)
