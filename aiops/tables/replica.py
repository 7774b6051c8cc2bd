"""A worker's copy of a table's public replica, and how answers to pulls bring it up to date."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aiops.shards.replica import add_decoded
from aiops.tables.layout import Layout, Piece
from aiops_protocol.codecs import decode_values, split_deltas
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec, Reply
from aiops_protocol.payload import Buffer, Float32Array, as_bytes, as_float32

__all__ = ["PulledReplica"]

UNKNOWN = -1


class PulledReplica:
    """The replica as far as this worker has pulled it.

    Attributes
    ----------
    values
        The whole table, flat.
    busy
        A pull is bringing it up to date; another one meanwhile asks for the values whole.
    """

    def __init__(self, layout: Layout) -> None:
        self.values: Float32Array = np.zeros(layout.size, np.float32)
        self.busy = False
        self._versions: dict[int, int] = {}  # by first element of a piece

    def version(self, piece: Piece) -> int:
        """Return of which version this worker has a piece, -1 for none."""
        return self._versions.get(piece.start, UNKNOWN)

    def taker(self, piece: Piece) -> Callable[[Reply], Buffer]:
        """Return what takes the answer for a piece and returns the values that it makes.

        It raises `MalformedFrame` for an answer that is none; the piece is asked for whole then.
        """
        start, stop = piece.start, piece.stop

        def take(reply: Reply) -> Buffer:
            mine = self.values[start:stop]
            self._versions.pop(start, None)  # half-way it is of no version
            if reply.codec == Codec.DELTAS:
                for codec, parameter, payload in split_deltas(reply.payload):
                    add_decoded(mine, decode_values(codec, payload, mine.size, parameter))
            elif len(reply.payload) == 4 * mine.size:
                mine[:] = as_float32(reply.payload)
            else:
                raise MalformedFrame(f"{len(reply.payload)} bytes for {mine.size} values")
            self._versions[start] = reply.version
            return as_bytes(mine)

        return take
