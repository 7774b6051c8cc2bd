"""A worker's copy of a table's public replica, and how answers to pulls bring it up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aiops.compression.pull_gate import PullGate
from aiops.compression.pulls import WISH_SHIFT
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
    gate
        Chooses how the values come, if the table says so.
    """

    def __init__(self, spelling: str, layout: Layout, gate: PullGate | None = None) -> None:
        self.values: Float32Array = np.zeros(0 if gate else layout.size, np.float32)
        self.gate = gate
        self._spelling = spelling
        self._size = layout.size
        self._pulls = 0
        self._received = 0  # bytes
        self.busy = False
        self._versions: dict[int, int] = {}  # by first element of a piece

    def comes_plain(self) -> bool:
        """Count a pull; whether it asks for the values as they are, past the copy."""
        self._pulls += 1
        plain = self.busy or (self.gate is not None and self.gate.choose())
        if plain:
            self._received += 4 * self._size
        elif not self.values.size:
            self.values = np.zeros(self._size, np.float32)  # the first time that there is a copy
        return plain

    def version(self, piece: Piece) -> int:
        """Return of which version this worker has a piece, -1 for none."""
        return self._versions.get(piece.start, UNKNOWN)

    def word(self, piece: Piece, *, plain: bool) -> int:
        """Return what a pull of this piece tells the server: the version here, and the wish."""
        known = 0 if plain else 1 + self.version(piece)
        return known if self.gate is None else known | self.gate.place << WISH_SHIFT

    def stats(self) -> dict[str, Any]:
        """Return what pulls have brought; and what the gate has chosen, and why."""
        stats: dict[str, Any] = {
            "codec": self._spelling,
            "pulls": self._pulls,
            "bytes_meant": 4 * self._size * self._pulls,
            "bytes_received": self._received,
        }
        if self.gate is not None:
            stats |= {"chosen": self.gate.chosen, "reason": self.gate.reason}
        return stats

    def taker(self, piece: Piece) -> Callable[[Reply], Buffer]:
        """Return what takes the answer for a piece and returns the values that it makes.

        It raises `MalformedFrame` for an answer that is none; the piece is asked for whole then.
        """
        start, stop = piece.start, piece.stop

        def take(reply: Reply) -> Buffer:
            mine = self.values[start:stop]
            self._received += len(reply.payload)
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
