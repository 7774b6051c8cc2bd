"""A server's slice of one sparse table: rows by key, the optimizer's state, arithmetic on them.

The keys are those of the wire: sorted, and in tables of layout `hashed` mixed, which spreads them
over the range that the shard holds. A key that has no row reads as its initial value, which follows
from the key and the seed alone; the first change makes the row. What happens to a row depends on
what was pushed to it and on nothing else of the table, so the bits do not depend on how the keys
are spread over servers.

Each row counts its own steps, with and without rounds, for optimizers that ask for them: a row that
is seldom touched is then corrected like one that is young.

As in `aiops.shards`, callers set numpy's errstate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiops.init import Initializer
from aiops.optim import Optimizer, Steps
from aiops.optim.clipping import clip_rows, row_limit
from aiops.optim.guard import is_ours, update_guarded
from aiops.shards.reduction import Reduction
from aiops.shards.sparse.index import INDEX_ROWS_MAX, RowIndex, RowNumbers
from aiops.shards.sparse.memory import Memory, NoRoom
from aiops.shards.sparse.rows import STEPS, VALUES, Rows
from aiops_protocol.frames import Request
from aiops_protocol.key_list import Keys, as_keys, mix
from aiops_protocol.payload import Float32Array

__all__ = ["KeyedRows", "SparseShard"]

BLOCK_ELEMENTS: Final = 65_536
"""256 KiB of float32: values, gradient and state of a block stay in a 2 MiB cache."""

RESERVED_ROWS: Final = 1024
"""Rows are counted against the server's memory in steps of so many."""


class KeyedRows(NamedTuple):
    """Rows with their keys, which are sorted and unique: shapes (n,) and (n, width)."""

    keys: Keys
    values: Float32Array

    def copy_to(self, keys: Keys, out: Float32Array) -> None:
        """Copy the rows of keys, sorted and all of them here, into an array of theirs."""
        start = int(np.searchsorted(self.keys, keys[0]))
        np.copyto(out, self.values[start : start + keys.size])

    def over(self, keys: Keys) -> Float32Array:
        """Return rows for these keys, which are sorted; negative zeros where there are none.

        Adding anything to a negative zero gives exactly that.
        """
        low = int(np.searchsorted(self.keys, keys[0]))
        high = int(np.searchsorted(self.keys, keys[-1], side="right"))
        if high - low == keys.size:  # the same ones: callers ask for no fewer than are here
            return self.values[low:high]
        rows = np.full((keys.size, self.values.shape[1]), -0.0, np.float32)
        rows[np.searchsorted(keys, self.keys[low:high])] = self.values[low:high]
        return rows


