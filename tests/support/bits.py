"""Float32 arrays for tests in which every bit counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiops_protocol.payload import Float32Array

_ODD = np.array([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 0.1, 1 / 3, 16777216.0, -3e37], np.float32)


def odd_values(seed: int, size: int) -> Float32Array:
    """Values on which rounding, signs of zero and the order of additions show."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(size, dtype=np.float32)
    odd = rng.random(size) < 0.5
    values[odd] = rng.choice(_ODD, int(odd.sum()))
    return values


def same_bits(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays are the same to the bit, the signs of zeros included."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.tobytes() == right.tobytes()
    )
