"""What the training loop needs of a worker and a table: the part of the public handles it uses.

`aiops.Worker` and `aiops.Table` have all of this and much more. The loop asks for no more than
what stands here, so that it also runs over a stand-in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from aiops.compression import Codec
from aiops.optim import Optimizer
from aiops.workers.ring import Ring
from aiops_protocol.payload import Float32Array


class TrainingMember(Protocol):
    """One node of the cluster."""

    @property
    def role(self) -> str:
        """Such as `worker`."""
        ...

    @property
    def rank(self) -> int:
        """Its number within the role."""
        ...


class TrainingTable(Protocol):
    """A dense table of one axis."""

    async def pull(self, *, out: Float32Array) -> Float32Array:
        """Read the current values into `out`."""
        ...

    async def push(self, gradient: Float32Array) -> object:
        """Send a gradient; return when it is acknowledged."""
        ...


class TrainingWorker(Protocol):
    """A worker of a running cluster."""

    @property
    def rank(self) -> int:
        """The number of this worker."""
        ...

    @property
    def planned(self) -> int:
        """Up to which clock the loops so far go."""
        ...

    @property
    def members(self) -> Collection[TrainingMember]:
        """All nodes that are in the job now."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """Why all workers stop at a common step boundary, once that is agreed."""
        ...

    async def table(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        init: Float32Array,
        optimizer: Optimizer,
        consistency: Any,
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
    ) -> TrainingTable:
        """Create a table or join it."""
        ...

    async def ring(self, name: str, /) -> Ring:
        """Form a ring of all workers."""
        ...

    def steps(self, n: int, /) -> AsyncIterator[int]:
        """Yield step numbers; each iteration ends with a tick. Records `start` and `repeat`."""
        ...

    async def stop(self, reason: str) -> None:
        """Ask all workers to stop at one step boundary."""
        ...

    async def barrier(self, name: str) -> None:
        """Wait until all workers are here."""
        ...

    def publish_metrics(self, **metrics: float) -> None:
        """Show numbers in the status of the job."""
        ...

    def stats(self) -> Mapping[str, Any]:
        """Return latencies and byte counters."""
        ...

    def span(self, name: str, step: int) -> AbstractContextManager[object]:
        """Record how long a block takes, if the job is traced."""
        ...
