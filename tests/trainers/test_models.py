"""The built-in models: gradients against finite differences, losses against the textbook."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aiops.errors import UsageError
from aiops.trainers.models import Linear, Mlp, Model, Softmax, base

ROWS, FEATURES, CLASSES = 7, 5, 4
MODELS: list[Model] = [
    Linear(FEATURES),
    Softmax(FEATURES, CLASSES),
    Mlp(FEATURES, CLASSES, hidden=(6,)),
    Mlp(FEATURES, CLASSES, hidden=(6, 3, 2)),
    Mlp(FEATURES, CLASSES, hidden=()),
]


def problem(model: Model, seed: int, rows: int = ROWS) -> tuple[Any, Any, NDArray[Any]]:
    """Double precision, so that a finite difference means something."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(model.size) * 0.5
    x = rng.standard_normal((rows, FEATURES))
    if isinstance(model, Linear):
        return w, x, rng.standard_normal(rows)
    return w, x, rng.integers(0, CLASSES, rows)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.size}")
@given(seed=st.integers(0, 1000))
def test_the_gradient_is_the_slope_of_the_loss(model: Model, seed: int) -> None:
    """Along random directions; a kink of ReLU inside the difference may spoil single ones."""
    w, x, y = problem(model, seed)
    loss, gradient = model.loss_and_gradient(w, x, y)
    assert loss == pytest.approx(model.loss(w, x, y), rel=1e-12)
    rng = np.random.default_rng(seed)
    h = 1e-6
    close = []
    for _ in range(5):
        direction = rng.standard_normal(model.size)
        rise = model.loss(w + h * direction, x, y) - model.loss(w - h * direction, x, y)
        slope = float(gradient @ direction)
        close.append(abs(rise / (2 * h) - slope) < 1e-6 * (1 + abs(slope)))
    assert sum(close) >= 4


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.size}")
def test_each_element_of_the_gradient(model: Model) -> None:
    w, x, y = problem(model, 3)
    _, gradient = model.loss_and_gradient(w, x, y)
    h = 1e-6
    slopes = [
        (model.loss(w + h * unit, x, y) - model.loss(w - h * unit, x, y)) / (2 * h)
        for unit in np.eye(model.size)
    ]
    np.testing.assert_allclose(gradient, slopes, atol=1e-7)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.size}")
def test_float32_in_float32_out_also_into_an_array_of_the_callers(model: Model) -> None:
    w, x, y = (a.astype(np.float32) if a.dtype.kind == "f" else a for a in problem(model, 1))
    before = w.copy(), x.copy(), y.copy()
    loss, fresh = model.loss_and_gradient(w, x, y)
    assert fresh.dtype == np.float32
    out = np.full(model.size, np.nan, np.float32)
    again, given_back = model.loss_and_gradient(w, x, y, out=out)
    assert given_back is out
    assert (again, out.tobytes()) == (loss, fresh.tobytes())
    for was, now in zip(before, (w, x, y), strict=True):
        np.testing.assert_array_equal(was, now)


def test_a_step_of_linear_regression_is_the_textbook_formula() -> None:
    model = Linear(FEATURES)
    w, x, y = problem(model, 2)
    loss, gradient = model.loss_and_gradient(w, x, y)
    error = np.column_stack([x, np.ones(ROWS)]) @ w - y
    assert loss == pytest.approx((error**2).mean())
    np.testing.assert_allclose(gradient, 2 / ROWS * error @ np.column_stack([x, np.ones(ROWS)]))
    metrics = Linear(FEATURES, target_scale=10.0).metrics(w, x, y)
    assert metrics["rmse"] == pytest.approx(10.0 * (error**2).mean() ** 0.5)


def test_softmax_of_equal_scores_is_chance() -> None:
    model = Softmax(FEATURES, CLASSES)
    _, x, y = problem(model, 0, rows=400)
    metrics = model.metrics(model.initial(0), x.astype(np.float32), y)
    assert metrics["loss"] == pytest.approx(np.log(CLASSES), rel=1e-6)


def test_huge_scores_do_not_overflow() -> None:
    model = Softmax(1, 2)
    w = np.array([1e4, -1e4, 0, 0], np.float32)
    x = np.array([[1.0], [-1.0]], np.float32)
    right, gradient = model.loss_and_gradient(w, x, np.array([0, 1]))
    wrong, _ = model.loss_and_gradient(w, x, np.array([1, 0]))
    assert (right, wrong) == (0.0, 2e4)
    assert not gradient.any()


def test_accuracy_counts_the_highest_score() -> None:
    model = Softmax(2, 2)
    w = np.array([1, 0, 0, 1, 0, 0], np.float32)  # score of class k is feature k
    x = np.array([[3, 1], [1, 3], [5, 4], [0, 1]], np.float32)
    assert model.metrics(w, x, np.array([0, 1, 1, 1]))["accuracy"] == 0.75


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.size}")
def test_slices_give_the_mean_over_all_rows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    w, x, y = problem(model, 4, rows=23)
    whole = model.metrics(w, x, y)
    monkeypatch.setattr(base, "EVALUATION_ROWS", 5)
    assert model.metrics(w, x, y) == pytest.approx(whole, rel=1e-12)


def test_the_network_starts_with_he_weights_and_no_bias() -> None:
    model = Mlp(64, 10)
    assert model.size == 50_826
    w = model.initial(3)
    assert w.dtype == np.float32
    first, bias = w[: 64 * 256], w[64 * 256 : 65 * 256]
    assert abs(float(first.std()) - (2 / 64) ** 0.5) < 0.005
    assert not bias.any()
    assert w.tobytes() == model.initial(3).tobytes() != model.initial(4).tobytes()


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}-{m.size}")
def test_a_vector_of_the_wrong_length_is_refused(model: Model) -> None:
    w, x, y = problem(model, 0)
    for wrong, out in ((w[:-1], None), (w.reshape(1, -1), None), (w, w[:-1])):
        with pytest.raises(UsageError, match=f"{model.name}: .* shape \\({model.size},\\)"):
            model.loss_and_gradient(wrong, x, y, out=out)
    with pytest.raises(UsageError, match="no rows"):
        model.metrics(w, x[:0], y[:0])
