"""LEVELS: whole numbers of two, four or eight bits, times a step for each block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import (
    Decoded,
    Joinable,
    Wire,
    block_counts,
    block_parameter,
    blocks_of,
    need,
    pack,
    read_block_parameter,
    scale_blocks,
)
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["LEVEL_BITS", "Levels", "decode_levels", "levels_bytes_max"]

LEVEL_BITS: Final = (2, 4, 8)


class Levels(Joinable):
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
    """

    def __init__(
        self, numbers: NDArray[np.int8], steps: Float32Array, block: int, bits: int
    ) -> None:
        self.size = numbers.size
        self._numbers = numbers
        self._steps = steps
        self._block = block
        self._bits = bits

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the form of several vectors one after the other."""
        return cls(
            np.concatenate([part._numbers for part in parts]),
            np.concatenate([part._steps for part in parts]),
            parts[0]._block,
            parts[0]._bits,
        )

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        block = self._block
        steps = self._steps[blocks_of(start, stop, block)]
        payload = pack(steps, _pack(self._numbers[start:stop], self._bits))
        return Wire(Codec.LEVELS, block_parameter(block, start % block, self._bits), payload)

    def decoded(self) -> Decoded:
        """Return the values."""
        out = self._numbers.astype(np.float32)
        scale_blocks(out, self._steps, self._block, 0)
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


def _sizes(count: int, parameter: int) -> tuple[int, int, int, int, int]:
    block, phase, bits = read_block_parameter(parameter)
    need(bits in LEVEL_BITS, f"LEVELS of {bits} bits; there are 2, 4 and 8")
    return block, phase, bits, block_counts(count, block, phase), -(-count * bits // 8)


def levels_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    *_, blocks, packed = _sizes(count, parameter)
    return 4 * blocks + packed


def decode_levels(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return the values of a LEVELS payload."""
    block, phase, bits, blocks, packed = _sizes(count, parameter)
    need(
        len(payload) == 4 * blocks + packed,
        f"{len(payload)} bytes for {count} LEVELS of {bits} bits in {blocks} blocks",
    )
    steps = np.frombuffer(payload, "<f4", blocks)
    codes = np.frombuffer(payload, np.uint8, packed, 4 * blocks)
    spare = packed * 8 - count * bits
    need(not spare or int(codes[-1]) >> (8 - spare) == 0, "bits after the last of the LEVELS")
    out = _unpack(codes, count, bits)
    scale_blocks(out, steps, block, phase)
    return out
