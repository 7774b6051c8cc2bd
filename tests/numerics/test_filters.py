"""Filters leave out what does not matter, and only that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError, UsageError
from aiops.filters import KktFilter, SignificanceFilter
from aiops_protocol.payload import Float32Array

F = np.float32
numbers = st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=20)


@given(values=numbers, zero=st.lists(st.booleans(), min_size=20, max_size=20))
def test_what_passes_is_what_a_proximal_step_could_change(
    values: list[float], zero: list[bool]
) -> None:
    """Of a weight that is zero and filtered, the step with the exact gradient leaves it zero."""
    gradient = np.array(values, F)
    weights = np.where(zero[: gradient.size], 0, 1).astype(F)
    chosen = KktFilter(gradient.size, l1=0.5, slack=0.0)
    places = chosen.to_push(weights, gradient)
    rate = F(0.3)
    moved = weights - rate * gradient
    after = np.sign(moved) * np.maximum(np.abs(moved) - rate * F(0.5), 0)
    left_out = np.setdiff1d(np.arange(gradient.size), places)
    np.testing.assert_allclose(after[left_out], 0, atol=1e-7)
    assert (weights[left_out] == 0).all()
    assert set(np.flatnonzero(weights)) <= set(places.tolist())
    assert chosen.seen == gradient.size
    assert chosen.passed == places.size


def test_slack_lets_more_through_and_nan_is_never_hidden() -> None:
    weights = np.zeros(4, F)
    gradient = np.array([0.95, -0.85, 0.5, np.nan], F)
    assert KktFilter(4, 1.0, slack=0.0).to_push(weights, gradient).tolist() == [3]
    assert KktFilter(4, 1.0, slack=0.1).to_push(weights, gradient).tolist() == [0, 3]
    assert KktFilter(4, 1.0, slack=0.2).to_push(weights, gradient).tolist() == [0, 1, 3]


def test_all_keys_are_read_at_first_and_now_and_then() -> None:
    chosen = KktFilter(5, 1.0, slack=0.0, read_all_every=3)
    weights, gradient = np.array([0, 1, 0, 0, 0], F), np.array([0, 0, 0, 2, 0], F)
    read = []
    for _ in range(7):
        read.append(chosen.to_pull().tolist())
        assert chosen.to_push(weights, gradient).tolist() == [1, 3]
    everything, active = [0, 1, 2, 3, 4], [1, 3]
    assert read == [everything, active, active, everything, active, active, everything]
    assert chosen.filtered == 0.6


@given(
    changes=st.lists(st.tuples(*[st.integers(-8, 8)] * 6), max_size=12),
    threshold=st.integers(0, 12),
    shrinks=st.booleans(),
)
def test_what_was_pushed_and_what_is_held_is_what_was_given(
    changes: list[tuple[int, ...]], threshold: int, shrinks: bool
) -> None:
    chosen = SignificanceFilter((3, 2), threshold, shrinks=shrinks)
    pushed = np.zeros((3, 2), F)
    given_: Float32Array = np.zeros((3, 2), F)
    for number, change in enumerate(changes, 1):
        array = np.array(change, F).reshape(3, 2)
        given_ += array
        places, rows = chosen.to_push(array)
        limit = threshold / (number**0.5 if shrinks else 1)
        assert (abs(rows).max(axis=1, initial=0) > F(limit)).all()
        assert (abs(chosen.held) <= F(limit)).all()
        pushed[places] += rows
        assert (pushed + chosen.held == given_).all()
    places, rows = chosen.flush()
    pushed[places] += rows
    assert (pushed == given_).all()
    assert not chosen.held.any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: KktFilter(3, 0.0),
        lambda: KktFilter(3, float("nan")),
        lambda: KktFilter(3, 1.0, slack=1.0),
        lambda: KktFilter(3, 1.0, read_all_every=0),
        lambda: KktFilter(-1, 1.0),
        lambda: SignificanceFilter(3, -1.0),
        lambda: SignificanceFilter((), 1.0),
        lambda: KktFilter(3, 1.0).to_push(np.zeros(2, F), np.zeros(3, F)),
        lambda: KktFilter(3, 1.0).to_push(np.zeros(3, F), np.zeros((3, 1), F)),
        lambda: SignificanceFilter(3, 1.0).to_push(np.zeros(2, F)),
    ],
)
def test_what_cannot_be_is_said(make: Any) -> None:
    with pytest.raises((ConfigError, UsageError), match=r"Filter"):
        make()
