"""Every optimizer against a plain numpy reference, and the rules that all of them keep."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.optim import (
    FTRL,
    SGD,
    Adam,
    AdamW,
    Momentum,
    Optimizer,
    ProximalSGD,
    Schedule,
    Step,
)
from aiops_protocol.payload import Float32Array
from textbook import ALL, reference

F = np.float32
STEPS = 200
Run = Callable[[Optimizer, Float32Array, Sequence[Float32Array]], Float32Array]


def stream(size: int, count: int, seed: int = 0) -> tuple[Float32Array, list[Float32Array]]:
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(size, dtype=F)
    return start, [rng.standard_normal(size, dtype=F) for _ in range(count)]


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


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_200_steps_equal_the_same_formula_in_float32_to_1e_6(
    optimizer: Optimizer, run_optimizer: Run
) -> None:
    """What a plain numpy program would have, step for step."""
    start, gradients = stream(1_000, STEPS, seed=3)
    got = run_optimizer(optimizer, start, gradients)
    wanted = reference(optimizer, start, gradients, F)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", [o for o in ALL if not isinstance(o, Adam | AdamW)], ids=repr)
def test_200_steps_have_the_bits_of_the_same_formula_in_float32(
    optimizer: Optimizer, run_optimizer: Run
) -> None:
    """Working in place and in scratch changes no rounding; a zero may have another sign."""
    start, gradients = stream(1_000, STEPS, seed=1)
    got = run_optimizer(optimizer, start, gradients)
    np.testing.assert_array_equal(got, reference(optimizer, start, gradients, F))


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_200_steps_equal_a_reference_in_double_precision_to_1e_6(optimizer: Optimizer) -> None:
    """The formulas themselves, without the rounding: they take arrays of any precision."""
    start, gradients = stream(300, STEPS, seed=4)
    values = start.astype(np.float64)
    state = {slot: np.zeros_like(values) for slot in type(optimizer).slots}
    for step, gradient in enumerate(gradients, start=1):
        wide: Any = optimizer
        wide.update(values, gradient.astype(np.float64), state, step, np.empty_like(values))
    wanted = reference(optimizer, start, gradients, np.float64)
    np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-6)


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


@pytest.mark.parametrize("highest", [3, 4_000, 40_000])
@pytest.mark.parametrize("optimizer", [Adam(lr=0.1), AdamW(lr=0.1, beta2=0.99)])
def test_a_step_of_many_counts_has_the_bits_of_steps_of_one_each(
    optimizer: Optimizer, highest: int
) -> None:
    """Rows that were pushed unequally often are stepped together, as if each were alone."""
    size = 5_000
    start, (mean, square, gradient) = stream(size, 3, seed=5)
    counts = np.random.default_rng(6).integers(1, highest, size).astype(np.uint32)
    state = {"mean": mean.copy(), "square": np.square(square)}
    values = start.copy()
    optimizer.update(values, gradient.copy(), state, counts, np.empty(size, F))
    for i in range(0, size, 7):
        one = start[i : i + 1].copy()
        alone = {"mean": mean[i : i + 1].copy(), "square": np.square(square[i : i + 1])}
        optimizer.update(one, gradient[i : i + 1].copy(), alone, int(counts[i]), np.empty(1, F))
        assert one[0] == values[i]


def test_ftrl_makes_exact_zeros_and_adagrads_steps(run_optimizer: Run) -> None:
    """By hand: |z| of 0.5 stays within l1; z of 3 leaves 2 over a rate of (1 + 3) / 0.5 + 1."""
    got = run_optimizer(FTRL(lr=0.5, l1=1.0, l2=1.0), np.zeros(2, F), [np.array([0.5, 3.0], F)])
    np.testing.assert_array_equal(got, [0.0, F(-2.0) / F(9.0)])


def test_ftrl_lets_no_number_that_is_none_disappear(run_optimizer: Run) -> None:
    gradient = np.array([np.nan, np.inf, 1.0], F)
    with np.errstate(all="ignore"):
        got = run_optimizer(FTRL(), np.zeros(3, F), [gradient])
    assert np.isfinite(got).tolist() == [False, False, True]


def test_a_proximal_step_cuts_and_shrinks(run_optimizer: Run) -> None:
    """By hand: 4 - 1 = 3, less 0.5 is 2.5, over 1.25; and 0.25 is cut to 0."""
    optimizer = ProximalSGD(lr=0.5, l1=1.0, l2=0.5)
    got = run_optimizer(optimizer, np.array([4.0, -0.25], F), [np.array([2.0, 0.0], F)])
    np.testing.assert_array_equal(got, [2.0, 0.0])


def test_adamw_decays_beside_the_step(run_optimizer: Run) -> None:
    """By hand: no gradient, so the decay alone: 8 - 0.5 * 0.25 * 8."""
    got = run_optimizer(AdamW(lr=0.5, weight_decay=0.25), np.array([8.0], F), [np.zeros(1, F)])
    np.testing.assert_array_equal(got, [7.0])


@pytest.mark.parametrize("optimizer", ALL, ids=repr)
def test_an_optimizer_at_a_clock_has_the_rate_of_its_schedule(
    optimizer: Optimizer, run_optimizer: Run
) -> None:
    """Only the rate differs, in every optimizer that has one; a rate may fall below any bound."""
    assert optimizer.at(5) is optimizer
    if not hasattr(optimizer, "lr") or isinstance(optimizer, FTRL):
        return
    scheduled = dataclasses.replace(
        optimizer,  # type: ignore[type-var]  # every optimizer here is a dataclass
        lr=Schedule(optimizer.lr, Step(every=5, times=0.5)),
    )
    assert scheduled.scheduled
    halved = dataclasses.replace(optimizer, lr=optimizer.lr * 0.5)  # type: ignore[type-var]
    start, gradients = stream(50, 3)
    wanted = run_optimizer(halved, start, gradients)
    assert run_optimizer(scheduled.at(9), start, gradients).tobytes() == wanted.tobytes()
    assert scheduled.at(9) == halved
