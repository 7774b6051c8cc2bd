"""FLOAT8: one byte of e4m3 for each value, times a scale for each block.

The byte is that of "FP8 formats for deep learning" (Micikevicius et al., 2022): one bit of sign,
four of exponent with bias 7, three of mantissa; 448 is the largest number, 0x7F and 0xFF are NaN.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import (
    Decoded,
    InBlocks,
    block_counts,
    need,
    read_block_parameter,
    scale_blocks,
)
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["FLOAT8_MAX", "Float8", "decode_float8", "float8_bytes_max", "to_float8"]

FLOAT8_MAX: Final = 448.0
SMALLEST_NORMAL: Final = np.float32(2**-6)


def _values() -> Float32Array:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    small = mantissa * 2.0**-9
    values = np.where(exponent == 0, small, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    values = np.where(codes >= 128, -values, values)
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


VALUES: Final = _values()
"""The number of each byte."""


def to_float8(scaled: Float32Array) -> NDArray[np.uint8]:
    """Round to the nearest e4m3, ties to even; what is too large becomes the largest one."""
    size = np.minimum(np.abs(scaled), np.float32(FLOAT8_MAX))
    bits = size.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))) >> np.uint32(
        20
    )
    rounded -= np.uint32((127 - 7) << 3)
    np.minimum(rounded, np.uint32(0x7E), out=rounded, where=size >= SMALLEST_NORMAL)
    small = np.rint(size * np.float32(2**9)).astype(np.uint32)
    codes = np.where(size >= SMALLEST_NORMAL, rounded, small).astype(np.uint8)
    codes |= np.signbit(scaled).astype(np.uint8) << np.uint8(7)
    return codes


class Float8(InBlocks):
    """One byte for each value, as `to_float8` makes them of values divided by their scale."""

    codec = Codec.FLOAT8

    def packed(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the bytes as they are."""
        return codes

    def decoded(self) -> Decoded:
        """Return the rounded values."""
        out: Float32Array = VALUES[self._codes]
        scale_blocks(out, self._scales, self._block, 0)
        return out


def float8_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    block, phase, _ = read_block_parameter(parameter)
    return count + 4 * block_counts(count, block, phase)


def decode_float8(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a FLOAT8 payload; a byte that is no number gives NaN."""
    block, phase, extra = read_block_parameter(parameter)
    need(extra == 0, "bits of the parameter that belong to nothing")
    blocks = block_counts(count, block, phase)
    need(
        len(payload) == 4 * blocks + count,
        f"{len(payload)} bytes for {count} values of FLOAT8 in {blocks} blocks",
    )
    scales = np.frombuffer(payload, "<f4", blocks)
    out = VALUES[np.frombuffer(payload, np.uint8, count, 4 * blocks)]
    scale_blocks(out, scales, block, phase)
    return out
