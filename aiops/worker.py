"""Worker: the handle of one worker of a job, and `connect`, which makes it.

What lives here: the clock, the steps, opening tables, the way in and out. Requests travel in
`aiops.runtime.customer`, membership in `aiops.runtime.postoffice`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import numpy as np

from aiops.consistency import ASP, BSP, Consistency
from aiops.errors import ConfigError, UsageError
from aiops.init import Constant, Initializer
from aiops.observability import SpanBuffer
from aiops.optim import SGD, Optimizer
from aiops.runtime.addresses import scheduler_address
from aiops.runtime.customer import Customer
from aiops.runtime.postoffice import Postoffice
from aiops.table import Table
from aiops.van import TcpVan
from aiops.van.base import Van
from aiops_protocol.control import Member, NodeReport, TableSpec
from aiops_protocol.limits import NAME_CHARS_MAX
from aiops_protocol.payload import Float32Array

__all__ = ["Connecting", "Worker", "connect"]

CONNECT_TIMEOUT_S: Final = 60.0
"""How long `connect` waits for the scheduler, the servers and the other workers."""

TABLE_TIMEOUT_S: Final = 60.0
"""How long opening a table may take: allocation on all servers, or a round of a running job."""

BARRIER_TIMEOUT_S: Final = 600.0
"""Ten minutes of computing before a barrier are normal, an hour is a hang."""

_NAME_CHARS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")


def check_name(name: object, what: str) -> str:
    """Return a name that may travel and stand in a log line; `ConfigError` otherwise."""
    if (
        not isinstance(name, str)
        or not name
        or len(name) > NAME_CHARS_MAX
        or not set(name) <= _NAME_CHARS
    ):
        raise ConfigError(
            f"{what} is {name!r}; use 1 to {NAME_CHARS_MAX} letters, digits and . _ : -"
        )
    return name


class Worker:
    """One worker of a job. Made by `connect`, used as `async with`.

    Attributes
    ----------
    customer, postoffice
        The parts it is made of, for those who build on them.
    """

    def __init__(self, postoffice: Postoffice, customer: Customer) -> None:
        self.postoffice = postoffice
        self.customer = customer
        self.finished = False
        self._tables: dict[str, Table] = {}
        self._planned = 0
        self._open_step = False
        self._metrics: dict[str, float] = {}
        self._spans = SpanBuffer() if postoffice.joined.trace else None
        self._closed = False
        self._reporter = asyncio.get_running_loop().call_later(
            postoffice.joined.report_period_s, self._report_again
        )

    def __repr__(self) -> str:
        return f"<Worker {self.rank} ({self.name}) clock={self.clock}>"

    # --- who ---

    @property
    def rank(self) -> int:
        """Rank of this worker, from 0; the same again after a restart under the same name."""
        return self.postoffice.joined.rank

    @property
    def name(self) -> str:
        """Name of this worker, given or made."""
        return self.postoffice.joined.name

    @property
    def incarnation(self) -> int:
        """How often the rank has been taken, this time included."""
        return self.postoffice.joined.incarnation

    @property
    def job(self) -> str:
        """The random id of the job."""
        return self.postoffice.joined.job

    @property
    def clock(self) -> int:
        """Completed clocks (steps) of this worker."""
        return self.postoffice.clock

    @property
    def members(self) -> list[Member]:
        """All nodes that are in the job now: role, rank, name, address, state."""
        return list(self.postoffice.members)

    @property
    def _live_ranks(self) -> list[int]:
        return sorted(member.rank for member in self.postoffice.members if member.role == "worker")

    @property
    def world_size(self) -> int:
        """Number of live workers."""
        return len(self._live_ranks)

    def shard(self, n: int) -> slice:
        """Return this worker's part of `n` items, as a slice; right also when ranks have gaps.

        The parts of all live workers tile [0, n) and differ by one item at most.
        """
        if n < 0:
            raise UsageError(f"shard: {n} items")
        ranks = self._live_ranks
        index, count = ranks.index(self.rank), len(ranks)
        return slice(n * index // count, n * (index + 1) // count)

    @property
    def stop_reason(self) -> str | None:
        """Why all workers stop at a common step boundary, once that is agreed."""
        return self.postoffice.stop_at.reason if self.postoffice.stop_at else None

    def check(self) -> None:
        """Raise what has ended the job, if anything has."""
        self.postoffice.check()

    # --- tables ---

    async def table(
        self,
        name: str,
        shape: tuple[int, ...] | int | None = None,
        *,
        init: float | Float32Array | Initializer = 0.0,
        optimizer: Optimizer | None = None,
        consistency: Consistency | None = None,
        allow_nonfinite: bool = False,
        timeout_s: float = TABLE_TIMEOUT_S,
    ) -> Table:
        """Create a dense table, or join it if it exists.

        Parameters
        ----------
        name
            Letters, digits and `. _ : -`.
        shape
            Shape of the whole; `()` is one number. Without it an existing table is joined.
        init
            A number, an `aiops.init` object, or an array (the first creator's values win).
        optimizer
            What a push does; `SGD(lr=0.01)` if not given.
        consistency
            `BSP()` (if not given) or `ASP()`.
        allow_nonfinite
            Let NaN and infinity pass.

        Returns
        -------
        table : Table

        Raises
        ------
        ConfigError, UsageError
            A setting is wrong, or there is no such table to join.
        TableMismatch
            It exists with other settings; the message names the difference.
        RemoteError
            A server has not the memory.

        Notes
        -----
        Cancelling may leave the table created, with this worker not in its rounds.
        """
        check_name(name, "the table's name")
        known = self._tables.get(name)
        spec, values = None, None
        if shape is not None:
            spec, values = _spec(
                name, shape, init, optimizer or SGD(lr=0.01), consistency or BSP(), allow_nonfinite
            )
        opened = await self.postoffice.attach(
            name, spec, observer=self.finished, timeout_s=timeout_s
        )
        if known is not None:
            return known
        table = self._tables[name] = Table(self, opened)
        if opened.initialise:
            assert values is not None
            await table.initialise(values)
            self.postoffice.initialised(opened.table)
        return table

    # --- the clock ---

    async def tick(self) -> None:
        """Complete one clock: flush background pushes and seal every open table.

        Raises
        ------
        UsageError
            After `finish`.
        """
        self.check()
        if self.finished:
            raise UsageError("tick: this worker has finished and has no more clocks")
        for table in list(self._tables.values()):
            await table.close_clock()
        self.postoffice.clock += 1
        self._open_step = self.postoffice.in_step = False
        self.customer.flush()

    def steps(self, n: int) -> AsyncIterator[int]:
        """Iterate over `n` steps, one clock each; yields absolute step numbers.

        The k-th loop of a script covers the `n` steps after those of the earlier loops; a
        worker that was restarted at a later clock goes on there. Ends early, for all workers
        at the same boundary, after `stop`. `break` leaves the clock unsealed until the next
        `steps`, `tick` or `finish`.
        """
        first = self._planned
        self._planned += check_count(n, "steps: n")
        return self._steps(first, self._planned)

    async def _steps(self, first: int, stop: int) -> AsyncIterator[int]:
        if self._open_step:
            await self.tick()
        for step in range(max(first, min(self.clock, stop)), stop):
            if not await self.postoffice.may_begin_step():
                return
            self.check()
            self._open_step = self.postoffice.in_step = True
            with self.span("start", step):
                pass
            yield step
            with self.span("repeat", step):
                await self.tick()

    async def finish(self) -> None:
        """Contribute no more clocks: an open clock is sealed, and nobody waits for this worker.

        Pulls still work and get the newest closed version; pushes and ticks are `UsageError`.
        Idempotent.
        """
        if self.finished:
            return
        self.check()
        for table in list(self._tables.values()):
            await table.leave_rounds()
        if self._open_step:
            self.postoffice.clock += 1
            self._open_step = self.postoffice.in_step = False
        self.finished = True
        self.postoffice.finish()

    async def barrier(self, name: str, *, timeout_s: float = BARRIER_TIMEOUT_S) -> None:
        """Wait until every live, unfinished worker has come to the barrier of this name.

        A name may be used again and again; the uses are counted.

        Raises
        ------
        BarrierTimeout
            `missing` lists all who did not come, and whether they are alive.
        NodeFailed
            The job has failed meanwhile.

        Notes
        -----
        On cancellation the scheduler may still count this worker as having come.
        """
        check_name(name, "the barrier's name")
        if not timeout_s > 0:
            raise UsageError(f"barrier {name}: timeout_s is {timeout_s}; it must be above 0")
        await self.postoffice.barrier(name, timeout_s)

    async def stop(self, reason: str) -> None:
        """Ask all workers to stop at one step boundary; returns at once.

        `steps` loops end there, everywhere; `stop_reason` tells why.
        """
        self.postoffice.request_stop(reason)

    # --- observation ---

    def publish_metrics(self, **metrics: float) -> None:
        """Show numbers (a loss) in status and progress; cheap, sent with the next report."""
        for name, value in metrics.items():
            self._metrics[name] = float(value)

    @contextmanager
    def span(self, name: str, step: int | None = None) -> Iterator[None]:
        """Record how long a block takes, if the job is traced."""
        if self._spans is None:
            yield
            return
        started = time.monotonic_ns()
        try:
            yield
        finally:
            self._spans.add(name, started, time.monotonic_ns() - started, step)

    def stats(self) -> dict[str, Any]:
        """Return latencies of calls and bytes by cause and by server."""
        counters = self.customer.bytes
        return {
            "latency": {
                verb: histogram.summary() for verb, histogram in self.customer.latency.items()
            },
            "bytes": {
                "pushed": counters.push_sent,
                "pulled": counters.pull_received,
                "retransmitted": counters.retransmit_sent,
                "control": self.postoffice.bytes_total,
            },
            "servers": self.customer.traffic(),
        }

    def _report_again(self) -> None:
        self._reporter = asyncio.get_running_loop().call_later(
            self.postoffice.joined.report_period_s, self._report_again
        )
        self._report()

    def _report(self) -> None:
        counted = self.stats()["bytes"]
        self.postoffice.report(
            NodeReport(
                clock=self.clock,
                counters={f"bytes_{cause}": size for cause, size in counted.items()},
                latency={
                    verb: histogram.to_counts() for verb, histogram in self.customer.latency.items()
                },
                metrics={k: v for k, v in self._metrics.items() if np.isfinite(v)},
                spans=self._spans.drain() if self._spans is not None else [],
                spans_dropped=self._spans.dropped if self._spans is not None else 0,
                clock_offset_ns=time.time_ns() - time.monotonic_ns(),
            )
        )

    # --- the way out ---

    async def close(self, error: BaseException | None = None) -> None:
        """Leave the job: cleanly, or as a loss of this worker that the others see. Idempotent."""
        if self._closed:
            return
        self._closed = True
        clean = error is None or (isinstance(error, SystemExit) and error.code in (0, None))
        try:
            if clean and self.postoffice.failure is None:
                await self.finish()
            elif clean and self.postoffice.ended_well is None:
                self.check()
        except BaseException as failure:
            error, clean = failure, False
            raise
        finally:
            await self._release(clean, error)

    async def _release(self, clean: bool, error: BaseException | None) -> None:
        self._reporter.cancel()
        for table in self._tables.values():
            table.close()
        if self.postoffice.failure is None:
            for _ in range(1 + (len(self._spans) // 4096 if self._spans is not None else 0)):
                self._report()
        self.postoffice.leave(clean, "" if clean else _describe(error))
        await self.customer.close()
        await self.postoffice.wait_left()
        await self.postoffice.stop_heart()


def _describe(error: BaseException | None) -> str:
    if error is None:
        return "closed"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _spec(
    name: str,
    shape: tuple[int, ...] | int,
    init: float | Float32Array | Initializer,
    optimizer: Optimizer,
    consistency: Consistency,
    allow_nonfinite: bool,
) -> tuple[TableSpec, Float32Array | None]:
    """Check a table's settings; return what travels and the initial values, if given as such."""
    what = f"table {name}"
    given: object = shape
    sizes = given if isinstance(given, tuple | list) else (given,)
    dims = tuple(check_count(size, f"{what}: shape {given!r}: a size") for size in sizes)
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"{what}: optimizer is {optimizer!r}; pass an object of aiops.optim such as SGD(lr=0.1)"
        )
    if not isinstance(consistency, BSP | ASP):
        raise ConfigError(f"{what}: consistency is {consistency!r}; pass BSP() or ASP()")
    values: Float32Array | None = None
    kind: str
    settings: dict[str, float | int | bool | str | None]
    if isinstance(init, np.ndarray):
        if init.shape != dims:
            raise ConfigError(f"{what}: init has shape {init.shape}, the table {dims}")
        if init.dtype != np.float32:
            raise ConfigError(f"{what}: init is {init.dtype}; use .astype(numpy.float32)")
        values, kind, settings = init.copy(), "values", {}
    else:
        initializer = init if isinstance(init, Initializer) else Constant(init)
        kind, settings = initializer.kind, dict(initializer.settings())
    return (
        TableSpec(
            name=name,
            shape=[int(dim) for dim in dims],
            init_kind=kind,
            init=settings,
            optimizer=optimizer.name,
            optimizer_settings=dict(optimizer.settings()),
            consistency=consistency.mode,
            consistency_settings=consistency.settings(),
            allow_nonfinite=allow_nonfinite,
        ),
        values,
    )


