"""A server's slice of one dense table: the values, the optimizer's state, and arithmetic on them.

Keys are flat element indices; a shard holds [begin, end). When to apply what is the business
of the consistency rules in `aiops.roles`; nothing here knows workers, clocks or frames.
All arithmetic is elementwise and in blocks that stay in cache, so the bits of a result do
not depend on how a table is cut over servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from aiops.optim import Optimizer
from aiops_protocol.key_range import flat_indices
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["Assignment", "Contribution", "Selection", "Shard", "memory_bytes"]

BLOCK_ELEMENTS = 65_536
"""256 KiB of float32: values, gradient and state of a block stay in a 2 MiB cache."""


class Selection:
    """The elements that a request names, relative to the shard: one slice or many indices."""

    __slots__ = ("indices", "size", "start", "stop")

    def __init__(self, start: int, stop: int, indices: NDArray[np.int64] | None = None) -> None:
        self.start = start
        self.stop = stop
        self.indices = indices
        self.size = stop - start if indices is None else indices.size

    @classmethod
    def of(cls, begin: int, end: int, ranges: Buffer, offset: int) -> Selection:
        """Select [begin, end) or the raw `ranges`, in a shard that starts at `offset`."""
        if not ranges:
            return cls(begin - offset, end - offset)
        pairs = np.frombuffer(ranges, "<u8").reshape(-1, 2)
        return cls(begin - offset, end - offset, flat_indices(pairs, offset))


class Shard:
    """Values and optimizer state of the elements [begin, end) of a table.

    Parameters
    ----------
    begin, end
        Range of keys held.
    optimizer
        What a gradient does to the values.
    values
        Initial values, shape (end - begin,); the shard takes the array.
    """

    __slots__ = ("_scratch", "_steps", "_work", "begin", "end", "optimizer", "state", "values")

    def __init__(self, begin: int, end: int, optimizer: Optimizer, values: Float32Array) -> None:
        size = end - begin
        assert values.shape == (size,)
        self.begin = begin
        self.end = end
        self.optimizer = optimizer
        self.values = values
        self.state = {slot: np.zeros(size, np.float32) for slot in optimizer.slots}
        block = min(size, BLOCK_ELEMENTS)
        self._scratch = np.empty(block, np.float32)
        self._work = np.empty(block, np.float32)
        self._steps = np.zeros(-(-size // BLOCK_ELEMENTS), np.int64)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.end - self.begin

    def read(self, selection: Selection) -> Float32Array:
        """Return the selected values: a view for one range, a copy for many."""
        if selection.indices is None:
            return self.values[selection.start : selection.stop]
        return self.values[selection.indices]

    def write(self, selection: Selection, values: Float32Array) -> None:
        """Set the selected values; the optimizer's state stays."""
        if selection.indices is None:
            self.values[selection.start : selection.stop] = values
        else:
            self.values[selection.indices] = values

    def apply(self, selection: Selection, gradient: Float32Array) -> None:
        """Let the optimizer step the selected elements once. A writeable gradient is used up.

        The step number of an optimizer that needs one counts, per block of 65,536 elements,
        how often the block was stepped, because pieces of a large push arrive one by one.
        """
        if selection.indices is not None:
            self._apply_scattered(selection.indices, gradient)
            return
        start = selection.start
        while start < selection.stop:
            block = start // BLOCK_ELEMENTS
            stop = min((block + 1) * BLOCK_ELEMENTS, selection.stop)
            piece = gradient[start - selection.start : stop - selection.start]
            if not piece.flags.writeable:
                np.copyto(self._work[: piece.size], piece)
                piece = self._work[: piece.size]
            self._steps[block] += 1
            self._update(start, stop, piece, int(self._steps[block]))
            start = stop

    def _apply_scattered(self, indices: NDArray[np.int64], gradient: Float32Array) -> None:
        blocks = np.unique(indices // BLOCK_ELEMENTS)
        self._steps[blocks] += 1
        for block in blocks.tolist():
            low, high = np.searchsorted(
                indices, (block * BLOCK_ELEMENTS, (block + 1) * BLOCK_ELEMENTS)
            )
            at = indices[low:high]
            values = self.values[at]
            state = {slot: array[at] for slot, array in self.state.items()}
            work, scratch = self._work[: at.size], self._scratch[: at.size]
            np.copyto(work, gradient[low:high])
            with np.errstate(all="ignore"):
                self.optimizer.update(values, work, state, int(self._steps[block]), scratch)
            self.values[at] = values
            for slot, array in self.state.items():
                array[at] = state[slot]

    def _update(self, start: int, stop: int, gradient: Float32Array, step: int) -> None:
        state = {slot: array[start:stop] for slot, array in self.state.items()}
        scratch = self._scratch[: stop - start]
        # Overflow is a fact about the training, seen in the values; not an error of the server.
        with np.errstate(all="ignore"):
            self.optimizer.update(self.values[start:stop], gradient, state, step, scratch)

    def step(self, contributions: Sequence[Float32Array], divisor: int | None, step: int) -> None:
        """Fold whole contributions in the order given, divide, and step every element once.

        The sum is a float32 left fold, then one division by `float32(divisor)` (no division
        for `None`), as a single process would compute it.
        """
        for start in range(0, self.size, BLOCK_ELEMENTS):
            stop = min(start + BLOCK_ELEMENTS, self.size)
            total = self._work[: stop - start]
            with np.errstate(all="ignore"):
                np.copyto(total, contributions[0][start:stop])
                for contribution in contributions[1:]:
                    np.add(total, contribution[start:stop], out=total)
                if divisor is not None:
                    np.divide(total, np.float32(divisor), out=total)
            self._update(start, stop, total, step)


class Contribution:
    """What one worker pushed to a shard in one round: the sum in call order.

    The memory is allocated at the first push and kept for the next rounds. What is pushed
    first to a place is copied there, so nothing has to be zeroed beforehand.
    """

    __slots__ = ("_covered", "_size", "_sum")

    def __init__(self, size: int) -> None:
        self._size = size
        self._sum: Float32Array | None = None
        self._covered: list[tuple[int, int]] = []  # disjoint, sorted

    def add(self, selection: Selection, values: Float32Array) -> None:
        """Add the values of one push."""
        if self._sum is None:
            self._sum = np.empty(self._size, np.float32)
        if selection.indices is not None:
            self.whole()[selection.indices] += values
            return
        start, stop = selection.start, selection.stop
        at = start
        for low, high in self._covered:
            if high <= at or low >= stop:
                continue
            if at < low:
                self._sum[at:low] = values[at - start : low - start]
                at = low
            upper = min(high, stop)
            self._sum[at:upper] += values[at - start : upper - start]
            at = upper
        if at < stop:
            self._sum[at:stop] = values[at - start :]
        self._cover(start, stop)

    def _cover(self, start: int, stop: int) -> None:
        merged = []
        for low, high in self._covered:
            if high < start or low > stop:
                merged.append((low, high))
            else:
                start, stop = min(start, low), max(stop, high)
        merged.append((start, stop))
        merged.sort()
        self._covered = merged

    def whole(self) -> Float32Array:
        """Return the sum over the whole shard; where nothing was pushed it is zero."""
        if self._sum is None:
            self._sum = np.empty(self._size, np.float32)
        at = 0
        for low, high in self._covered:
            self._sum[at:low] = 0.0
            at = high
        self._sum[at:] = 0.0
        self._covered = [(0, self._size)]
        return self._sum

    def reset(self) -> None:
        """Start the next round; the memory is kept."""
        self._covered = []


class Assignment:
    """What one worker assigned in one round; takes effect when the round closes."""

    __slots__ = ("_mask", "_values")

    def __init__(self, size: int) -> None:
        self._values = np.empty(size, np.float32)
        self._mask = np.zeros(size, np.bool_)

    def set(self, selection: Selection, values: Float32Array) -> None:
        """Note new values; the last of one worker wins."""
        at = slice(selection.start, selection.stop)
        target = at if selection.indices is None else selection.indices
        self._values[target] = values
        self._mask[target] = True

    def write_to(self, shard: Shard) -> None:
        """Carry the assignment out."""
        np.copyto(shard.values, self._values, where=self._mask)


def memory_bytes(
    elements: int, optimizer: Optimizer, workers: int, *, rounds: bool
) -> tuple[int, Mapping[str, int]]:
    """Return what a shard needs at most, in all and by part.

    With rounds (BSP) every worker's contribution has a place of its own, reserved when the
    table is created, so that a late lowest rank always finds room.
    """
    parts = {
        "values": 4 * elements,
        "optimizer state": 4 * elements * len(optimizer.slots),
        "contributions": 4 * elements * workers if rounds else 0,
    }
    return sum(parts.values()), parts