class SparseShard:
    """Rows of the keys [begin, end) of a table.

    Parameters
    ----------
    begin, end
        Range of keys held, as they travel.
    width
        Values in a row.
    hashed
        Whether the keys that travel are mixed.
    optimizer
        What a gradient does to the values.
    initializer
        Gives the values of a row that nobody has changed.
    memory
        What new rows are taken from.
    finite
        An optimizer of somebody's own may leave no NaN and no infinity.

    Attributes
    ----------
    size
        0: nothing is reserved before rows come.
    memory
        The limit that new rows, and what waits for a round, count against.
    clock
        The furthest clock of any step so far, by which learning rates go; see `Shard`.
    """

    __slots__ = (
        "_finite",
        "_guarded",
        "_hashed",
        "_index",
        "_initializer",
        "_now",
        "_reserved_bytes",
        "_reserved_rows",
        "_row_limit",
        "_rows",
        "_scheduled",
        "_scratch",
        "begin",
        "clock",
        "end",
        "memory",
        "optimizer",
        "width",
    )

    size: Final = 0

    def __init__(
        self,
        begin: int,
        end: int,
        width: int,
        *,
        hashed: bool,
        optimizer: Optimizer,
        initializer: Initializer,
        memory: Memory,
        finite: bool = False,
    ) -> None:
        self.begin = begin
        self.end = end
        self.width = width
        self.optimizer = optimizer
        self.memory = memory
        self._hashed = hashed
        self._initializer = initializer
        self._index = RowIndex()
        self._rows = Rows(width, optimizer.slots, counted=optimizer.uses_step)
        self.clock = 0
        self._scheduled = optimizer.scheduled
        self._now = optimizer.at(0)
        self._reserved_rows = 0
        self._reserved_bytes = 0
        self._scratch = np.empty(max(BLOCK_ELEMENTS, width), np.float32)
        # Ours are plain numpy on arrays that fit; only a stranger's code can fail half-way.
        self._guarded = not is_ours(optimizer)
        self._finite = finite
        self._row_limit = row_limit(optimizer)

    # --- what is there ---

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._rows.count

    @property
    def row_bytes(self) -> int:
        """Values, state and steps of one row."""
        return self._rows.row_bytes

    @property
    def nbytes(self) -> int:
        """What the rows and their index take of the server's memory."""
        return self._reserved_bytes

    def select(self, request: Request) -> Keys:
        """Return the keys that a request names."""
        return as_keys(request.keys)

    def elements(self, where: Keys) -> int:
        """Return how many values these keys have."""
        return where.size * self.width

    def _words(self, keys: Keys) -> Keys:
        """Return the keys as the index has them, evenly spread."""
        return keys if self._hashed else mix(keys)

    # --- reading ---

    def read(self, where: Keys) -> Float32Array:
        """Return the values of keys, in their order, as a new flat array; no row is made."""
        words = self._words(where)
        values = np.empty((where.size, self.width), np.float32)
        self._look(words, self._index.find(words), {VALUES: values})
        return values.reshape(-1)

    def _look(self, words: Keys, rows: RowNumbers, arrays: dict[str, NDArray[Any]]) -> None:
        """Fill arrays with what the keys hold, those without a row what they begin with."""
        missing = np.flatnonzero(rows < 0)
        if not missing.size:
            self._rows.gather(rows, arrays)
            return
        there = np.flatnonzero(rows >= 0)
        if there.size:
            found = {name: np.empty_like(into[: there.size]) for name, into in arrays.items()}
            self._rows.gather(rows[there], found)
            for name, into in arrays.items():
                into[there] = found[name]
        for name, into in arrays.items():
            if name == VALUES:
                into[missing] = self._initializer.fill_rows(words[missing], self.width)
            else:
                into[missing] = 0

    # --- writing ---

    def write(self, where: Keys, values: Float32Array) -> None:
        """Set the values of keys; the optimizer's state stays."""
        words = self._words(where)
        rows = self._index.find(words)
        missing = np.flatnonzero(rows < 0)
        self._make_room(missing.size)
        if missing.size:
            self._create(words, rows, missing)
            fresh = self._rows.empty(missing.size)
            for array in fresh.values():
                array.fill(0)
            self._rows.scatter(rows[missing], fresh)
        self._rows.scatter(rows, {VALUES: values.reshape(-1, self.width)})

    def apply(self, where: Keys, gradient: Float32Array, clock: int = 0) -> None:
        """Let the optimizer step the rows of these keys once; `clock` is that of the worker.

        Raises
        ------
        NoRoom
            There is no memory for the new rows among them. Nothing has changed, and neither has it
            if the optimizer raises.
        """
        self._see(clock)
        given = KeyedRows(where, gradient.reshape(-1, self.width))
        self._step_rows(where, lambda keys, out: given.copy_to(keys, out))

    def _see(self, clock: int) -> None:
        if self._scheduled and clock > self.clock:
            self.clock = clock
            self._now = self.optimizer.at(clock)

    def step(
        self,
        contributions: Sequence[KeyedRows],
        reduction: Reduction,
        step: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Reduce whole contributions in the order given, and step every row in any of them.

        A contribution that lacks a row counts as zeros there. `step` counts the rounds, and the
        clock is one less. If the optimizer raises, nothing has changed.
        """
        self._see(step - 1)
        keys = [contribution.keys for contribution in contributions if contribution.keys.size]
        if not keys:
            return

        def reduce(some: Keys, out: Float32Array) -> None:
            pieces = [contribution.over(some) for contribution in contributions]
            reduction.reduce(pieces, weights, out)

        self._step_rows(keys[0] if len(keys) == 1 else np.unique(np.concatenate(keys)), reduce)

    def _step_rows(self, keys: Keys, fill: Callable[[Keys, Float32Array], None]) -> None:
        """Step rows by the gradients that `fill` gives; by blocks, if nothing can go wrong."""
        words = self._words(keys)
        rows = self._index.find(words)
        self._make_room(int((rows < 0).sum()))
        if self._guarded:
            size = keys.size
            if size * self.width > self._scratch.size:
                self._scratch = np.empty(size * self.width, np.float32)
        else:
            size = max(1, BLOCK_ELEMENTS // self.width)
        for start in range(0, keys.size, size):
            block = slice(start, start + size)
            total = np.empty((rows[block].size, self.width), np.float32)
            fill(keys[block], total)
            if self._row_limit is not None:
                clip_rows(total, self._row_limit)
            self._step_block(words[block], rows[block], total)

    def _step_block(self, words: Keys, rows: RowNumbers, total: Float32Array) -> None:
        arrays = self._rows.empty(rows.size)
        self._look(words, rows, arrays)
        values, gradient = arrays[VALUES].reshape(-1), total.reshape(-1)
        state = {slot: arrays[slot].reshape(-1) for slot in self.optimizer.slots}
        step = self._count(arrays)
        if self._guarded:
            update_guarded(
                self._now, values, gradient, state, step, self._scratch, finite=self._finite
            )
        else:
            self._now.update(values, gradient, state, step, self._scratch)
        missing = np.flatnonzero(rows < 0)
        if missing.size:
            self._create(words, rows, missing)
        self._rows.scatter(rows, arrays)

    def _count(self, arrays: dict[str, NDArray[Any]]) -> Steps:
        """Count a step of these rows; return how many each of their elements has had."""
        steps = arrays.get(STEPS)
        if steps is None:
            return 1
        np.add(steps, 1, out=steps)
        if steps.min() == steps.max():
            return int(steps[0, 0])
        return np.repeat(steps[:, 0], self.width)

    # --- rows that come into being ---

    def _make_room(self, count: int) -> None:
        """Take memory for so many new rows."""
        needed = self.rows + count
        if needed <= self._reserved_rows:
            return
        if needed > INDEX_ROWS_MAX:
            raise NoRoom(f"a server holds at most {INDEX_ROWS_MAX} rows of a table")
        reserved = -(-needed // RESERVED_ROWS) * RESERVED_ROWS
        size = reserved * self.row_bytes + self._index.bytes_with(reserved - self.rows)
        if not self.memory.take(size - self._reserved_bytes):
            raise NoRoom(
                f"{count} new rows of {self.row_bytes} bytes besides {self.rows} have no place in "
                "this server's memory; add servers or raise the memory limit"
            )
        self._reserved_rows, self._reserved_bytes = reserved, size
        self._index.reserve(reserved - self.rows)

    def _create(self, words: Keys, rows: RowNumbers, missing: RowNumbers) -> None:
        """Make the rows that are missing, and note their numbers in place."""
        made = self._rows.add(missing.size)
        numbers = np.arange(made.start, made.stop, dtype=np.int64)
        rows[missing] = numbers
        self._index.insert(words[missing], numbers.astype(np.uint32))

    def release(self) -> None:
        """Give the memory back; the shard is not used any more."""
        self.memory.give(self._reserved_bytes)
        self._reserved_bytes = self._reserved_rows = 0

    def validate(self) -> None:
        """Check what must always hold."""
        assert self._index.size == self.rows <= self._reserved_rows
        assert self._reserved_bytes in (
            0,
            self._reserved_rows * self.row_bytes + self._index.nbytes,
        )
