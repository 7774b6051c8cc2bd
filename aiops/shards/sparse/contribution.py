"""What one worker gave to a sparse shard in the open round, kept apart until its close.

The memory is counted as it comes, and with it what the rows would take that are not there yet: at
the close no new row may fail for want of memory.
"""

from __future__ import annotations

import numpy as np

from aiops.shards.sparse.memory import NoRoom
from aiops.shards.sparse.shard import KeyedRows, SparseShard
from aiops_protocol.key_list import Keys
from aiops_protocol.payload import Float32Array

__all__ = ["SparseAssignment", "SparseContribution"]


class _Pieces:
    """Rows as they came, each piece with sorted and unique keys."""

    __slots__ = ("_kept", "_memory", "_pieces", "_reserved", "_row_bytes", "_width")

    def __init__(self, shard: SparseShard) -> None:
        self._memory = shard.memory
        self._width = shard.width
        self._row_bytes = shard.row_bytes + 24  # and the entry of the index
        self._pieces: list[KeyedRows] = []
        self._kept = 0  # bytes of the pieces
        self._reserved = 0  # bytes that their rows may need at the close

    def keep(self, keys: Keys, values: Float32Array) -> None:
        """Keep a copy of rows."""
        kept, reserved = keys.nbytes + values.nbytes, keys.size * self._row_bytes
        if not self._memory.take(kept + reserved):
            raise NoRoom(f"{keys.size} rows that wait for their round have no place in memory")
        self._kept += kept
        self._reserved += reserved
        self._pieces.append(KeyedRows(keys.copy(), values.reshape(-1, self._width).copy()))

    def release_rows(self) -> None:
        """Give back what new rows may need: they are about to be made."""
        self._memory.give(self._reserved)
        self._reserved = 0

    def reset(self) -> None:
        """Keep nothing."""
        self._memory.give(self._kept + self._reserved)
        self._kept = self._reserved = 0
        self._pieces = []


class SparseContribution(_Pieces):
    """The sum, in call order, of what one worker pushed to a shard in one round."""

    __slots__ = ()

    def add(self, where: Keys, values: Float32Array) -> None:
        """Add the rows of one push.

        Raises
        ------
        NoRoom
            There is no memory for it.
        """
        self.keep(where, values)

    def whole(self) -> KeyedRows:
        """Return the sum; its rows are about to be made."""
        self.release_rows()
        if not self._pieces:
            return KeyedRows(np.empty(0, np.uint64), np.empty((0, self._width), np.float32))
        if len(self._pieces) > 1:
            self._pieces = [_sum(self._pieces, self._width)]
        return self._pieces[0]


class SparseAssignment(_Pieces):
    """What one worker assigned in one round; takes effect when the round closes."""

    __slots__ = ()

    def set(self, where: Keys, values: Float32Array) -> None:
        """Note new values; the last of one worker wins. `NoRoom` as for a push."""
        self.keep(where, values)

    def write_to(self, shard: SparseShard) -> None:
        """Carry the assignment out."""
        self.release_rows()
        for keys, values in self._pieces:
            shard.write(keys, values)


def _sum(pieces: list[KeyedRows], width: int) -> KeyedRows:
    """Add pieces up, in their order, row by row."""
    together = np.concatenate([piece.keys for piece in pieces])
    keys = np.unique(together)
    if keys.size == together.size:  # segments of one push: nothing to add, only to put in order
        order = np.argsort(together)
        return KeyedRows(keys, np.concatenate([piece.values for piece in pieces])[order])
    total = np.full((keys.size, width), -0.0, np.float32)
    for piece in pieces:
        total[np.searchsorted(keys, piece.keys)] += piece.values
    return KeyedRows(keys, total)
