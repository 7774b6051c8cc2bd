"""Payloads: arrays seen as bytes and bytes as arrays, never copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from aiops_protocol.payload import Float32Array, all_finite, as_bytes, as_float32

values = st.floats(width=32)
any_array = arrays.arrays(np.float32, arrays.array_shapes(min_dims=0, min_side=0), elements=values)


@given(any_array)
def test_bytes_of_an_array_are_its_little_endian_values(array: Float32Array) -> None:
    """Any shape, `()` and empty ones included; the bits survive, NaNs too."""
    view = as_bytes(array)
    assert bytes(view) == array.astype("<f4").tobytes()
    assert as_float32(view).tobytes() == array.tobytes()


def test_both_views_share_the_memory() -> None:
    array = np.zeros((2, 3), np.float32)
    view = as_bytes(array)
    array[1, 2] = 1.5
    assert as_float32(view)[5] == 1.5
    view[:4] = np.float32(-2).tobytes()
    assert array[0, 0] == -2


def test_a_strided_array_has_no_bytes_of_its_own() -> None:
    with pytest.raises((TypeError, ValueError)):
        as_bytes(np.zeros((4, 4), np.float32)[:, 1])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_bytes_that_are_no_whole_values(size: int) -> None:
    with pytest.raises(ValueError, match="buffer size"):
        as_float32(bytes(size))


@given(arrays.arrays(np.float32, st.integers(0, 40), elements=values))
def test_all_finite_is_exact(array: Float32Array) -> None:
    """Also where the sum of squares overflows and every value is finite."""
    with np.errstate(all="ignore"):
        assert all_finite(array) == bool(np.isfinite(array).all())


def test_large_finite_values_are_finite() -> None:
    with np.errstate(all="ignore"):
        assert all_finite(np.full(9, 3e38, np.float32))
        assert not all_finite(np.array([3e38, np.inf], np.float32))
        assert not all_finite(np.array([3e38, np.nan], np.float32))
