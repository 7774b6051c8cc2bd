"""FLOAT16 and BFLOAT16: two bytes for each value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import Decoded, Joinable, Wire, need
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = [
    "Halves",
    "decode_bfloat16",
    "decode_float16",
    "from_half",
    "halves_bytes_max",
    "to_bfloat16",
    "to_bfloat16_above",
    "to_float16",
]

FLOAT16_MAX: Final = np.float32(65504)
BFLOAT16_MAX: Final = np.uint32(0x7F7F)


def to_float16(values: Float32Array) -> NDArray[np.uint16]:
    """Round to the nearest float16; what is too large becomes the largest one."""
    largest = np.clip(values, -FLOAT16_MAX, FLOAT16_MAX)
    return largest.astype("<f2").view(np.uint16)


def to_bfloat16(values: Float32Array) -> NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even; what is too large becomes the largest one."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits & np.uint32(0x7FFFFFFF)
    rounded >>= np.uint32(16)
    np.minimum(rounded, BFLOAT16_MAX, out=rounded)
    rounded |= (bits >> np.uint32(16)) & np.uint32(0x8000)
    return rounded.astype(np.uint16)


def to_bfloat16_above(values: Float32Array) -> Float32Array:
    """Round numbers that are not negative up to a bfloat16, as float32; to the largest at most."""
    bits = values.view(np.uint32) + np.uint32(0xFFFF)
    bits >>= np.uint32(16)
    np.minimum(bits, BFLOAT16_MAX, out=bits)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def from_half(codec: Codec, bits: NDArray[np.uint16]) -> Float32Array:
    """Return the float32 values of these two-byte numbers."""
    if codec is Codec.FLOAT16:
        return bits.view("<f2").astype(np.float32)
    wide = bits.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


class Halves(Joinable):
    """Values of two bytes each.

    Parameters
    ----------
    codec
        FLOAT16 or BFLOAT16.
    bits
        The numbers, as `to_float16` or `to_bfloat16` makes them.
    """

    def __init__(self, codec: Codec, bits: NDArray[np.uint16]) -> None:
        self.size = bits.size
        self._codec = codec
        self._bits = bits

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the form of several vectors one after the other."""
        return cls(parts[0]._codec, np.concatenate([part._bits for part in parts]))

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        return Wire(self._codec, 0, self._bits[start:stop].tobytes())

    def decoded(self) -> Decoded:
        """Return the rounded values."""
        return from_half(self._codec, self._bits)


def halves_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    return 2 * count


def _decode(codec: Codec, payload: Buffer, count: int, parameter: int) -> Decoded:
    need(parameter == 0, f"parameter {parameter} for {codec.name}, which has none")
    need(len(payload) == 2 * count, f"{len(payload)} bytes for {count} values of {codec.name}")
    return from_half(codec, np.frombuffer(payload, "<u2"))


def decode_float16(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a FLOAT16 payload."""
    return _decode(Codec.FLOAT16, payload, count, parameter)


def decode_bfloat16(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a BFLOAT16 payload."""
    return _decode(Codec.BFLOAT16, payload, count, parameter)
