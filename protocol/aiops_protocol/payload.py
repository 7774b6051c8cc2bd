"""float32 payloads: arrays <-> bytes without copying."""

from __future__ import annotations

from math import isfinite
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Buffer", "Float32Array", "all_finite", "as_bytes", "as_float32"]

Float32Array: TypeAlias = NDArray[np.float32]
Buffer: TypeAlias = bytes | bytearray | memoryview

FLOAT32 = np.dtype("<f4")


def as_bytes(array: Float32Array) -> memoryview:
    """View a contiguous float32 array as bytes; nothing is copied."""
    return array.data.cast("B") if array.size else memoryview(b"")


def as_float32(buffer: Buffer) -> Float32Array:
    """View bytes as little-endian float32; the length must be a multiple of four."""
    return np.frombuffer(buffer, FLOAT32)


def all_finite(values: Float32Array) -> bool:
    """Whether no value is NaN or infinite."""
    # One pass at memory speed; only if the sum of squares overflows, look at each value. `vdot`
    # says nothing of an overflow, so no errstate is needed, which would cost as much again.
    return isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())
