"""SPARSE: the values at some places, zero elsewhere; places as numbers or as gaps."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import Decoded, Encoded, Sparse, Wire, need, pack
from aiops_protocol.codecs.halves import from_half, to_bfloat16, to_float16
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = [
    "IndexKind",
    "SparseValues",
    "ValueKind",
    "decode_sparse",
    "gaps_of",
    "places_of",
    "sparse_bytes_max",
]

HEADER: Final = struct.Struct("<I")
GAP_MAX: Final = 0xFFFF


class IndexKind(IntEnum):
    """How places are written."""

    NUMBERS = 0
    """Each as a `u32`."""
    GAPS = 1
    """The distance to the one before, less one, as a `u16`; 65,535 skips as many places."""


class ValueKind(IntEnum):
    """How values are written."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


_VALUE_BYTES: Final = {ValueKind.FLOAT32: 4, ValueKind.FLOAT16: 2, ValueKind.BFLOAT16: 2}
_INDEX_BYTES: Final = {IndexKind.NUMBERS: 4, IndexKind.GAPS: 2}
_HALF: Final = {ValueKind.FLOAT16: Codec.FLOAT16, ValueKind.BFLOAT16: Codec.BFLOAT16}


def gaps_of(places: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return gaps with skips of `most` between them, and where in the gaps the places are."""
    gaps = np.diff(places, prepend=-1) - 1
    skips = gaps // most
    if not skips.any():
        return gaps, np.arange(places.size)
    at = np.cumsum(skips + 1) - 1
    entries = np.full(int(at[-1]) + 1, most, np.int64)
    entries[at] = gaps % most
    return entries, at


def places_of(
    gaps: NDArray[np.int64], most: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the places that gaps lead to, and which of the gaps are no skips.

    Raises
    ------
    MalformedFrame
        A place outside of the vector, or a skip at the end.
    """
    real = gaps != most
    reached = np.cumsum(gaps + real)
    places = (reached - 1)[real]
    if gaps.size:
        need(bool(real[-1]), "a skip after the last place")
        need(int(places[-1]) < count, f"place {places[-1]} in a vector of {count} values")
    return places, real


class SparseValues(Encoded):
    """Values at some places.

    Parameters
    ----------
    size
        Elements of the vector.
    indices
        Places, ascending, none twice.
    values
        One for each place.
    index_kind, value_kind
        How both are written.
    """

    def __init__(
        self,
        size: int,
        indices: NDArray[np.int64],
        values: Float32Array,
        index_kind: IndexKind = IndexKind.NUMBERS,
        value_kind: ValueKind = ValueKind.FLOAT32,
    ) -> None:
        self.size = size
        self.indices = indices
        self.values = values
        self.index_kind = index_kind
        self._value_kind = value_kind
        if value_kind is ValueKind.FLOAT32:
            self._written: NDArray[np.uint16] | Float32Array = values
        else:
            half = to_float16 if value_kind is ValueKind.FLOAT16 else to_bfloat16
            self._written = half(values)
            self.values = from_half(_HALF[value_kind], self._written)

    def with_values(self, kind: ValueKind) -> SparseValues:
        """Return the same places with values of this kind."""
        return SparseValues(self.size, self.indices, self.values, self.index_kind, kind)

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        low, high = np.searchsorted(self.indices, (start, stop))
        places = self.indices[low:high] - start
        if self.index_kind is IndexKind.NUMBERS:
            index = places.astype("<u4")
            entries = places.size
        else:
            gaps, _ = gaps_of(places, GAP_MAX)
            index = gaps.astype("<u2")
            entries = gaps.size
        payload = pack(HEADER.pack(entries), index, self._written[low:high])
        return Wire(Codec.SPARSE, self.index_kind | self._value_kind << 8, payload)

    def decoded(self) -> Decoded:
        """Return places and values."""
        return Sparse(self.size, self.indices, self.values)


def _kinds(parameter: int) -> tuple[IndexKind, ValueKind]:
    try:
        kinds = IndexKind(parameter & 0xFF), ValueKind(parameter >> 8)
    except ValueError:
        raise MalformedFrame(f"SPARSE with the parameter {parameter:#x}") from None
    return kinds


def sparse_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    index_kind, value_kind = _kinds(parameter)
    entry = _INDEX_BYTES[index_kind] + _VALUE_BYTES[value_kind]
    return HEADER.size + entry * count + 2 * (count // GAP_MAX)


def decode_sparse(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return places and values of a SPARSE payload."""
    index_kind, value_kind = _kinds(parameter)
    need(len(payload) >= HEADER.size, f"{len(payload)} bytes of SPARSE")
    (entries,) = HEADER.unpack_from(payload)
    index_bytes = _INDEX_BYTES[index_kind] * entries
    at = HEADER.size + index_bytes
    need(len(payload) >= at, f"{entries} places in {len(payload)} bytes of SPARSE")
    if index_kind is IndexKind.NUMBERS:
        places = np.frombuffer(payload, "<u4", entries, HEADER.size).astype(np.int64)
        if entries:
            need(bool((places[1:] > places[:-1]).all()), "places that do not ascend")
            need(int(places[-1]) < count, f"place {places[-1]} in a vector of {count} values")
    else:
        gaps = np.frombuffer(payload, "<u2", entries, HEADER.size).astype(np.int64)
        places, _ = places_of(gaps, GAP_MAX, count)
    need(
        len(payload) == at + _VALUE_BYTES[value_kind] * places.size,
        f"{len(payload) - at} bytes for the values of {places.size} places",
    )
    if value_kind is ValueKind.FLOAT32:
        return Sparse(count, places, np.frombuffer(payload, "<f4", places.size, at))
    bits = np.frombuffer(payload, "<u2", places.size, at)
    return Sparse(count, places, from_half(_HALF[value_kind], bits))
