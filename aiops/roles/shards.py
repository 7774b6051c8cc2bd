"""What consistency rules need of a shard, dense or sparse, and what waits beside it for a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from aiops.init import Initializer
from aiops.optim import Optimizer
from aiops.shards.contribution import Assignment, Contribution
from aiops.shards.reduction import Reduction
from aiops.shards.shard import Shard
from aiops.shards.sparse import Memory, SparseAssignment, SparseContribution, SparseShard
from aiops_protocol.control import OpenShard
from aiops_protocol.frames import Request
from aiops_protocol.payload import Float32Array

__all__ = [
    "AnyAssignment",
    "AnyContribution",
    "AnyShard",
    "Where",
    "Whole",
    "assignment_for",
    "contribution_for",
    "nothing_from",
    "shard_for",
]

Where: TypeAlias = Any
"""What a request names: a `Selection` of a dense shard, the keys of a sparse one."""

Whole: TypeAlias = Any
"""What a worker gave to a round in all: an array over the shard, or rows with their keys."""


class AnyShard(Protocol):
    """A `Shard` or a `SparseShard`; each takes only what it gave itself."""

    @property
    def begin(self) -> int:
        """First key."""
        ...

    @property
    def end(self) -> int:
        """End of the keys."""
        ...

    @property
    def size(self) -> int:
        """Elements for which every contribution needs memory; 0 if they come row by row."""
        ...

    @property
    def optimizer(self) -> Optimizer:
        """What a gradient does."""
        ...

    def select(self, request: Request) -> Where:
        """Return what a request names."""
        ...

    def elements(self, where: Where) -> int:
        """Return how many values that is."""
        ...

    def read(self, where: Where) -> Float32Array:
        """Return the values."""
        ...

    def write(self, where: Where, values: Float32Array) -> None:
        """Set the values."""
        ...

    def apply(self, where: Where, gradient: Float32Array, clock: int = 0) -> None:
        """Let the optimizer step what is named, once."""
        ...

    def step(
        self,
        contributions: Sequence[Whole],
        reduction: Reduction,
        step: int,
        weights: Sequence[float] | None = None,
    ) -> None:
        """Reduce whole contributions and let the optimizer step."""
        ...


class AnyContribution(Protocol):
    """What one worker pushed in a round."""

    def add(self, where: Where, values: Float32Array) -> None:
        """Add the values of one push."""
        ...

    def whole(self) -> Whole:
        """Return the sum."""
        ...

    def reset(self) -> None:
        """Start the next round."""
        ...


class AnyAssignment(Protocol):
    """What one worker assigned in a round."""

    def set(self, where: Where, values: Float32Array) -> None:
        """Note new values."""
        ...

    def write_to(self, shard: Any) -> None:
        """Carry the assignment out."""
        ...

    def reset(self) -> None:
        """Keep nothing."""
        ...


def shard_for(
    order: OpenShard, optimizer: Optimizer, initializer: Initializer | None, memory: Memory
) -> AnyShard:
    """Make the part of a new table that a server is to hold.

    Parameters
    ----------
    initializer
        `None` if a worker will bring the values, which only a dense table allows.
    memory
        Where the rows of a sparse table come from; a dense one has its place already.
    """
    spec, begin, end = order.spec, order.begin, order.end
    finite = not spec.allow_nonfinite
    if spec.layout == "dense":
        filled = initializer.fill(begin, end) if initializer else np.zeros(end - begin, np.float32)
        return Shard(begin, end, optimizer, filled, finite=finite)
    assert initializer is not None
    return SparseShard(
        begin,
        end,
        spec.shape[0],
        hashed=spec.layout == "hashed",
        optimizer=optimizer,
        initializer=initializer,
        memory=memory,
        finite=finite,
    )


def contribution_for(shard: AnyShard) -> AnyContribution:
    """Return a place for what a worker pushes to a shard in a round."""
    return SparseContribution(shard) if isinstance(shard, SparseShard) else Contribution(shard.size)


def assignment_for(shard: AnyShard) -> AnyAssignment:
    """Return a place for what a worker assigns in a round."""
    return SparseAssignment(shard) if isinstance(shard, SparseShard) else Assignment(shard.size)


def nothing_from(shard: AnyShard) -> Whole:
    """Return what a worker gave that pushed only to other shards: zeros, or no rows."""
    if isinstance(shard, SparseShard):
        return SparseContribution(shard).whole()
    return np.zeros(shard.size, np.float32)
