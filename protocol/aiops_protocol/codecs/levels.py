"""LEVELS: whole numbers of two, four or eight bits, times a step for each block."""

from __future__ import annotations

from typing import Final, NamedTuple

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
from aiops_protocol.codecs.halves import from_half, to_bfloat16
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["LEVEL_BITS", "Levels", "decode_levels", "levels_bytes_max"]

LEVEL_BITS: Final = (2, 4, 8)
HALF_STEPS: Final = 64
"""Extra bit of the parameter: steps are bfloat16, not float32."""


class Levels(InBlocks):
    """Whole numbers, and a step for each block: a value is its number times its step.

    Parameters
    ----------
    numbers
        From `-2**(bits-1)` to `2**(bits-1) - 1`.
    steps
        One for each block.
    block
        Elements of a block, a power of two.
    bits
        2, 4 or 8.
    half_steps
        Write steps as bfloat16; what that cannot hold of them is cut off.
    """

    codec = Codec.LEVELS

    def __init__(
        self,
        numbers: NDArray[np.int8],
        steps: Float32Array,
        block: int,
        bits: int,
        half_steps: bool = False,
    ) -> None:
        if half_steps:
            steps = from_half(Codec.BFLOAT16, to_bfloat16(steps))
        super().__init__(numbers, steps, block)
        self.extra = bits | (HALF_STEPS if half_steps else 0)

    def packed(self, codes: NDArray[np.int8]) -> NDArray[np.uint8]:
        """Return the numbers, several to a byte."""
        return _pack(codes, self.extra & ~HALF_STEPS)

    def written(self, scales: Float32Array) -> NDArray[np.uint16] | Float32Array:
        """Return the steps as float32 or bfloat16."""
        return to_bfloat16(scales) if self.extra & HALF_STEPS else scales

    def decoded(self) -> Decoded:
        """Return the values."""
        out = self._codes.astype(np.float32)
        scale_blocks(out, self._scales, self._block, 0)
        return out


def _pack(numbers: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Put numbers into bytes, the first one lowest; unused bits at the end are zero."""
    codes = numbers.view(np.uint8)
    if bits == 8:
        return codes
    each = 8 // bits
    packed = np.zeros(-(-codes.size // each), np.uint8)
    for place in range(each):
        part = codes[place::each] & np.uint8((1 << bits) - 1)
        packed[: part.size] |= part << np.uint8(bits * place)
    return packed


def _unpack(packed: NDArray[np.uint8], count: int, bits: int) -> Float32Array:
    if bits == 8:
        return packed.view(np.int8).astype(np.float32)
    each = 8 // bits
    numbers = np.arange(256, dtype=np.int16)
    half, full = 1 << (bits - 1), 1 << bits
    table = np.empty((256, each), np.float32)
    for place in range(each):
        code = numbers >> (bits * place) & (full - 1)
        table[:, place] = np.where(code >= half, code - full, code)
    return table[packed].reshape(-1)[:count]


class _Sizes(NamedTuple):
    block: int
    phase: int
    bits: int
    blocks: int
    step_bytes: int
    packed: int

    @property
    def payload(self) -> int:
        return self.step_bytes * self.blocks + self.packed


def _sizes(count: int, parameter: int) -> _Sizes:
    block, phase, extra = read_block_parameter(parameter)
    bits = extra & ~HALF_STEPS
    need(bits in LEVEL_BITS, f"LEVELS of {bits} bits; there are 2, 4 and 8")
    step_bytes = 2 if extra & HALF_STEPS else 4
    blocks = block_counts(count, block, phase)
    return _Sizes(block, phase, bits, blocks, step_bytes, -(-count * bits // 8))


def levels_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    return _sizes(count, parameter).payload


def decode_levels(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a LEVELS payload."""
    sizes = _sizes(count, parameter)
    block, phase, bits, blocks, step_bytes, packed = sizes
    need(
        len(payload) == sizes.payload,
        f"{len(payload)} bytes for {count} LEVELS of {bits} bits in {blocks} blocks",
    )
    steps = (
        np.frombuffer(payload, "<f4", blocks)
        if step_bytes == 4
        else from_half(Codec.BFLOAT16, np.frombuffer(payload, "<u2", blocks))
    )
    codes = np.frombuffer(payload, np.uint8, packed, step_bytes * blocks)
    spare = packed * 8 - count * bits
    need(not spare or int(codes[-1]) >> (8 - spare) == 0, "bits after the last of the LEVELS")
    out = _unpack(codes, count, bits)
    scale_blocks(out, steps, block, phase)
    return out
