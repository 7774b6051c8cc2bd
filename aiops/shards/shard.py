"""A server's slice of one dense table: the values, the optimizer's state, and arithmetic on them.

Keys are flat element indices; a shard holds [begin, end). When to apply what is the business
of the consistency rules in `aiops.roles`, and so is what the workers of a round gave
(`aiops.shards.contribution`); nothing here knows workers, clocks or frames.

All arithmetic is elementwise and in blocks that stay in cache, so the bits of a result do
not depend on how a table is cut over servers. Overflow is a fact about the training, to be
seen in the values: callers wrap a whole request in `np.errstate(all="ignore")`, because
entering that costs as much as a small update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops.optim import Optimizer, Steps
from aiops.optim.guard import is_ours, update_guarded
from aiops.shards.reduction import Reduction
from aiops_protocol.frames import Request
from aiops_protocol.key_range import flat_indices
from aiops_protocol.payload import Buffer, Float32Array

__all__ = ["BLOCK_ELEMENTS", "Selection", "Shard", "select", "selected_elements"]

BLOCK_ELEMENTS: Final = 65_536
"""256 KiB of float32: values, gradient and state of a block stay in a 2 MiB cache."""

Selection: TypeAlias = "slice | NDArray[np.int64]"
"""The elements that a request names, relative to the shard: one slice, or sorted indices
without repeats."""

_NO_STATE: Final[Mapping[str, Float32Array]] = {}


def select(begin: int, end: int, ranges: Buffer, offset: int) -> Selection:
    """Select [begin, end), or the raw `ranges` if given, in a shard that starts at `offset`."""
    if not ranges:
        return slice(begin - offset, end - offset)
    return flat_indices(np.frombuffer(ranges, "<u8").reshape(-1, 2), offset)


def selected_elements(where: Selection) -> int:
    """Return how many elements are selected."""
    return int(where.stop - where.start) if isinstance(where, slice) else where.size


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
    finite
        An optimizer of somebody's own may leave no NaN and no infinity.

    Attributes
    ----------
    clock
        The furthest clock of any step so far: what a learning rate that is a `Schedule` goes by.
        It never goes back, so a worker that comes late trains at the rate of the others.
    """

    __slots__ = (
        "_finite",
        "_guarded",
        "_now",
        "_scheduled",
        "_scratch",
        "_steps",
        "_work",
        "begin",
        "clock",
        "end",
        "optimizer",
        "size",
        "state",
        "values",
    )

    def __init__(
        self,
        begin: int,
        end: int,
        optimizer: Optimizer,
        values: Float32Array,
        *,
        finite: bool = False,
    ) -> None:
        size = end - begin
        assert values.shape == (size,)
        self.begin = begin
        self.end = end
        self.size = size
        self.optimizer = optimizer
        self.values = values
        self.state = {slot: np.zeros(size, np.float32) for slot in optimizer.slots}
        block = min(size, BLOCK_ELEMENTS)
        self._scratch = np.empty(block, np.float32)
        self._work = np.empty(block, np.float32)
        self._steps: list[Steps] = [0] * -(-size // BLOCK_ELEMENTS)
        self.clock = 0
        self._scheduled = optimizer.scheduled
        self._now = optimizer.at(0)
        # Ours are plain numpy on arrays that fit; only a stranger's code can fail half-way.
        self._guarded = not is_ours(optimizer)
        self._finite = finite

    def select(self, request: Request) -> Selection:
        """Return the elements that a request names."""
        return select(request.begin, request.end, request.ranges, self.begin)

    def elements(self, where: Selection) -> int:
        """Return how many values these are."""
        return selected_elements(where)

    def read(self, where: Selection) -> Float32Array:
        """Return the selected values: a view for a slice, a copy for many indices."""
        return self.values[where]

    def write(self, where: Selection, values: Float32Array) -> None:
        """Set the selected values; the optimizer's state stays."""
        self.values[where] = values

    def apply(self, where: Selection, gradient: Float32Array, clock: int = 0) -> None:
        """Let the optimizer step the selected elements once. A writeable gradient is used up.

        `clock` is that of the worker. For an optimizer that needs it each element counts its own
        steps, so that neither rows pushed apart nor the cutting of a push into frames and shards
        makes a difference. If the optimizer raises, nothing has changed.
        """
        if self._scheduled:
            self._see(clock)
        kept = self._keep(where) if self._guarded else None
        try:
            if isinstance(where, slice):
                self._apply_range(where.start, where.stop, gradient)
            else:
                self._apply_scattered(where, gradient)
        except Exception:
            if kept is not None:
                self._restore(where, kept)
            raise

    def _apply_range(self, start: int, end: int, gradient: Float32Array) -> None:
        if not gradient.flags.writeable:
            gradient = self._writeable(gradient)
        if end - start == self.size <= BLOCK_ELEMENTS and end > start:
            # A small table whole: the common case, without slicing.
            step = self._count(0, slice(0, end))
            self._run(self.values, gradient, self.state, step)
            return
        at = start
        while at < end:
            block = at // BLOCK_ELEMENTS
            stop = min((block + 1) * BLOCK_ELEMENTS, end)
            base = block * BLOCK_ELEMENTS
            step = self._count(block, slice(at - base, stop - base))
            self._update(at, stop, gradient[at - start : stop - start], step)
            at = stop

    def _writeable(self, gradient: Float32Array) -> Float32Array:
        if gradient.size > self._work.size:
            return gradient.copy()
        work = self._work[: gradient.size]
        np.copyto(work, gradient)
        return work

    def _apply_scattered(self, indices: NDArray[np.int64], gradient: Float32Array) -> None:
        if not indices.size:
            return
        first, last = int(indices[0]) // BLOCK_ELEMENTS, int(indices[-1]) // BLOCK_ELEMENTS
        bounds = np.arange(first, last + 2) * BLOCK_ELEMENTS
        marks = np.searchsorted(indices, bounds).tolist()
        for block, low, high in zip(range(first, last + 1), marks, marks[1:], strict=False):
            if low == high:
                continue
            at = indices[low:high]
            values = self.values[at]
            state = {slot: array[at] for slot, array in self.state.items()}
            work = self._work[: at.size]
            np.copyto(work, gradient[low:high])
            step = self._count(block, at - block * BLOCK_ELEMENTS)
            self._run(values, work, state, step)
            self.values[at] = values
            for slot, array in self.state.items():
                array[at] = state[slot]

    def _update(self, start: int, stop: int, gradient: Float32Array, step: Steps) -> None:
        state = (
            {slot: array[start:stop] for slot, array in self.state.items()}
            if self.state
            else _NO_STATE
        )
        self._run(self.values[start:stop], gradient, state, step)

    def _run(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
    ) -> None:
        if not self._guarded:
            self._now.update(values, gradient, state, step, self._scratch)
            return
        update_guarded(self._now, values, gradient, state, step, self._scratch, finite=self._finite)

    def _see(self, clock: int) -> None:
        if clock > self.clock:
            self.clock = clock
            self._now = self.optimizer.at(clock)

    def _count(self, block: int, within: Selection) -> Steps:
        """Count a step of some elements of a block; return how many each of them has had.

        One number does for a block as long as all its elements have been stepped equally often.
        """
        if not self.optimizer.uses_step:
            return 1
        steps = self._steps[block]
        size = min(BLOCK_ELEMENTS, self.size - block * BLOCK_ELEMENTS)
        whole = isinstance(within, slice) and within.stop - within.start == size
        if not isinstance(steps, np.ndarray):
            if whole:
                steps += 1
                self._steps[block] = steps
                return steps
            steps = self._steps[block] = np.full(size, steps, np.uint32)
        steps[within] += 1
        mine = steps[within]
        if mine.min() != mine.max():
            return mine
        count = int(mine[0])
        if whole:
            self._steps[block] = count
        return count

    def _keep(self, where: Selection) -> tuple[Any, ...]:
        arrays = [array[where].copy() for array in (self.values, *self.state.values())]
        steps = [s.copy() if isinstance(s, np.ndarray) else s for s in self._steps]
        return (*arrays, steps)

    def _restore(self, where: Selection, kept: tuple[Any, ...]) -> None:
        *arrays, self._steps = kept
        for array, old in zip((self.values, *self.state.values()), arrays, strict=True):
            array[where] = old

    def step(
        self,
        contributions: Sequence[Float32Array],
        reduction: Reduction,
        step: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Reduce whole contributions in the order given, and step every element once.

        `step` counts the rounds, and the clock is one less. If the optimizer raises, nothing has
        changed.
        """
        if self._scheduled:
            self._see(step - 1)
        kept = self._keep(slice(0, self.size)) if self._guarded else None
        try:
            self._step_all(contributions, reduction, step, weights)
        except Exception:
            if kept is not None:
                self._restore(slice(0, self.size), kept)
            raise

    def _step_all(
        self,
        contributions: Sequence[Float32Array],
        reduction: Reduction,
        step: int,
        weights: Sequence[float] | None,
    ) -> None:
        for start in range(0, self.size, BLOCK_ELEMENTS):
            stop = min(start + BLOCK_ELEMENTS, self.size)
            total = self._work[: stop - start]
            pieces = [contribution[start:stop] for contribution in contributions]
            reduction.reduce(pieces, weights, total)
            if total.size == self.size:  # small and whole, as above
                self._run(self.values, total, self.state, step)
            else:
                self._update(start, stop, total, step)
