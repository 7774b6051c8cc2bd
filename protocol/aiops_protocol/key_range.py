"""Key ranges and who owns them: the algebra that every role shares.

A `KeyRange` is half-open, [begin, end). A `Partition` tiles the keys of one table over the
servers: disjoint, without a gap, the same on every node because it is computed from shared
bounds. Lists of many ranges are `(n, 2)` arrays of uint64, never Python loops.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALIGNMENT_ELEMENTS",
    "KeyRange",
    "Partition",
    "Ranges",
    "cut_ranges",
    "flat_indices",
    "rows_to_ranges",
    "split",
]

ALIGNMENT_ELEMENTS = 16
"""Ranges are cut at multiples of one cache line of float32."""

Ranges = NDArray[np.uint64]
"""Many key ranges: shape (n, 2), begin and end, sorted and disjoint."""


class KeyRange(NamedTuple):
    """Half-open range of uint64 keys, [begin, end)."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of keys in the range."""
        return self.end - self.begin

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """Return the common part, or `None` if there is none."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        return KeyRange(begin, end) if begin < end else None

    def __str__(self) -> str:
        return f"[{self.begin}, {self.end})"


def split(elements: int, parts: int, alignment: int = ALIGNMENT_ELEMENTS) -> list[KeyRange]:
    """Cut [0, elements) into `parts` ranges, equal to within one alignment unit.

    Shared bounds make gaps and overlaps impossible. With fewer aligned units than parts,
    some ranges are empty.
    """
    units = -(-elements // alignment)
    bounds = [min(units * i // parts * alignment, elements) for i in range(parts + 1)]
    return [KeyRange(begin, end) for begin, end in pairwise(bounds)]


class Partition:
    """Which owner (a server rank) holds which range of one table.

    Parameters
    ----------
    parts
        `(owner, range)` pairs in key order that tile [0, size). An empty table has one part,
        the empty range, so that somebody answers for it.
    """

    __slots__ = ("_begins", "parts", "size")

    def __init__(self, parts: Sequence[tuple[int, KeyRange]]) -> None:
        if not parts:
            raise ValueError("a partition needs at least one part")
        if parts[0][1].begin != 0:
            raise ValueError(f"a partition starts at key 0, not {parts[0][1].begin}")
        if parts[0][1].size < 0:
            raise ValueError(f"a part of a partition is reversed: {parts[0][1]}")
        for (_, left), (_, right) in pairwise(parts):
            if left.end != right.begin or left.size <= 0 or right.size <= 0:
                raise ValueError(f"a partition tiles without gaps: {left} is followed by {right}")
        self.parts = tuple(parts)
        self.size = parts[-1][1].end
        self._begins = [part.begin for _, part in parts]

    @classmethod
    def balanced(
        cls, elements: int, servers: int, first: int = 0, alignment: int = ALIGNMENT_ELEMENTS
    ) -> Partition:
        """Tile `elements` keys over `servers` ranks, the first part at rank `first % servers`.

        Parts begin at multiples of `alignment`. Tables start at different servers, so that many
        small tables spread as well.
        """
        ranges = split(elements, servers, alignment)
        filled = [part for part in ranges if part.size] or [KeyRange(0, 0)]
        return cls([((first + i) % servers, part) for i, part in enumerate(filled)])

    def owner_of(self, key: int) -> int:
        """Return the owner of one key; `IndexError` outside of the table."""
        if not 0 <= key < self.size:
            raise IndexError(f"key {key} is outside of [0, {self.size})")
        return self.parts[bisect_right(self._begins, key) - 1][0]

    def cut(self, begin: int, end: int) -> Iterator[tuple[int, KeyRange]]:
        """Yield `(index of part, range)` for every part that [begin, end) touches.

        What lies outside of the table touches nothing.
        """
        begin, end = max(begin, 0), min(end, self.size)
        if begin >= end:
            return
        index = bisect_right(self._begins, begin) - 1
        while index < len(self.parts) and self.parts[index][1].begin < end:
            part = self.parts[index][1]
            yield index, KeyRange(max(begin, part.begin), min(end, part.end))
            index += 1


def rows_to_ranges(rows: NDArray[np.int64], width: int) -> Ranges:
    """Turn sorted, unique row numbers into element ranges; neighbouring rows become one range."""
    if rows.size == 0 or width == 0:
        return np.empty((0, 2), np.uint64)
    starts = np.append(0, np.flatnonzero(np.diff(rows) != 1) + 1)
    ends = np.append(starts[1:], rows.size)
    ranges = np.empty((starts.size, 2), np.uint64)
    ranges[:, 0] = rows[starts].astype(np.uint64) * np.uint64(width)
    ranges[:, 1] = (rows[ends - 1].astype(np.uint64) + np.uint64(1)) * np.uint64(width)
    return ranges


def cut_ranges(ranges: Ranges, bounds: Sequence[int]) -> Ranges:
    """Cut sorted disjoint ranges at every bound that lies inside of one of them."""
    if not ranges.size:
        return ranges
    marks = np.unique(np.concatenate([ranges.ravel(), np.asarray(bounds, np.uint64)]))
    pieces = np.stack([marks[:-1], marks[1:]], axis=1)
    owner = np.searchsorted(ranges[:, 0], pieces[:, 0], side="right")
    inside = (owner > 0) & (pieces[:, 1] <= ranges[np.maximum(owner, 1) - 1, 1])
    kept: Ranges = pieces[inside]
    return kept


def flat_indices(ranges: Ranges, offset: int = 0) -> NDArray[np.int64]:
    """Return every key of the ranges, in order, less `offset`: for gather and scatter."""
    begins = ranges[:, 0].astype(np.int64) - offset
    sizes = (ranges[:, 1] - ranges[:, 0]).astype(np.int64)
    total = int(sizes.sum())
    indices = np.arange(total, dtype=np.int64)
    indices += np.repeat(begins - np.append(0, np.cumsum(sizes)[:-1]), sizes)
    return indices
