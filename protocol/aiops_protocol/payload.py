"""float32 payloads: arrays <-> bytes without copying."""

from __future__ import annotations

import struct
from math import isfinite, nan
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.limits import WEIGHT_MAX

__all__ = [
    "Buffer",
    "Float32Array",
    "all_finite",
    "as_bytes",
    "as_float32",
    "weight_bytes",
    "weight_of",
]

Float32Array: TypeAlias = NDArray[np.float32]
Buffer: TypeAlias = bytes | bytearray | memoryview

FLOAT32 = np.dtype("<f4")
_WEIGHT: Final = struct.Struct("<d")


def as_bytes(array: Float32Array) -> memoryview:
    """View a contiguous float32 array as bytes; nothing is copied."""
    return array.data.cast("B") if array.size else memoryview(b"")


def as_float32(buffer: Buffer) -> Float32Array:
    """View bytes as little-endian float32; the length must be a multiple of four."""
    return np.frombuffer(buffer, FLOAT32)


def weight_bytes(weight: float) -> bytes:
    """Return the weight of a contribution as the payload of a SEAL."""
    return _WEIGHT.pack(weight)


def weight_of(payload: Buffer) -> float:
    """Return the weight in the payload of a SEAL; NaN if it holds none that is allowed."""
    if len(payload) != _WEIGHT.size:
        return nan
    (weight,) = _WEIGHT.unpack(payload)
    return float(weight) if 1 / WEIGHT_MAX <= weight <= WEIGHT_MAX else nan


def all_finite(values: Float32Array) -> bool:
    """Whether no value is NaN or infinite."""
    # One pass at memory speed; only if the sum of squares overflows, look at each value. `vdot`
    # says nothing of an overflow, so no errstate is needed, which would cost as much again.
    return isfinite(np.vdot(values, values)) or bool(np.isfinite(values).all())
