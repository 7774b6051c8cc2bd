"""Rows: values, optimizer state and steps of numbered rows, in slabs that never move.

The first slab holds a few rows, each further one as many as all before it, so that a handful of
slabs holds any number and growing copies nothing. A slab is not touched before its rows are used:
until then the system gives it no memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiops.shards.sparse.index import RowNumbers

__all__ = ["STEPS", "VALUES", "Rows"]

VALUES: Final = ""
STEPS: Final = "#"
"""Names of the values and the steps among the arrays; those of the state are the optimizer's."""

FIRST_SLAB_BYTES: Final = 4 * 1024 * 1024
"""Of values. Few slabs make few pieces of every request, and what is not used costs nothing."""


class _Part(NamedTuple):
    """Some of the rows asked for that lie in one slab: which, and where they lie there."""

    slab: int
    which: NDArray[np.int64] | None  # None: all
    local: RowNumbers


class Rows:
    """The rows of one shard.

    Parameters
    ----------
    width
        Values in a row.
    slots
        Names of the arrays of the state.
    counted
        Whether rows count their steps, in an array of width 1.

    Attributes
    ----------
    count
        Rows that there are.
    row_bytes
        What one takes: values, state and steps.
    """

    __slots__ = ("_bounds", "_forms", "_slabs", "count", "row_bytes", "width")

    def __init__(self, width: int, slots: Sequence[str], *, counted: bool) -> None:
        self.width = width
        self._forms: dict[str, tuple[int, type[np.generic]]] = dict.fromkeys(
            (VALUES, *slots), (width, np.float32)
        )
        if counted:
            self._forms[STEPS] = (1, np.uint32)
        self.row_bytes = 4 * sum(columns for columns, _ in self._forms.values())
        self.count = 0
        self._bounds = [0]  # of the slabs, in rows
        self._slabs: list[dict[str, NDArray[Any]]] = []

    def empty(self, count: int) -> dict[str, NDArray[Any]]:
        """Return fresh arrays for so many rows, by name."""
        return {name: np.empty((count, wide), kind) for name, (wide, kind) in self._forms.items()}

    def add(self, count: int) -> range:
        """Make so many new rows; return their numbers. Their content is undefined."""
        first = self.count
        self.count += count
        while self._bounds[-1] < self.count:
            size = self._bounds[-1] or max(1, FIRST_SLAB_BYTES // (4 * self.width))
            self._slabs.append(self.empty(size))
            self._bounds.append(self._bounds[-1] + size)
        return range(first, self.count)

    def _split(self, rows: RowNumbers) -> Iterator[_Part]:
        if not rows.size:
            return
        first, last = np.searchsorted(self._bounds, (rows.min(), rows.max()), side="right") - 1
        if first == last:
            yield _Part(first, None, rows - self._bounds[first])
            return
        for slab in range(first, last + 1):
            here = (rows >= self._bounds[slab]) & (rows < self._bounds[slab + 1])
            which = np.flatnonzero(here)
            if which.size:
                yield _Part(slab, which, rows[which] - self._bounds[slab])

    def gather(self, rows: RowNumbers, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Copy rows into arrays of shape (len(rows), width), by name."""
        for slab, which, local in self._split(rows):
            for name, into in arrays.items():
                stored = self._slabs[slab][name]
                if which is None:
                    np.take(stored, local, axis=0, out=into, mode="clip")
                else:
                    into[which] = np.take(stored, local, axis=0, mode="clip")

    def scatter(self, rows: RowNumbers, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set rows from arrays of shape (len(rows), width), by name."""
        for slab, which, local in self._split(rows):
            for name, values in arrays.items():
                self._slabs[slab][name][local] = values if which is None else values[which]