def check_count(value: object, what: str) -> int:
    """Return a whole number of 0 or more; `UsageError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise UsageError(f"{what} is {value!r}; it must be a whole number, 0 or more")
    return int(value)


class Connecting:
    """What `connect` returns: `async with` it, or await it and close the worker yourself."""

    def __init__(
        self,
        scheduler: str | None,
        name: str | None,
        timeout_s: float,
        heartbeat_thread: bool,
        van: Van | None,
    ) -> None:
        self._heartbeat_thread = heartbeat_thread
        self._scheduler = scheduler_address(scheduler)
        name = name or os.environ.get("AIOPS_NAME") or ""
        self._name = check_name(name, "the worker's name") if name else ""
        self._timeout_s = timeout_s
        self._van = van
        self._worker: Worker | None = None

    def __await__(self) -> Any:
        """Connect and return the worker."""
        return self._connect().__await__()

    async def _connect(self) -> Worker:
        van = self._van or TcpVan()
        postoffice = Postoffice(van, self._scheduler, heartbeat_thread=self._heartbeat_thread)
        customer: Customer | None = None
        try:
            await postoffice.join(self._name, self._timeout_s)
            customer = Customer(van, postoffice)
            await customer.open(self._timeout_s)
            return Worker(postoffice, customer)
        except BaseException as error:
            postoffice.leave(False, _describe(error))
            if customer is not None:
                await customer.close()
            await postoffice.wait_left()
            await postoffice.stop_heart()
            raise

    async def __aenter__(self) -> Worker:
        """Connect."""
        self._worker = await self._connect()
        return self._worker

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave, cleanly or as a loss."""
        assert self._worker is not None
        await self._worker.close(error)


