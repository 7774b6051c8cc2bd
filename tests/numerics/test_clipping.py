"""Clipping by the common norm: against plain numpy, in place, with the order of sums fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError, UsageError
from aiops.optim import clip_by_global_norm
from bits import odd_values

F = np.float32


@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    max_norm=st.floats(0.001953125, 1000.0, width=32),
)
def test_the_norm_of_all_is_at_most_the_limit(seed: int, sizes: list[int], max_norm: float) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(size, dtype=F) for size in sizes]
    before = [array.copy() for array in arrays]
    wide = np.concatenate(before).astype(np.float64)
    norm = clip_by_global_norm(arrays, max_norm)
    assert norm == pytest.approx(float(np.sqrt(np.square(wide).sum())), rel=1e-12)
    for array, old in zip(arrays, before, strict=True):
        wanted = old * F(max_norm / norm) if norm > max_norm else old
        assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [5, 65_536, 200_001])
def test_one_array_its_pieces_and_a_mapping_are_scaled_alike(size: int) -> None:
    whole = odd_values(7, size)
    whole[~np.isfinite(whole)] = 1.0
    pieces, named = whole.copy(), whole.copy()
    norm = clip_by_global_norm(whole, 0.5)
    assert clip_by_global_norm([pieces[:3], pieces[3:]], 0.5) == pytest.approx(norm, rel=1e-12)
    clip_by_global_norm({"w": named[:3].reshape(3, 1), "b": named[3:]}, 0.5)
    np.testing.assert_allclose(pieces, whole, rtol=1e-6)
    np.testing.assert_allclose(named, whole, rtol=1e-6)


def test_a_strided_array_is_scaled_in_its_place() -> None:
    table = np.full((2, 4), 3.0, F)
    assert clip_by_global_norm(table[:, ::2], 3.0) == 6.0
    np.testing.assert_array_equal(table, [[1.5, 3.0, 1.5, 3.0]] * 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_norm_is_left_for_the_push_to_report(bad: float) -> None:
    gradient = np.array([1e3, bad], F)
    assert not np.isfinite(clip_by_global_norm(gradient, 1.0))
    assert gradient[0] == 1e3


def test_large_values_do_not_overflow_their_squares() -> None:
    gradient = np.full(4, 3e38, F)
    assert clip_by_global_norm(gradient, 1.0) == pytest.approx(6e38)
    np.testing.assert_allclose(gradient, 0.5)


def frozen() -> Any:
    array = np.ones(2, F)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("gradients", "words"),
    [
        ([np.ones(2, F) * 9, np.ones(2)], "not float64"),
        ([np.ones(2, F) * 9, [1.0]], "not list"),
        ([np.ones(2, F) * 9, frozen()], "may not be written to"),
    ],
)
def test_nothing_is_scaled_if_one_cannot_be(gradients: list[Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        clip_by_global_norm(gradients, 1.0)
    assert gradients[0][0] == 9.0


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan"), "1"])
def test_a_limit_is_a_number_above_0(max_norm: Any) -> None:
    with pytest.raises(ConfigError, match="max_norm"):
        clip_by_global_norm(np.ones(1, F), max_norm)
