"""SPARSE_LEVELS: whole numbers at some places, zero elsewhere, times a step for each block."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import (
    Decoded,
    Encoded,
    Sparse,
    Wire,
    block_counts,
    block_parameter,
    blocks_of,
    need,
    pack,
    read_block_parameter,
)
from aiops_protocol.codecs.halves import from_half, to_bfloat16
from aiops_protocol.codecs.places import (
    pack_bits,
    pack_places,
    pack_unary,
    places_bytes,
    unpack_bits,
    unpack_places,
    unpack_unary,
)
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["SparseLevels", "decode_sparse_levels", "sparse_levels_bytes_max"]

HEADER: Final = struct.Struct("<I")
MAGNITUDE_MAX: Final = 127
SIGNS_ALONE: Final = 1
"""Extra bit of the parameter: every number is 1 or -1, and their magnitudes are not written."""


class SparseLevels(Encoded):
    """Whole numbers that are not zero, at some places, and a step for each block.

    Parameters
    ----------
    size
        Elements of the vector.
    indices
        Places, ascending, none twice.
    numbers
        One for each place, from -127 to 127 and not zero.
    steps
        One for each block; what a bfloat16 cannot hold of them is cut off.
    block
        Elements of a block, a power of two.
    """

    def __init__(
        self,
        size: int,
        indices: NDArray[np.int64],
        numbers: NDArray[np.int8],
        steps: Float32Array,
        block: int,
    ) -> None:
        self.size = size
        self._indices = indices
        self._numbers = numbers
        self._steps = to_bfloat16(steps)
        self._block = block
        self._signs_alone = bool((np.abs(numbers) == 1).all())

    @classmethod
    def of(cls, numbers: NDArray[np.int8], steps: Float32Array, block: int) -> SparseLevels:
        """Return the form of whole numbers, many of which are zero."""
        places = np.flatnonzero(numbers != 0)  # of bools it is five times as fast
        return cls(numbers.size, places, numbers[places], steps, block)

    @property
    def payload_bytes(self) -> int:
        """Bytes of the payload of the whole vector."""
        entries = self._numbers.size
        magnitudes = 0 if self._signs_alone else int(np.abs(self._numbers).sum(dtype=np.int64))
        bits = -(-entries // 8) - (-magnitudes // 8)
        return 2 * self._steps.size + HEADER.size + places_bytes(entries, self.size) + bits

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        low, high = np.searchsorted(self._indices, (start, stop))
        numbers = self._numbers[low:high]
        block = self._block
        payload = pack(
            self._steps[blocks_of(start, stop, block)],
            HEADER.pack(numbers.size),
            pack_places(self._indices[low:high] - start, stop - start),
            pack_bits(numbers < 0),
            b"" if self._signs_alone else pack_unary(np.abs(numbers).astype(np.int64)),
        )
        extra = SIGNS_ALONE if self._signs_alone else 0
        return Wire(Codec.SPARSE_LEVELS, block_parameter(block, start % block, extra), payload)

    def decoded(self) -> Decoded:
        """Return places and values."""
        values = self._numbers.astype(np.float32)
        values *= from_half(Codec.BFLOAT16, self._steps)[self._indices // self._block]
        return Sparse(self.size, self._indices, values)


def sparse_levels_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    block, phase, extra = read_block_parameter(parameter)
    steps = 2 * block_counts(count, block, phase)
    magnitudes = 0 if extra else -(-count * MAGNITUDE_MAX // 8)
    return steps + HEADER.size + -(-count // 4) + 1 + -(-count // 8) + magnitudes


def decode_sparse_levels(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return places and values of a SPARSE_LEVELS payload."""
    block, phase, extra = read_block_parameter(parameter)
    need(extra in (0, SIGNS_ALONE), "bits of the parameter that belong to nothing")
    blocks = block_counts(count, block, phase)
    need(
        len(payload) >= 2 * blocks + HEADER.size,
        f"{len(payload)} bytes of SPARSE_LEVELS in {blocks} blocks",
    )
    steps = from_half(Codec.BFLOAT16, np.frombuffer(payload, "<u2", blocks))
    (entries,) = HEADER.unpack_from(payload, 2 * blocks)
    need(entries <= count, f"{entries} places in a vector of {count} values")
    at = 2 * blocks + HEADER.size
    signs_at = at + places_bytes(entries, count)
    end = signs_at + -(-entries // 8)
    need(
        len(payload) == end or (not extra and len(payload) > end),
        f"{entries} places in {len(payload)} bytes of SPARSE_LEVELS",
    )
    places = unpack_places(payload, at, entries, count)
    negative = unpack_bits(payload, signs_at, entries)
    values = steps[(places + phase) // block]
    if not extra:
        magnitudes = unpack_unary(payload, end, entries)
        need(
            not entries or int(magnitudes.max()) <= MAGNITUDE_MAX,
            f"a number above {MAGNITUDE_MAX} in SPARSE_LEVELS",
        )
        values *= magnitudes.astype(np.float32)
    np.negative(values, out=values, where=negative)
    return Sparse(count, places, values)