def connect(
    scheduler: str | None = None,
    *,
    name: str | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
    heartbeat_thread: bool = True,
    van: Van | None = None,
) -> Connecting:
    """Become a worker of a job.

    Parameters
    ----------
    scheduler
        `host:port`; without it `$AIOPS_SCHEDULER` (set by `aiops launch`).
    name
        Who gives the same name again, after a restart, gets the same rank. Without it
        `$AIOPS_NAME`, or a unique one is made.
    timeout_s
        How long to wait for the scheduler, and for the expected servers and workers.
    heartbeat_thread
        Send heartbeats from a thread of their own, so that a worker that computes for minutes
        in its event loop is not taken for dead; `False` where the scheduler shares the loop.

    Returns
    -------
    connecting
        `async with connect(...) as worker`. Leaving it cleanly flushes, finishes and says
        goodbye; by an exception it counts as a loss of this worker, and the others see why.

    Raises
    ------
    ConfigError
        No scheduler is given anywhere, or the name has characters that may not travel.
    DialFailed, PeerMisbehaved
        Nobody answers there, or somebody who is not the scheduler of a job.
    JoinTimeout
        The expected servers and workers did not register in time.
    NameInUse
        A live worker has this name.
    """
    return Connecting(scheduler, name, timeout_s, heartbeat_thread, van)
