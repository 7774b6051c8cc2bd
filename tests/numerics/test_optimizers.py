"""Every optimizer against a plain numpy reference, and the rules that all of them keep."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.optim import SGD, Adam, Add, Assign, Momentum, Optimizer
from aiops_protocol.payload import Float32Array

F = np.float32
STEPS = 200
Run = Callable[[Optimizer, Float32Array, Sequence[Float32Array]], Float32Array]

ALL = [
    SGD(lr=0.1),
    SGD(lr=0.1, weight_decay=0.01, clip_value=0.5),
    Momentum(lr=0.05),
    Momentum(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01, clip_value=1.0),
    Momentum(lr=0.05, momentum=0.0),
    Adam(),
    Adam(lr=0.01, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.01, clip_value=1.0),
    Add(),
    Assign(),
]


def stream(size: int, count: int, seed: int = 0) -> tuple[Float32Array, list[Float32Array]]:
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(size, dtype=F)
    return start, [rng.standard_normal(size, dtype=F) for _ in range(count)]


def reference(
    optimizer: Optimizer,
    start: np.ndarray[Any, Any],
    gradients: Sequence[Float32Array],
    dtype: type,
) -> np.ndarray[Any, Any]:
    """The textbook formulas, one new array per operation, in the given precision."""
    s = {name: dtype(F(v)) for name, v in optimizer.settings().items() if isinstance(v, float)}
    w: np.ndarray[Any, Any] = start.astype(dtype)
    first = np.zeros_like(w)
    second = np.zeros_like(w)
    for step, gradient in enumerate(gradients, start=1):
        g: np.ndarray[Any, Any] = gradient.astype(dtype)
        if "clip_value" in s:
            g = np.minimum(np.maximum(g, -s["clip_value"]), s["clip_value"])
        if s.get("weight_decay"):
            g = g + s["weight_decay"] * w
        match optimizer:
            case SGD():
                w = w - s["lr"] * g
            case Momentum():
                first = s["momentum"] * first + g
                move = g + s["momentum"] * first if optimizer.nesterov else first
                w = w - s["lr"] * move
            case Adam():
                one = dtype(1)
                first = s["beta1"] * first + (one - s["beta1"]) * g
                second = s["beta2"] * second + (one - s["beta2"]) * g * g
                mean = first / (one - s["beta1"] ** step)
                square = second / (one - s["beta2"] ** step)
                w = w - s["lr"] * mean / (np.sqrt(square) + s["eps"])
            case Add():
                w = w + g
            case Assign():
                w = g
            case _:
                raise AssertionError(optimizer)
    return w


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_200_steps_agree_with_the_textbook_in_double_precision(
    optimizer: Optimizer, run_optimizer: Run
) -> None:
    """Float32 rounding may show, a wrong formula may not."""
    start, gradients = stream(1_000, STEPS)
    got = run_optimizer(optimizer, start, gradients)
    wanted = reference(optimizer, start, gradients, np.float64)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("optimizer", [o for o in ALL if not isinstance(o, Adam)], ids=repr)
def test_200_steps_have_the_bits_of_the_same_formula_in_float32(
    optimizer: Optimizer, run_optimizer: Run
) -> None:
    """Working in place and in scratch changes no rounding."""
    start, gradients = stream(1_000, STEPS, seed=1)
    got = run_optimizer(optimizer, start, gradients)
    assert got.tobytes() == reference(optimizer, start, gradients, F).tobytes()


def test_sgd_has_the_bits_that_the_api_promises(run_optimizer: Run) -> None:
    """A worker that computes `w - np.float32(lr) * g` itself gets what the server gets."""
    start, gradients = stream(4_097, 50, seed=2)
    w = start
    for g in gradients:
        w = w - F(0.3) * g
    assert run_optimizer(SGD(lr=0.3), start, gradients).tobytes() == w.tobytes()


def test_adam_moves_every_element_by_lr_in_its_first_step(run_optimizer: Run) -> None:
    """The correction for the zero start makes the first step lr * sign(g), whatever the scale."""
    gradient = np.array([1e-4, -1.0, 3e4], F)
    got = run_optimizer(Adam(lr=0.5, eps=1e-12), np.zeros(3, F), [gradient])
    np.testing.assert_allclose(got, [-0.5, 0.5, -0.5], rtol=1e-5)


def test_nesterov_looks_ahead(run_optimizer: Run) -> None:
    """By hand: g = 1 twice, momentum 0.5, lr 1: moves 1.5 and 1.75."""
    ones = np.ones(1, F)
    got = run_optimizer(Momentum(lr=1.0, momentum=0.5, nesterov=True), np.zeros(1, F), [ones, ones])
    np.testing.assert_array_equal(got, [-3.25])


def test_clipping_does_not_clip_the_decay(run_optimizer: Run) -> None:
    """By hand: the gradient 8 becomes 1, the decay 0.5 * 10 stays 5."""
    optimizer = SGD(lr=1.0, weight_decay=0.5, clip_value=1.0)
    got = run_optimizer(optimizer, np.array([10.0], F), [np.array([8.0], F)])
    np.testing.assert_array_equal(got, [4.0])


@given(
    optimizer=st.sampled_from(ALL),
    size=st.integers(1, 600),
    cuts=st.lists(st.integers(0, 600), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_bits_do_not_depend_on_how_the_array_is_cut(
    optimizer: Optimizer, size: int, cuts: list[int], seed: int
) -> None:
    """One server or seven, aligned or not: vector loops and their tails must round alike."""
    start, gradients = stream(size, 5, seed)
    whole = start.copy()
    state = {slot: np.zeros(size, F) for slot in type(optimizer).slots}
    for step, gradient in enumerate(gradients, start=1):
        optimizer.update(whole, gradient.copy(), state, step, np.empty(size, F))

    bounds = sorted({0, size, *(cut for cut in cuts if cut < size)})
    pieces = []
    for low, high in pairwise(bounds):
        piece = start[low:high].copy()
        state = {slot: np.zeros(high - low, F) for slot in type(optimizer).slots}
        for step, gradient in enumerate(gradients, start=1):
            optimizer.update(piece, gradient[low:high].copy(), state, step, np.empty(size, F))
        pieces.append(piece)
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_a_step_allocates_no_array(optimizer: Optimizer) -> None:
    """A server steps once per round over all its parameters; temporaries would double it."""
    size = 1 << 18
    values, gradient, scratch = (np.ones(size, F) for _ in range(3))
    state = {slot: np.zeros(size, F) for slot in type(optimizer).slots}
    optimizer.update(values, gradient, state, 1, scratch)
    tracemalloc.start()
    try:
        optimizer.update(values, gradient, state, 2, scratch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16_384


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_an_empty_range_is_no_error(optimizer: Optimizer) -> None:
    """More servers than keys: some own nothing."""
    none = np.empty(0, F)
    state = {slot: np.empty(0, F) for slot in type(optimizer).slots}
    optimizer.update(none, none.copy(), state, 1, none.copy())


def test_a_setting_is_rounded_to_float32_before_it_is_used(run_optimizer: Run) -> None:
    """0.1 in double precision times g, rounded once, is not what is promised."""
    rng = np.random.default_rng(3)
    gradient = rng.standard_normal(10_000, dtype=F)
    got = run_optimizer(SGD(lr=0.1), np.zeros_like(gradient), [gradient])
    wrong = -(np.float64(0.1) * gradient.astype(np.float64)).astype(F)
    assert got.tobytes() == (np.zeros_like(gradient) - F(0.1) * gradient).tobytes()
    assert got.tobytes() != wrong.tobytes()
