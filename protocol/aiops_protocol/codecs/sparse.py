"""SPARSE: the values at some places, zero elsewhere; places as numbers or packed into bits."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import Decoded, Encoded, Sparse, Wire, need, pack
from aiops_protocol.codecs.halves import from_half, to_bfloat16, to_float16
from aiops_protocol.codecs.places import pack_places, places_bytes, unpack_places
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = [
    "IndexKind",
    "SparseValues",
    "ValueKind",
    "decode_sparse",
    "sparse_bytes_max",
]

HEADER: Final = struct.Struct("<I")


class IndexKind(IntEnum):
    """How places are written."""

    NUMBERS = 0
    """Each as a `u32`."""
    PACKED = 1
    """Together, in two bits each more than the logarithm of their mean distance; see `places`."""


class ValueKind(IntEnum):
    """How values are written."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2


_VALUE_BYTES: Final = {ValueKind.FLOAT32: 4, ValueKind.FLOAT16: 2, ValueKind.BFLOAT16: 2}
_HALF: Final = {ValueKind.FLOAT16: Codec.FLOAT16, ValueKind.BFLOAT16: Codec.BFLOAT16}


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
        index = (
            places.astype("<u4")
            if self.index_kind is IndexKind.NUMBERS
            else pack_places(places, stop - start)
        )
        payload = pack(HEADER.pack(places.size), index, self._written[low:high])
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
    places = 4 * count if index_kind is IndexKind.NUMBERS else -(-count // 4) + 1
    return HEADER.size + places + _VALUE_BYTES[value_kind] * count


def decode_sparse(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return places and values of a SPARSE payload."""
    index_kind, value_kind = _kinds(parameter)
    need(len(payload) >= HEADER.size, f"{len(payload)} bytes of SPARSE")
    (entries,) = HEADER.unpack_from(payload)
    need(entries <= count, f"{entries} places in a vector of {count} values")
    numbers = index_kind is IndexKind.NUMBERS
    at = HEADER.size + (4 * entries if numbers else places_bytes(entries, count))
    need(
        len(payload) == at + _VALUE_BYTES[value_kind] * entries,
        f"{entries} places in {len(payload)} bytes of SPARSE",
    )
    if numbers:
        places = np.frombuffer(payload, "<u4", entries, HEADER.size).astype(np.int64)
        if entries:
            need(bool((places[1:] > places[:-1]).all()), "places that do not ascend")
            need(int(places[-1]) < count, f"place {places[-1]} in a vector of {count} values")
    else:
        places = unpack_places(payload, HEADER.size, entries, count)
    if value_kind is ValueKind.FLOAT32:
        return Sparse(count, places, np.frombuffer(payload, "<f4", entries, at))
    bits = np.frombuffer(payload, "<u2", entries, at)
    return Sparse(count, places, from_half(_HALF[value_kind], bits))
