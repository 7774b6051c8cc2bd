"""SPARSE_SIGNS: plus or minus one scale at some places, zero elsewhere; two bytes for a place."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import Decoded, Encoded, Sparse, Wire, need, pack
from aiops_protocol.codecs.sparse import gaps_of, places_of
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["SparseSigns", "decode_sparse_signs", "sparse_signs_bytes_max"]

HEADER: Final = struct.Struct("<If")
GAP_MAX: Final = 0x7FFF
NEGATIVE: Final = 0x8000


class SparseSigns(Encoded):
    """One scale with a sign at some places.

    Parameters
    ----------
    size
        Elements of the vector.
    indices
        Places, ascending, none twice.
    negative
        Whether each of them is negative.
    scale
        The absolute value of all.
    """

    def __init__(
        self,
        size: int,
        indices: NDArray[np.int64],
        negative: NDArray[np.bool_],
        scale: np.float32,
    ) -> None:
        self.size = size
        self._indices = indices
        self._negative = negative
        self._scale = scale

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        low, high = np.searchsorted(self._indices, (start, stop))
        gaps, at = gaps_of(self._indices[low:high] - start, GAP_MAX)
        entries = gaps.astype("<u2")
        entries[at] |= self._negative[low:high].astype(np.uint16) * np.uint16(NEGATIVE)
        payload = pack(HEADER.pack(entries.size, self._scale), entries)
        return Wire(Codec.SPARSE_SIGNS, 0, payload)

    def decoded(self) -> Decoded:
        """Return places and values."""
        return Sparse(self.size, self._indices, _signed(self._scale, self._negative))


def _signed(scale: np.float32, negative: NDArray[np.bool_]) -> Float32Array:
    return np.where(negative, -scale, scale).astype(np.float32)


def sparse_signs_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    return HEADER.size + 2 * (count + count // GAP_MAX)


def decode_sparse_signs(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return places and values of a SPARSE_SIGNS payload."""
    need(parameter == 0, f"parameter {parameter} for SPARSE_SIGNS, which has none")
    need(len(payload) >= HEADER.size, f"{len(payload)} bytes of SPARSE_SIGNS")
    entries, scale = HEADER.unpack_from(payload)
    need(
        len(payload) == HEADER.size + 2 * entries,
        f"{entries} places in {len(payload)} bytes of SPARSE_SIGNS",
    )
    codes = np.frombuffer(payload, "<u2", entries, HEADER.size)
    gaps = (codes & np.uint16(GAP_MAX)).astype(np.int64)
    places, real = places_of(gaps, GAP_MAX, count)
    return Sparse(count, places, _signed(np.float32(scale), codes[real] >= NEGATIVE))
