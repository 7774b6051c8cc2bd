"""SIGNS: one bit for each value, times a scale for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import (
    Decoded,
    Joinable,
    Wire,
    block_counts,
    block_parameter,
    need,
    pack,
    read_block_parameter,
    scale_blocks,
)
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["Signs", "decode_signs", "signs_bytes_max"]


class Signs(Joinable):
    """Signs, and a scale for each block: a value is its scale, or the negative of it.

    Parameters
    ----------
    negative
        Whether each value is negative.
    scales
        One for each block.
    block
        Elements of a block, a power of two.
    """

    def __init__(self, negative: NDArray[np.bool_], scales: Float32Array, block: int) -> None:
        self.size = negative.size
        self._negative = negative
        self._scales = scales
        self._block = block

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the form of several vectors one after the other."""
        return cls(
            np.concatenate([part._negative for part in parts]),
            np.concatenate([part._scales for part in parts]),
            parts[0]._block,
        )

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        block = self._block
        scales = (
            self._scales[start // block : -(-stop // block)] if start < stop else self._scales[:0]
        )
        packed = np.packbits(self._negative[start:stop], bitorder="little")
        return Wire(Codec.SIGNS, block_parameter(block, start % block), pack(scales, packed))

    def decoded(self) -> Decoded:
        """Return the values."""
        return _values(self._negative, self._scales, self._block, 0)


def _values(
    negative: NDArray[np.bool_], scales: Float32Array, block: int, phase: int
) -> Float32Array:
    # 0 or 1 becomes the bits of 1.0 or -1.0: the sign is the highest bit.
    bits = negative.astype(np.uint32)
    bits <<= np.uint32(31)
    bits |= np.uint32(0x3F800000)
    out = bits.view(np.float32)
    scale_blocks(out, scales, block, phase)
    return out


def signs_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    block, phase, _ = read_block_parameter(parameter)
    return 4 * block_counts(count, block, phase) + -(-count // 8)


def decode_signs(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a SIGNS payload."""
    block, phase, extra = read_block_parameter(parameter)
    need(extra == 0, "bits of the parameter that belong to nothing")
    blocks, packed = block_counts(count, block, phase), -(-count // 8)
    need(
        len(payload) == 4 * blocks + packed,
        f"{len(payload)} bytes for {count} SIGNS in {blocks} blocks",
    )
    scales = np.frombuffer(payload, "<f4", blocks)
    codes = np.frombuffer(payload, np.uint8, packed, 4 * blocks)
    spare = packed * 8 - count
    need(not spare or int(codes[-1]) >> (8 - spare) == 0, "bits after the last of the SIGNS")
    negative = np.unpackbits(codes, count=count, bitorder="little").view(np.bool_)
    return _values(negative, scales, block, phase)
