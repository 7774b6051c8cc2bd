"""Sparse models: gradients by differences, the measures by their definitions, settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError
from aiops.trainers.sparse import (
    Batch,
    FactorizationMachine,
    Logistic,
    SparseConfig,
    SparseModel,
    area_under_curve,
    log_loss,
)
from aiops_protocol.payload import Float32Array


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 6, 7)
    rows = np.repeat(np.arange(7), counts)
    places = rng.integers(0, 5, rows.size)
    values = rng.normal(size=rows.size).astype(np.float32)
    labels = rng.integers(0, 2, 7).astype(np.float32)
    return Batch(labels, np.arange(5, dtype=np.uint64), rows, places, values)


@pytest.mark.parametrize("model", [Logistic(), FactorizationMachine(3)], ids=["logistic", "fm"])
@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_those_of_the_log_loss(model: SparseModel, seed: int) -> None:
    rows = batch(seed)
    weights = np.random.default_rng(seed).normal(size=(5, model.width)).astype(np.float32) * 0.3
    scores, gradient = model.learn(weights, rows)
    assert scores.tolist() == model.scores(weights, rows).tolist()
    step = 2e-2
    for place in np.ndindex(*weights.shape):
        losses = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[place] += sign * step
            losses.append(log_loss(rows.labels, model.scores(moved, rows)))
        assert gradient[place] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=2e-3)


def test_the_machine_is_the_sum_over_all_pairs() -> None:
    rows, model = batch(1), FactorizationMachine(3)
    weights = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    for row, score in enumerate(model.scores(weights, rows).tolist()):
        mine = np.flatnonzero(rows.rows == row)
        used, values = weights[rows.places[mine]], rows.values[mine]
        expected = float((used[:, 0] * values).sum())
        for a in range(len(mine)):
            for b in range(a):
                expected += float(used[a, 1:] @ used[b, 1:] * values[a] * values[b])
        assert score == pytest.approx(expected, abs=1e-4)


@given(
    pairs=st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=1, max_size=30),
)
def test_the_area_is_the_share_of_pairs_in_order(pairs: list[tuple[bool, int]]) -> None:
    labels: Float32Array = np.array([click for click, _ in pairs], np.float32)
    scores: Float32Array = np.array([score for _, score in pairs], np.float32)
    won = [
        1.0 if hit > miss else 0.5 if hit == miss else 0.0
        for click, hit in pairs
        if click
        for other, miss in pairs
        if not other
    ]
    assert area_under_curve(labels, scores) == pytest.approx(np.mean(won) if won else 0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp"},
        {"model": "fm", "optimizer": "ftrl"},
        {"model": "logistic", "optimizer": "sgd"},
        {"model": "logistic", "optimizer": "adagrad", "l1": 0.1},
        {"model": "logistic", "epochs": 0},
        {"model": "logistic", "lr": -1.0},
        {"model": "fm", "factors": 0},
        {"model": "fm", "consistency": "never"},
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SparseConfig(**settings)
