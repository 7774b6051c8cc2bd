"""Which rows a worker trains on in which step.

What lives here: a pure rule from (seed, worker, step) to row numbers. What does not: the rows.
There is no state to restore: a worker that restarts at step k asks for batch k.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from aiops.errors import ConfigError
from aiops.optim.settings import whole
from aiops.trainers.readers.rows import IntArray


@dataclass(slots=True)
class Batches:
    """The batches of one worker, epoch after epoch.

    A worker owns every n-th row, n being the number of workers. In each epoch it visits its rows
    in a new order and cuts them into batches. All batches of all workers have the same size and
    all workers have the same number of them, so that in a synchronous mean each row weighs the
    same and nobody waits for a longer shard; the rows left over at the end of an epoch (fewer
    than one batch, and others in each epoch) sit it out. A worker with fewer rows than a batch
    takes them all.

    Parameters
    ----------
    rows
        How many rows there are to train on, for all workers together.
    batch_size
        Rows in a batch.
    part, parts
        This worker's place among the workers, counted from 0, and how many there are.
    seed
        Decides the orders.

    Raises
    ------
    ConfigError
        There are more workers than rows.
    """

    rows: int
    batch_size: int
    part: int
    parts: int
    seed: int = 0
    _epoch: int = field(default=-1, init=False, repr=False)
    _order: IntArray = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the numbers, and that there is a row for everybody."""
        for name, least in (("rows", 0), ("batch_size", 1), ("part", 0), ("parts", 1), ("seed", 0)):
            whole("batches", name, getattr(self, name), at_least=least)
        if self.part >= self.parts:
            raise ConfigError(f"batches: part is {self.part} of {self.parts}; they count from 0")
        if self.rows < self.parts:
            raise ConfigError(
                f"{self.rows} rows to train on cannot be shared by {self.parts} workers; "
                "use fewer workers"
            )

    @property
    def rows_each(self) -> int:
        """Rows that each worker has at least."""
        return self.rows // self.parts

    @property
    def size(self) -> int:
        """Rows in each batch."""
        return min(self.batch_size, self.rows_each)

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch, the same for all workers."""
        return self.rows_each // self.size

    def at(self, step: int) -> IntArray:
        """Return the row numbers of a step; steps count on through the epochs.

        Returns
        -------
        rows : ndarray of int64, shape (size,)
            A view; it must not be written to.
        """
        epoch, batch = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            # The part is in the key: shards of equal length must not move in the same pattern.
            shuffle = np.random.default_rng([self.seed, self.part, epoch])
            self._order = shuffle.permutation(np.arange(self.part, self.rows, self.parts))
            self._epoch = epoch
        return self._order[batch * self.size : (batch + 1) * self.size]
