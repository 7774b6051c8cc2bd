"""SEEDED: one value of each group of neighbours; a seed says which, so no places travel."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs.draws import hashes
from aiops_protocol.codecs.form import Decoded, Encoded, Sparse, Wire, need, pack
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["Seeded", "decode_seeded", "seeded_bytes_max", "seeded_places"]

HEADER: Final = struct.Struct("<QQ")


def seeded_places(seed: int, group: int, start: int, stop: int) -> NDArray[np.int64]:
    """Return the chosen places of [start, stop), of a vector cut into groups from its beginning.

    Of group g it is `g * group` plus the remainder of the hash of g by the length of a group.
    """
    first = start // group
    count = -(-stop // group) - first
    chosen = (hashes(seed, first, count) % np.uint64(group)).astype(np.int64)
    chosen += np.arange(first, first + count) * group
    return chosen[(chosen >= start) & (chosen < stop)]


class Seeded(Encoded):
    """The values at places that a seed chooses.

    Parameters
    ----------
    size
        Elements of the vector.
    seed
        Below 2**64.
    group
        Length of a group.
    values
        Those at `seeded_places(seed, group, 0, size)`.
    """

    def __init__(self, size: int, seed: int, group: int, values: Float32Array) -> None:
        self.size = size
        self._seed = seed
        self._group = group
        self._places = seeded_places(seed, group, 0, size)
        self._values = values

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        low, high = np.searchsorted(self._places, (start, stop))
        payload = pack(HEADER.pack(self._seed, start), self._values[low:high])
        return Wire(Codec.SEEDED, self._group, payload)

    def decoded(self) -> Decoded:
        """Return places and values."""
        return Sparse(self.size, self._places, self._values)


def seeded_bytes_max(count: int, parameter: int) -> int:
    """Return the largest payload for so many values."""
    need(parameter > 0, "SEEDED with groups of no values")
    return HEADER.size + 4 * min(count, count // parameter + 2)


def decode_seeded(payload: Buffer, count: int, parameter: int) -> Decoded:
    """Return places and values of a SEEDED payload."""
    need(parameter > 0, "SEEDED with groups of no values")
    need(len(payload) >= HEADER.size, f"{len(payload)} bytes of SEEDED")
    seed, start = HEADER.unpack_from(payload)
    need(start < 2**62, f"place {start} in a vector")
    places = seeded_places(seed, parameter, start, start + count) - start
    need(
        len(payload) == HEADER.size + 4 * places.size,
        f"{len(payload)} bytes of SEEDED for {places.size} values",
    )
    return Sparse(count, places, np.frombuffer(payload, "<f4", places.size, HEADER.size))
