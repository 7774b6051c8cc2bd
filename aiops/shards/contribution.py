"""What one worker gave to a shard in the open round, kept apart from the values until its close.

Which round is open and who takes part is the business of `aiops.roles`; here are only arrays.
As in `aiops.shards`, callers set numpy's errstate.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops.shards.shard import Selection, Shard
from aiops_protocol.payload import Float32Array

__all__ = ["ASSIGNMENT_BYTES", "CONTRIBUTION_BYTES", "Assignment", "Contribution"]

CONTRIBUTION_BYTES: Final = 5
"""Per element of a shard: float32, and a mark that it has been pushed."""

ASSIGNMENT_BYTES: Final = 5
"""Per element of a shard: float32, and a mark that it has been assigned."""

PIECES_MAX: Final = 64
"""Separate ranges that are remembered as such: a table in 64 slices is usual, a thousand single
rows go by a mark for each element, so that neither time nor memory grows with their number."""


class Contribution:
    """The sum, in call order, of what one worker pushed to a shard in one round.

    What is pushed first to a place is copied there, so nothing is zeroed beforehand, and the
    sum of a single push has exactly its bits (the sign of a zero included). The memory is
    allocated at the first push and kept for the next rounds.
    """

    __slots__ = ("_bounds", "_pushed", "_size", "_sum")

    def __init__(self, size: int) -> None:
        self._size = size
        self._sum: Float32Array | None = None
        self._bounds: list[int] = []  # begin, end, begin, end... of what was pushed; sorted
        self._pushed: NDArray[np.bool_] | None = None  # in place of the bounds: per element

    def add(self, where: Selection, values: Float32Array) -> None:
        """Add the values of one push."""
        total = self._sum
        if total is None:
            total = self._sum = np.empty(self._size, np.float32)
        if self._pushed is None and isinstance(where, slice):
            self._add_range(total, where.start, where.stop, values)
        else:
            self._add_marked(total, where, values)

    def _add_range(self, total: Float32Array, start: int, stop: int, values: Float32Array) -> None:
        bounds = self._bounds
        if start == stop:
            return
        if not bounds or start > bounds[-1]:
            total[start:stop] = values
            bounds += (start, stop)
        elif start == bounds[-1]:
            total[start:stop] = values
            bounds[-1] = stop
        else:
            self._add_over(total, start, stop, values)
        if len(bounds) > 2 * PIECES_MAX:
            self._mark()

    def _add_over(self, total: Float32Array, start: int, stop: int, values: Float32Array) -> None:
        """Add where something was pushed before, copy where nothing was."""
        at, first, last = start, start, stop
        apart: list[int] = []
        for low, high in zip(self._bounds[::2], self._bounds[1::2], strict=True):
            if high < start or low > stop:
                apart += (low, high)
                continue
            first, last = min(first, low), max(last, high)
            low, high = max(low, start), min(high, stop)
            total[at:low] = values[at - start : low - start]
            total[low:high] += values[low - start : high - start]
            at = high
        total[at:stop] = values[at - start :]
        self._bounds[:] = sorted([*apart, first, last])

    def _mark(self) -> NDArray[np.bool_]:
        """Go over from bounds to a mark for each element."""
        pushed = self._pushed = np.zeros(self._size, np.bool_)
        for low, high in zip(self._bounds[::2], self._bounds[1::2], strict=True):
            pushed[low:high] = True
        self._bounds = []
        return pushed

    def _add_marked(self, total: Float32Array, where: Selection, values: Float32Array) -> None:
        pushed = self._pushed if self._pushed is not None else self._mark()
        total[where] = np.where(pushed[where], total[where] + values, values)
        pushed[where] = True

    def whole(self) -> Float32Array:
        """Return the sum over the whole shard; where nothing was pushed it is zero."""
        if self._sum is None:
            self._sum = np.empty(self._size, np.float32)
        if self._bounds == [0, self._size]:
            return self._sum
        if self._pushed is not None:
            self._sum[~self._pushed] = 0.0
            self._pushed = None
        else:
            at = 0
            for low, high in zip(self._bounds[::2], self._bounds[1::2], strict=True):
                self._sum[at:low] = 0.0
                at = high
            self._sum[at:] = 0.0
        self._bounds = [0, self._size]
        return self._sum

    def reset(self) -> None:
        """Start the next round; the memory is kept."""
        self._bounds = []
        self._pushed = None


class Assignment:
    """What one worker assigned in one round; takes effect when the round closes."""

    __slots__ = ("_assigned", "_values")

    def __init__(self, size: int) -> None:
        self._values = np.empty(size, np.float32)
        self._assigned = np.zeros(size, np.bool_)

    def set(self, where: Selection, values: Float32Array) -> None:
        """Note new values; the last of one worker wins."""
        self._values[where] = values
        self._assigned[where] = True

    def write_to(self, shard: Shard) -> None:
        """Carry the assignment out."""
        np.copyto(shard.values, self._values, where=self._assigned)

    def reset(self) -> None:
        """Keep nothing; the memory goes with the object."""
        self._assigned[:] = False
