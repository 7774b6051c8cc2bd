"""Where the elements of a table are: rows to key ranges, key ranges to servers and segments.

Pure: it computes the pieces of a push or pull and checks the rows that the user passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from aiops.errors import UsageError
from aiops.wording import shown
from aiops_protocol.control import ShardPart
from aiops_protocol.key_range import KeyRange, Ranges, cut_ranges, rows_to_ranges
from aiops_protocol.limits import RANGES_PER_FRAME_MAX, SEGMENT_ELEMENTS
from aiops_protocol.payload import Buffer

__all__ = ["Choice", "Layout", "Piece", "Rows"]

Rows = slice | range | Sequence[int] | NDArray[Any]
"""Rows of a table by first axis: a slice with step 1, or row numbers."""


class Piece(NamedTuple):
    """What one frame covers: the shard, its keys, and which elements of the user's array.

    `keys` is the sorted list of a sparse table; `begin` and `end` are then its first key and one
    more than its last.
    """

    shard: int
    begin: int
    end: int
    ranges: Buffer
    start: int
    stop: int
    keys: Buffer = b""


class Choice(NamedTuple):
    """Rows that a call names. `order` puts unique sorted rows into the order asked."""

    shape: tuple[int, ...]
    pieces: list[Piece]
    order: NDArray[np.int64] | None
    unique: NDArray[np.int64] | None


class Layout:
    """The elements of one table over its shards.

    Parameters
    ----------
    name, shape
        Of the table; for messages and sizes.
    parts
        Which server holds which range, in key order.
    """

    def __init__(self, name: str, shape: tuple[int, ...], parts: Sequence[ShardPart]) -> None:
        self.name = name
        self.shape = shape
        self.size = prod(shape)
        self.rows = shape[0] if shape else 1
        self.width = prod(shape[1:])
        self.servers = [part.server for part in parts]
        self._ranges = [KeyRange(part.begin, part.end) for part in parts]
        self.whole = Choice(shape, self._cut(0, self.size), None, None)

    def _cut(self, begin: int, end: int) -> list[Piece]:
        """Cut a range of keys at shard bounds and, within a shard, at whole segments."""
        pieces = []
        for index, shard in enumerate(self._ranges):
            at, stop = max(begin, shard.begin), min(end, shard.end)
            while at < stop:
                segment = (at - shard.begin) // SEGMENT_ELEMENTS + 1
                upper = min(shard.begin + segment * SEGMENT_ELEMENTS, stop)
                pieces.append(Piece(index, at, upper, b"", at - begin, upper - begin))
                at = upper
        if not self.size:
            # An empty table still has a shard that answers.
            pieces.append(Piece(0, 0, 0, b"", 0, 0))
        return pieces

    def describe(self) -> list[dict[str, int]]:
        """Return the range map: server, begin, end and bytes of each part."""
        return [
            {"server": server, "begin": part.begin, "end": part.end, "bytes": 4 * part.size}
            for server, part in zip(self.servers, self._ranges, strict=True)
        ]

    def elements(self, choice: Choice) -> slice | NDArray[np.int64] | None:
        """Return which elements of the table these rows have; `None` for all."""
        if choice is self.whole:
            return None
        if choice.unique is None:
            if not choice.pieces:
                return slice(0, 0)
            return slice(choice.pieces[0].begin, choice.pieces[-1].end)
        places = choice.unique[:, None] * self.width + np.arange(self.width)
        return places.reshape(-1)

    def choose(self, rows: Rows | None, verb: str) -> Choice:
        """Return the pieces for these rows; `UsageError` for rows that do not exist."""
        if rows is None:
            return self.whole
        if not self.shape:
            raise UsageError(f"{verb} on table {self.name}: a table of shape () has no rows")
        if isinstance(rows, slice):
            return self._choose_slice(rows, verb)
        return self._choose_list(rows, verb)

    def _choose_slice(self, rows: slice, verb: str) -> Choice:
        start = _bound(rows.start, 0, f"{verb} on table {self.name}: rows")
        stop = _bound(rows.stop, self.rows, f"{verb} on table {self.name}: rows")
        if rows.step not in (None, 1):
            raise UsageError(
                f"{verb} on table {self.name}: rows has step {rows.step}; pass numpy.arange(...) "
                "for rows that are not neighbours"
            )
        if not 0 <= start <= stop <= self.rows:
            raise UsageError(
                f"{verb} on table {self.name}: rows {start}:{stop} are outside of its "
                f"{self.rows} rows (negative numbers are not counted from the end)"
            )
        shape = (stop - start, *self.shape[1:])
        begin, end = start * self.width, stop * self.width
        return Choice(shape, self._cut(begin, end) if begin < end else [], None, None)

    def _choose_list(self, rows: Any, verb: str) -> Choice:
        try:
            numbers = np.asarray(rows)
            given = f"{numbers.dtype} of shape {numbers.shape}"
        except ValueError:
            numbers, given = np.empty(()), "lists of different lengths"
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise UsageError(
                f"{verb} on table {self.name}: rows must be a slice or a one-dimensional array of "
                f"integers, not {given}"
            )
        if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= self.rows):
            wrong = numbers[(numbers < 0) | (numbers >= self.rows)][0]
            raise UsageError(
                f"{verb} on table {self.name}: row {wrong} is outside of its {self.rows} rows"
            )
        unique, order = np.unique(numbers.astype(np.int64), return_inverse=True)
        shape = (numbers.size, *self.shape[1:])
        ranges = rows_to_ranges(unique, self.width)
        return Choice(shape, self._cut_ranges(ranges), order.astype(np.int64), unique)

    def _cut_ranges(self, ranges: Ranges) -> list[Piece]:
        if not ranges.size:
            return []
        bounds = [shard.begin for shard in self._ranges] + [self._ranges[-1].end]
        cut = cut_ranges(ranges, bounds)
        owner = np.searchsorted(np.asarray(bounds[:-1], np.uint64), cut[:, 0], side="right") - 1
        pieces: list[Piece] = []
        at = 0
        for index in np.unique(owner).tolist():
            mine = cut[owner == index]
            for group in _groups(mine):
                size = int((group[:, 1] - group[:, 0]).sum())
                raw = group.astype("<u8").tobytes() if len(group) > 1 else b""
                pieces.append(Piece(index, int(group[0, 0]), int(group[-1, 1]), raw, at, at + size))
                at += size
        return pieces


def _groups(ranges: Ranges) -> list[Ranges]:
    """Cut a shard's ranges into frames: at most a segment of elements and 2,048 ranges each."""
    sizes = (ranges[:, 1] - ranges[:, 0]).astype(np.int64)
    if sizes.max() > SEGMENT_ELEMENTS:
        first, last = int(ranges[0, 0]), int(ranges[-1, 1])
        ranges = cut_ranges(ranges, range(first, last, SEGMENT_ELEMENTS))
        sizes = (ranges[:, 1] - ranges[:, 0]).astype(np.int64)
    groups: list[Ranges] = []
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ranges):
        base = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, base + SEGMENT_ELEMENTS, side="right"))
        stop = min(max(stop, start + 1), start + RANGES_PER_FRAME_MAX)
        groups.append(ranges[start:stop])
        start = stop
    return groups


def _bound(value: SupportsIndex | None, default: int, what: str) -> int:
    if value is None:
        return default
    try:
        return value.__index__()
    except AttributeError:
        raise UsageError(f"{what} has the bound {shown(value)}; it must be an integer") from None
