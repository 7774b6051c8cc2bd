"""SIGNS: one bit for each value, times a scale for each block."""

from __future__ import annotations

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
from aiops_protocol.codecs.places import pack_bits, unpack_bits
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["Signs", "decode_signs", "signs_bytes_max"]


class Signs(InBlocks):
    """Whether each value is the negative of its block's scale, or the scale."""

    codec = Codec.SIGNS

    def packed(self, codes: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return the signs as bits."""
        return pack_bits(codes)

    def decoded(self) -> Decoded:
        """Return the values."""
        return _values(self._codes, self._scales, self._block, 0)


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
    negative = unpack_bits(payload, 4 * blocks, count)
    return _values(negative, scales, block, phase)
