"""Where the rows of a sparse table are: keys as users give them to the lists that travel.

Pure: it checks keys, brings them into the order of the wire, and cuts them at the bounds of the
shards and into frames. A frame never cuts a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiops.errors import UsageError
from aiops.tables.layout import Choice, Piece
from aiops_protocol.control import ShardPart
from aiops_protocol.key_list import KEY_END, Keys, mix
from aiops_protocol.limits import KEYS_PER_LIST_MAX, SEGMENT_BYTES
from aiops_protocol.payload import Float32Array

__all__ = ["KeyChoice", "KeyLayout", "Wanted"]

Wanted = Sequence[int] | NDArray[Any]
"""Keys of rows in any order: integers from 0 to 2**64-2, repeats allowed."""


class KeyChoice(NamedTuple):
    """Keys that a call names, in the order of the wire.

    `keys` has each once, as they travel. `order` sorts what the user gave for each key; `starts`
    tells where in that order each key begins, `None` if none is there twice.
    """

    choice: Choice
    keys: Keys
    order: NDArray[np.int64]
    starts: NDArray[np.int64] | None

    def gathered(self, given: Float32Array) -> Float32Array:
        """Return the rows given for the keys in the order of the wire, repeated ones added up."""
        ordered = np.take(given, self.order, axis=0, mode="clip")  # twice as fast as [order]
        if self.starts is None or not ordered.size:
            return ordered
        summed: Float32Array = np.add.reduceat(ordered, self.starts, axis=0)
        return summed

    def spread(self, rows: Float32Array, into: Float32Array) -> None:
        """Put the rows of the wire into the order in which the user gave the keys."""
        if self.starts is None:
            into[self.order] = rows
            return
        counts = np.diff(np.append(self.starts, self.order.size))
        into[self.order] = np.repeat(rows, counts, axis=0)


class KeyLayout:
    """The keys of one sparse table over its shards.

    Parameters
    ----------
    name, width
        Of the table; for messages and sizes.
    hashed
        Whether keys travel mixed.
    parts
        Which server holds which range, in key order.
    """

    def __init__(self, name: str, width: int, *, hashed: bool, parts: Sequence[ShardPart]) -> None:
        self.name = name
        self.width = width
        self._hashed = hashed
        self._parts = parts
        self._bounds = np.array([part.begin for part in parts[1:]], np.uint64)
        self._step = max(1, min(KEYS_PER_LIST_MAX, SEGMENT_BYTES // (8 + 4 * width)))

    def describe(self) -> list[dict[str, int]]:
        """Return the range map: server, begin and end of each part, in keys as they travel."""
        return [
            {"server": part.server, "begin": part.begin, "end": part.end} for part in self._parts
        ]

    def choose(self, keys: Wanted, verb: str) -> KeyChoice:
        """Return the pieces for these keys; `UsageError` for what is no key."""
        given = _checked(keys, f"{verb} on table {self.name}")
        words = mix(given) if self._hashed else given
        order = np.argsort(words)
        ordered = words[order]
        starts: NDArray[np.int64] | None = None
        fresh = ordered[1:] != ordered[:-1]
        if not fresh.all():
            # Rows of one key are added up in the order given. Four times slower, so only then.
            order = np.argsort(words, kind="stable")
            starts = np.append(0, np.flatnonzero(fresh) + 1)
            ordered = ordered[starts]
        words = ordered
        choice = Choice((words.size, self.width), self.cut(words), None, None)
        return KeyChoice(choice, words, order, starts)

    def cut(self, words: Keys) -> list[Piece]:
        """Cut keys as they travel, sorted, into frames for the shards."""
        marks = [0, *np.searchsorted(words, self._bounds).tolist(), words.size]
        memory = words.data.cast("B") if words.size else memoryview(b"")
        pieces = []
        for shard in range(len(self._parts)):
            low, high = marks[shard], marks[shard + 1]
            for at in range(low, high, self._step):
                stop = min(at + self._step, high)
                pieces.append(
                    Piece(
                        shard,
                        int(words[at]),
                        int(words[stop - 1]) + 1,
                        b"",
                        at * self.width,
                        stop * self.width,
                        memory[8 * at : 8 * stop],
                    )
                )
        return pieces


def _checked(keys: Any, what: str) -> Keys:
    """Return keys as uint64; `UsageError` if they are anything else."""
    if isinstance(keys, np.ma.MaskedArray):
        raise UsageError(f"{what}: masked arrays do not travel; pass keys.compressed()")
    try:
        numbers = np.asarray(keys)
    except ValueError:
        raise UsageError(f"{what}: keys are lists of different lengths; pass one list") from None
    if numbers.ndim != 1:
        raise UsageError(f"{what}: keys have shape {numbers.shape}; pass one dimension")
    if not numbers.size:
        return np.empty(0, np.uint64)
    if numbers.dtype.kind not in "iu":
        # Numbers of 2**63 and more in a list that numpy would take for floats or objects.
        plain = not isinstance(keys, np.ndarray) and numbers.dtype.kind != "b"
        if (
            not (plain and all(isinstance(key, int) for key in keys))
            or not 0 <= min(keys) <= max(keys) <= KEY_END
        ):
            hint = (
                " (numpy.flatnonzero(mask) gives those of a mask)" if numbers.dtype == bool else ""
            )
            raise UsageError(
                f"{what}: keys must be integers from 0 to 2**64-2, not {numbers.dtype}{hint}"
            )
        numbers = np.array(list(keys), np.uint64)
    if numbers.dtype.kind == "i" and int(numbers.min()) < 0:
        raise UsageError(f"{what}: {int(numbers.min())} is no key; keys are 0 to 2**64-2")
    checked: Keys = numbers.astype(np.uint64)
    if int(checked.max()) == KEY_END:
        raise UsageError(f"{what}: 2**64-1 is no key; keys are 0 to 2**64-2")
    return checked
