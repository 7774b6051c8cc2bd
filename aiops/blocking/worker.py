"""The blocking twin of `aiops.Worker`, and `connect`, which makes it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, Final

from numpy.typing import NDArray

import aiops.workers.connecting
import aiops.workers.customer_handle
import aiops.workers.worker
from aiops.blocking.customer_handle import CustomerHandle
from aiops.blocking.loop_thread import LoopThread
from aiops.blocking.ring import Ring
from aiops.blocking.sparse_table import SparseTable
from aiops.blocking.table import Table
from aiops.compression import Codec
from aiops.consistency import Consistency
from aiops.errors import AiopsError, Closed, UsageError
from aiops.init import Initializer
from aiops.optim import Optimizer
from aiops.van.base import Van
from aiops.workers.worker import (
    BARRIER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    TABLE_TIMEOUT_S,
)
from aiops_protocol.control import Member
from aiops_protocol.payload import Float32Array

__all__ = ["Worker", "connect", "join"]

_END: Final = -1
"""What stands for the end of the steps; they are counted from 0."""


class Worker:
    """One worker of a job, for code without asyncio. Made by `connect`, used as `with`.

    The twin of `aiops.Worker`, where every method is described.
    """

    def __init__(
        self, worker: aiops.workers.worker.Worker, loop: LoopThread, *, owns_loop: bool
    ) -> None:
        self._worker = worker
        self._loop = loop
        self._owns_loop = owns_loop
        self._tables: dict[str, Table] = {}
        self._rings: dict[str, Ring] = {}
        self._sparse_tables: dict[str, SparseTable] = {}
        self._clock_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._closed = False
        if owns_loop:
            atexit.register(self._abandon)

    def __repr__(self) -> str:
        return f"<blocking {self._worker!r}>"

    # --- who ---

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0; the same again after a restart under the same name."""
        return self._worker.rank

    @property
    def name(self) -> str:
        """Name of this worker, given or made."""
        return self._worker.name

    @property
    def incarnation(self) -> int:
        """How often the rank has been taken, this time included."""
        return self._worker.incarnation

    @property
    def job(self) -> str:
        """The random id of the job."""
        return self._worker.job

    @property
    def clock(self) -> int:
        """Completed clocks (steps) of this worker."""
        return self._worker.clock

    @property
    def planned(self) -> int:
        """Up to which clock the `steps` loops so far go; the next one begins there."""
        return self._worker.planned

    @property
    def finished(self) -> bool:
        """Whether `finish` was called: no more clocks."""
        return self._worker.finished

    @property
    def members(self) -> list[Member]:
        """All nodes that are in the job now: role, rank, name, address, state."""
        return self._worker.members

    @property
    def world_size(self) -> int:
        """Number of live workers."""
        return self._worker.world_size

    @property
    def stop_reason(self) -> str | None:
        """Why all workers stop at a common step boundary, once that is agreed."""
        return self._worker.stop_reason

    def shard(self, n: int) -> slice:
        """Return this worker's part of `n` items, as a slice; see `aiops.Worker.shard`."""
        return self._worker.shard(n)

    def check(self) -> None:
        """Raise what has ended the job, if anything has."""
        self._worker.check()

    # --- tables ---

    def table(
        self,
        name: str,
        shape: tuple[int, ...] | int | None = None,
        *,
        init: float | Float32Array | Initializer = 0.0,
        optimizer: Optimizer | None = None,
        consistency: Consistency | None = None,
        allow_nonfinite: bool = False,
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
        timeout_s: float = TABLE_TIMEOUT_S,
    ) -> Table:
        """Create a dense table, or join it if it exists; see `aiops.Worker.table`."""
        opened = self._loop.call(
            self._worker.table,
            name,
            shape,
            init=init,
            optimizer=optimizer,
            consistency=consistency,
            allow_nonfinite=allow_nonfinite,
            compression=compression,
            pull_compression=pull_compression,
            timeout_s=timeout_s,
        )
        return self._tables.setdefault(name, Table(self, opened, self._loop))

    def sparse_table(
        self,
        name: str,
        width: int | None = None,
        *,
        init: float | Initializer = 0.0,
        optimizer: Optimizer | None = None,
        consistency: Consistency | None = None,
        layout: str = "hashed",
        allow_nonfinite: bool = False,
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
        timeout_s: float = TABLE_TIMEOUT_S,
    ) -> SparseTable:
        """Create a sparse table, or join it if it exists; see `aiops.Worker.sparse_table`."""
        opened = self._loop.call(
            self._worker.sparse_table,
            name,
            width,
            init=init,
            optimizer=optimizer,
            consistency=consistency,
            layout=layout,
            allow_nonfinite=allow_nonfinite,
            compression=compression,
            pull_compression=pull_compression,
            timeout_s=timeout_s,
        )
        return self._sparse_tables.setdefault(name, SparseTable(self, opened, self._loop))

    def customer(self, name: str) -> CustomerHandle:
        """Return a further customer of this worker; see `aiops.Worker.customer`."""

        async def get() -> aiops.workers.customer_handle.CustomerHandle:
            return self._worker.customer(name)

        return CustomerHandle(self, self._loop.call(get), self._loop)

    # --- rings ---

    def ring(
        self,
        name: str,
        *,
        timeout_s: float | None = None,
        call_timeout_s: float | None = None,
        bind: str | None = None,
        advertise: str | None = None,
        insecure: bool = False,
        transport: str = "auto",
        topology: str | None = None,
        connections: int | None = None,
    ) -> Ring:
        """Form a ring of all live workers, for collective calls; see `aiops.Worker.ring`."""
        opened = self._loop.call(
            self._worker.ring,
            name,
            timeout_s=timeout_s,
            call_timeout_s=call_timeout_s,
            bind=bind,
            advertise=advertise,
            insecure=insecure,
            transport=transport,
            topology=topology,
            connections=connections,
        )
        return self._rings.setdefault(name, Ring(opened, self._loop))

    # --- the clock ---

    @contextmanager
    def _moving_the_clock(self, verb: str) -> Iterator[None]:
        if not self._clock_lock.acquire(blocking=False):
            raise UsageError(
                f"{verb}: another thread moves the clock of this worker just now; pulls and "
                "pushes may come from several threads, steps, tick and finish from one at a time"
            )
        try:
            yield
        finally:
            self._clock_lock.release()

    def tick(self) -> None:
        """Complete one clock; see `aiops.Worker.tick`."""
        with self._moving_the_clock("tick"):
            self._loop.call(self._worker.tick)

    def steps(self, n: int) -> Iterator[int]:
        """Iterate over `n` steps, one clock each; see `aiops.Worker.steps`."""
        return self._steps(self._loop.do(self._worker.steps, n))

    def _steps(self, numbers: AsyncIterator[int]) -> Iterator[int]:
        async def following() -> int:
            return await anext(numbers, _END)

        while True:
            with self._moving_the_clock("steps"):
                step = self._loop.call(following)
            if step == _END:
                return
            yield step

    def finish(self) -> None:
        """Contribute no more clocks; see `aiops.Worker.finish`. Idempotent."""
        with self._moving_the_clock("finish"):
            self._loop.call(self._worker.finish)

    def barrier(self, name: str, *, timeout_s: float = BARRIER_TIMEOUT_S) -> None:
        """Wait for every live, unfinished worker; see `aiops.Worker.barrier`."""
        self._loop.call(self._worker.barrier, name, timeout_s=timeout_s)

    def stop(self, reason: str) -> None:
        """Ask all workers to stop at one step boundary; see `aiops.Worker.stop`."""
        self._loop.call(self._worker.stop, reason)

    # --- observation ---

    def publish_metrics(self, **metrics: float) -> None:
        """Show numbers (a loss) in status and progress; see `aiops.Worker.publish_metrics`."""
        self._loop.do(self._worker.publish_metrics, **metrics)

    def span(self, name: str, step: int | None = None) -> AbstractContextManager[None]:
        """Record how long a block takes, if the job is traced."""
        return self._worker.span(name, step)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what only this worker has; see `aiops.Worker.state_dict`."""
        return self._loop.do(self._worker.state_dict)

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with an earlier state; see `aiops.Worker.load_state_dict`."""
        self._loop.do(self._worker.load_state_dict, state)

    def stats(self) -> dict[str, Any]:
        """Return latencies of calls and bytes by cause and by server."""
        return self._loop.do(self._worker.stats)

    # --- the way out ---

    def __enter__(self) -> Worker:
        """Return the worker, which is connected already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave, cleanly or as a loss."""
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the job: cleanly, or as a loss that the others see. Idempotent.

        Ends the loop and its thread; calls of other threads that still wait raise `Closed`.
        """
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self._abandon)
            try:
                if self._loop.is_ours:
                    self._loop.call(self._worker.close, error)
            finally:
                if self._owns_loop:
                    self._loop.stop()

    def _abandon(self) -> None:
        """Leave when the program ends and nobody has closed the worker.

        A worker that has finished owes nobody anything. Any other is a loss, and the others
        learn the reason.
        """
        unfinished = Closed("its program ended without closing the worker; use `with`")
        # There is nobody left who could handle an error, and the interpreter, which ends, lends no
        # threads any more (`RuntimeError`) to wait for that of the heartbeats.
        with suppress(AiopsError, RuntimeError):
            self.close(None if self._worker.finished else unfinished)


def connect(
    scheduler: str | None = None,
    *,
    name: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    heartbeat_thread: bool = True,
    history: str | os.PathLike[str] | None = None,
    van: Van | None = None,
) -> Worker:
    """Become a worker of a job: `with aiops.blocking.connect() as worker`.

    Parameters and errors are those of `aiops.connect`. The worker is connected when this
    returns; leaving the `with` by an exception counts as a loss of this worker.
    """
    connecting = aiops.workers.connecting.connect(
        scheduler,
        name=name,
        timeout_s=timeout_s,
        heartbeat_thread=heartbeat_thread,
        history=history,
        van=van,
    )
    loop = LoopThread("this worker")
    try:
        return join(loop, connecting, owns_loop=True)
    except BaseException:
        loop.stop()
        raise


def join(
    loop: LoopThread, connecting: aiops.workers.connecting.Connecting, *, owns_loop: bool
) -> Worker:
    """Connect on a loop that runs already."""

    async def connected() -> aiops.workers.worker.Worker:
        worker: aiops.workers.worker.Worker = await connecting
        return worker

    return Worker(loop.call(connected), loop, owns_loop=owns_loop)
