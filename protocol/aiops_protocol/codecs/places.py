"""Places of a sparse vector in few bits, and numbers in unary: what forms with gaps share.

The places ascend, so their upper bits are nearly a counter: those are written in unary, the lower
ones as they are (Elias, 1974; Fano, 1971; "quasi-succinct" in Vigna, WSDM 2013). That is within
a bit a place of the least that any code could take for places drawn by chance, and both halves
are read and written by whole-array operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.form import need
from aiops_protocol.payload import Buffer

__all__ = [
    "pack_bits",
    "pack_places",
    "pack_unary",
    "places_bytes",
    "unpack_bits",
    "unpack_places",
    "unpack_unary",
]

Bits = NDArray[np.bool_]


def pack_bits(bits: Bits | NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put bits into bytes, from the lowest bit of each; bits after the last are zero."""
    return np.packbits(bits, bitorder="little")


def unpack_bits(payload: Buffer, at: int, count: int) -> Bits:
    """Return `count` bits of a payload from the byte `at` on.

    Raises
    ------
    MalformedFrame
        A bit after the last is one.
    """
    packed = np.frombuffer(payload, np.uint8, -(-count // 8), at)
    spare = packed.size * 8 - count
    need(not spare or int(packed[-1]) >> (8 - spare) == 0, "bits after the last one")
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def _split(entries: int, count: int) -> tuple[int, int]:
    """Return how many lower bits a place has, and how long its upper ones are in unary."""
    if not entries:
        return 0, 0
    low = (count // entries).bit_length() - 1
    return low, entries + (count - 1 >> low)


def places_bytes(entries: int, count: int) -> int:
    """Return the bytes of so many places in a vector of `count` values."""
    low, high_bits = _split(entries, count)
    return -(-entries * low // 8) - (-high_bits // 8)


def pack_places(places: NDArray[np.int64], count: int) -> bytes:
    """Return ascending places below `count` as bytes, the lower bits of all first."""
    low, high_bits = _split(places.size, count)
    upper = np.zeros(high_bits, np.bool_)
    upper[(places >> low) + np.arange(places.size)] = True
    lower = b""
    if low:
        width = -(-low // 8)
        wanted = places.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
        lower = pack_bits(np.unpackbits(wanted, axis=1, count=low, bitorder="little")).tobytes()
    return lower + pack_bits(upper).tobytes()


def unpack_places(payload: Buffer, at: int, entries: int, count: int) -> NDArray[np.int64]:
    """Return the places that `pack_places` wrote at the byte `at`; the payload is long enough.

    Raises
    ------
    MalformedFrame
        They do not ascend or are not below `count`, or a bit after the last is one.
    """
    low, high_bits = _split(entries, count)
    width = -(-low // 8)
    lower = np.zeros((entries, 8), np.uint8)
    if low:
        bits = unpack_bits(payload, at, entries * low).reshape(entries, low)
        lower[:, :width] = np.packbits(bits, axis=1, bitorder="little")
    upper = np.flatnonzero(unpack_bits(payload, at + -(-entries * low // 8), high_bits))
    need(upper.size == entries, f"{upper.size} places where {entries} are announced")
    places: NDArray[np.int64] = (upper - np.arange(entries)) << low
    places |= lower.view("<i8").reshape(entries)
    if entries:
        need(bool((places[1:] > places[:-1]).all()), "places that do not ascend")
        need(int(places[-1]) < count, f"place {places[-1]} in a vector of {count} values")
    return places


def pack_unary(numbers: NDArray[np.int64]) -> bytes:
    """Return numbers from 1 on as bytes: of each, so many bits of which the last is one."""
    ends = np.cumsum(numbers)
    bits = np.zeros(int(ends[-1]) if ends.size else 0, np.bool_)
    bits[ends - 1] = True
    return pack_bits(bits).tobytes()


def unpack_unary(payload: Buffer, at: int, entries: int) -> NDArray[np.int64]:
    """Return the `entries` numbers that `pack_unary` wrote from the byte `at` to the end.

    Raises
    ------
    MalformedFrame
        There are more or fewer, or a byte after the last.
    """
    size = len(payload) - at
    ends = np.flatnonzero(unpack_bits(payload, at, 8 * size)) + 1
    need(ends.size == entries, f"{ends.size} numbers in unary where {entries} are announced")
    need(size == (-(-int(ends[-1]) // 8) if entries else 0), "bytes after the last number in unary")
    return np.diff(ends, prepend=0)
