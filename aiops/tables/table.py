"""Table: the handle of one dense table, from a worker's side; what users call.

What it takes to do it is in the modules that `core` brings together; the versioned copy is
`local_copy`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiops.checks import check_ack, check_out, check_timeout
from aiops.errors import UsageError
from aiops.roles.requests import Operation
from aiops.tables.calls import FunctionCalls
from aiops.tables.core import DenseCore, TableCore
from aiops.tables.layout import Choice, Rows
from aiops.tables.local_copy import LocalCopy
from aiops.tables.updates import Updates
from aiops_protocol.control import TableOpened
from aiops_protocol.frames import AckLevel, Assign, Push, PushPull, Request
from aiops_protocol.payload import Float32Array, as_bytes

if TYPE_CHECKING:
    from aiops.runtime.customer import Customer
    from aiops.workers.worker import Worker

__all__ = ["PushResult", "Table", "push_result"]

PUSH_SOON_MAX: Final = 64
"""Background pushes in flight per table: one per mutation of the delivery window."""


class PushResult(NamedTuple):
    """What became of a push.

    `status` is `"applied"`: in ASP and SSP it is in the values that any later pull sees, in BSP
    it is recorded in the round and will be in the next version, once and only once. Where rounds
    close without those who are late it is `"late"` if the round had closed and the push counts in
    the next one, and `"dropped"` if it counts in none. `"received"`, only if that was asked for:
    it waits at the servers, and will be applied once and only once. `version` is the version of the
    table when the push was acknowledged.
    """

    status: str
    version: int


def push_result(core: TableCore, operation: Operation, clock: int) -> PushResult:
    """Return what became of an operation of this clock that has ended well."""
    versions = operation.versions.values()
    if not operation.done and operation.parts:
        return PushResult("received", max(versions, default=0))
    if not core.has_rounds:
        return PushResult("applied", sum(versions))
    version = max(versions, default=0)
    if not core.has_lead or version <= clock:
        return PushResult("applied", version)
    core.place.see((version,))
    return PushResult("late" if core.keeps_late else "dropped", version)


class Table(FunctionCalls):
    """One dense table; made by `worker.table(...)`.

    Attributes
    ----------
    name, shape
        As created.
    core
        The parts it is made of, for those who build on them.
    """

    def __init__(
        self,
        worker: Worker,
        opened: TableOpened,
        main: DenseCore | None = None,
        customer: Customer | None = None,
    ) -> None:
        self.core = DenseCore(worker, opened, main, customer)
        self.name = self.core.name
        self.shape = self.core.shape
        self._local = LocalCopy(self)

    def __repr__(self) -> str:
        return f"<Table {self.name} shape={self.shape} version={self.version}>"

    @property
    def worker(self) -> Worker:
        """The worker that opened the table."""
        return self.core.worker

    def used_by(self, customer: Customer) -> Table:
        """Return the table as a further customer of the worker uses it."""
        return Table(self.worker, self.core.opened, self.core, customer)

    @property
    def local(self) -> LocalCopy:
        """The versioned local copy (`LocalCopy`), refreshed by every whole pull."""
        self._local.keep()
        return self._local

    @property
    def shards(self) -> int:
        """Into how many shards the table is cut."""
        return self.core.shards

    @property
    def allow_nonfinite(self) -> bool:
        """Whether NaN and infinity may pass."""
        return self.core.allow_nonfinite

    @property
    def has_rounds(self) -> bool:
        """Whether the table's version rises by rounds (BSP)."""
        return self.core.has_rounds

    @property
    def version(self) -> int:
        """Version of the values this worker has seen last; 0 before the first pull."""
        return self._local.version

    @property
    def partition(self) -> list[dict[str, int]]:
        """Which server holds which keys (flat element indices): server, begin, end, bytes."""
        return self.core.layout.describe()

    @property
    def wanted_version(self) -> int:
        """The version that a pull gets now: in BSP an exact one, 0 (the newest) otherwise."""
        return self.core.place.wanted

    # --- compression ---

    def compression_state(self) -> dict[str, NDArray[Any]]:
        """Return what the compression of this worker's pushes holds back, to be saved.

        Arrays by name, a copy of one's own; empty without compression. Take it between two
        pushes: what a push under way has sent is not in it any more.
        """
        compressor = self.core.compressor
        return {} if compressor is None else compressor.state_dict()

    def load_compression_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on with what an earlier `compression_state` held back, in place of nothing.

        Raises
        ------
        ConfigError
            The state is of another codec or of a table of another size.
        UsageError
            The table has no compression.
        """
        compressor = self.core.compressor
        if compressor is None:
            raise UsageError(f"{self.core.title} has no compression whose state could be loaded")
        compressor.load_state_dict(state)

    # --- reading ---

    async def pull(
        self,
        rows: Rows | None = None,
        *,
        out: Float32Array | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Fetch the current values from the servers that hold them.

        Parameters
        ----------
        rows
            A slice, or row numbers in any order, repeats allowed; all rows if not given.
        out : ndarray of float32
            Receives the values, without a copy in between; its content is undefined after an
            error. A fresh array is returned if not given.
        timeout_s
            Seconds until the whole call gives up. Without it a call ends 60 s after the last
            sign of life, and waits up to 600 s for workers that it must wait for by rule.

        Returns
        -------
        values : ndarray of float32, the shape of the rows asked for
            The caller's to keep. In BSP exactly the version of this worker's clock.

        Raises
        ------
        RequestTimeout
            No answer in time; the message names servers, keys, and whom they wait for.
        NodeFailed
            The job has failed.
        UsageError
            Rows outside of the table, or an `out` of another shape.

        Notes
        -----
        Cancelling is harmless: a pull changes nothing, and `out` is not written any more.
        """
        core = self.core
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, f"pull of {core.title}")
        choice = core.layout.choose(rows, "pull")
        if out is not None:
            check_out(out, choice.shape, f"pull of {core.title}")
        if rows is None:
            values, version = await core.reads.whole(out, timeout_s)
            self._local.refresh(values, version)
            return values
        if choice.order is None:
            values, _ = await core.reads.fetch(choice, out, timeout_s)
            return values
        assert choice.unique is not None
        once = Choice((choice.unique.size, *self.shape[1:]), *choice[1:])
        values, _ = await core.reads.fetch(once, None, timeout_s)
        ordered: Float32Array = np.take(values, choice.order, axis=0, out=out)
        return ordered

    def prefetch(self) -> None:
        """Begin to fetch what the next whole `pull` of this clock will ask for.

        That pull takes the values over, unless it has a `timeout_s` of its own and they are still
        on their way, or (in ASP) a push of this worker has been acknowledged in between.
        """
        self.core.reads.prefetch()

    def updates(self) -> AsyncIterator[tuple[int, Float32Array]]:
        """Iterate over new versions: `async for version, values in table.updates()`.

        The request for the next version waits at the servers, so each version arrives as soon
        as its round closes (BSP) or a push has changed something (ASP), without a round trip.
        The first one is the current version. A consumer that is slower than the training gets
        the newest version next; nothing is queued. `values` is fresh each time. The iteration
        ends when the job ends well.
        """
        return Updates(self.core, self._local)

    # --- writing ---

    async def push(
        self,
        grad: Float32Array,
        rows: Rows | None = None,
        *,
        weight: float | None = None,
        ack: str = "applied",
        timeout_s: float | None = None,
    ) -> PushResult:
        """Send a gradient (or delta) to the servers; returns when all parts are acknowledged.

        Parameters
        ----------
        grad : ndarray of float32
            Shape of the table, or of the rows. Borrowed, not copied, until this returns: do not
            change it meanwhile. Rows that are given repeatedly are summed.
        rows
            A slice, or row numbers; all rows if not given.
        weight
            How much this worker's contribution counts in the mean of the round, for example the
            number of its samples: the sum of weight times gradient over all workers is divided
            by the sum of their weights. Above 0; 1 if not given. All pushes of one clock have that
            of the first. Only for tables with rounds and `reduce="mean"`.
        ack
            `"applied"`, or `"received"`: return as soon as all parts are in the servers' memory,
            though they wait there for their round (BSP) or for slower workers (SSP). They are then
            applied like those of any other push, and the next `tick` waits for that.
        timeout_s
            Seconds until the whole call gives up; see `pull`.

        Returns
        -------
        result : PushResult

        Raises
        ------
        UsageError
            Wrong shape, dtype or rows, NaN or infinity, a weight or `ack` that cannot be, a
            finished worker, or a clock that `push_pull` has sealed. Nothing was sent.
        RequestTimeout
            No answer in time: the push may or may not take effect, but never twice.
        NodeFailed, RequestRejected, RemoteError
            The job has failed; a server refuses; a server's optimizer failed.

        Notes
        -----
        On cancellation what is unsent is copied, so the push still happens whole; or not at
        all, if nothing of it had left. With compression it always happens, because what was held
        back counts on it. The next `tick` waits for it.
        """
        level = check_ack(ack, f"push to {self.core.title}")
        return await self._change(Push, grad, rows, timeout_s, "push", weight, level)

    async def assign(
        self, values: Float32Array, rows: Rows | None = None, *, timeout_s: float | None = None
    ) -> PushResult:
        """Set rows to these values, past the optimizer.

        In ASP at once. In BSP when the round closes, before its gradients, in rank order.
        Arguments, errors and cancellation as for `push`; repeated rows are an error.
        """
        return await self._change(Assign, values, rows, timeout_s, "assign")

    async def _change(
        self,
        kind: type[Request],
        array: Float32Array,
        rows: Rows | None,
        timeout_s: float | None,
        verb: str,
        weight: float | None = None,
        level: AckLevel = AckLevel.APPLIED,
    ) -> PushResult:
        core = self.core
        core.writes.check_open(verb)
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, f"{verb} to {core.title}")
        weight = core.place.weighed(weight)
        operation = core.writes.plan(kind, array, rows, timeout_s, verb=verb)
        if kind is Push:
            core.place.contribute(weight)
        clock = core.place.clock
        await core.writes.perform(operation, level)
        return push_result(core, operation, clock)

    def push_soon(
        self, grad: Float32Array, *, weight: float | None = None
    ) -> asyncio.Future[PushResult]:
        """Copy the gradient now and send it in the background; `tick` waits for it.

        Returns a future of the result. Nobody has to await it: an error is raised by the next
        `tick` or `flush` all the same. Cancelling the future does not stop the push.

        Raises
        ------
        UsageError
            As for `push`; or 64 background pushes are in flight: await one, `flush` or `tick`.
        """
        core = self.core
        core.writes.check_open("push_soon")
        if core.writes.alone >= PUSH_SOON_MAX:
            raise UsageError(
                f"push_soon to {core.title}: {PUSH_SOON_MAX} pushes are in flight; await one of "
                "them, table.flush() or worker.tick()"
            )
        weight = core.place.weighed(weight)
        operation = core.writes.plan(Push, grad, None, None, verb="push_soon", copied=True)
        operation.verb = "push"
        core.place.contribute(weight)
        clock = core.place.clock
        result: asyncio.Future[PushResult] = asyncio.get_running_loop().create_future()

        def ended(started: asyncio.Future[None]) -> None:
            error = started.exception()
            if result.done():
                return
            if error is None:
                result.set_result(push_result(core, operation, clock))
            else:
                result.set_exception(error)
                result.exception()  # seen: `flush` raises it too

        core.writes.send_alone(operation).add_done_callback(ended)
        core.customer.flush()
        return result

    async def flush(self) -> None:
        """Wait until every background push is acknowledged; raise the first error of any."""
        await self.core.writes.flush()

    async def push_pull(
        self,
        grad: Float32Array,
        *,
        out: Float32Array | None = None,
        weight: float | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Push, and fetch the values once the push has taken effect, in one round trip.

        In BSP this seals the clock for this table and returns the values of the next version,
        when the round has closed; a further push in this clock is a `UsageError`. (Over
        several shards it is two round trips: a seal may only follow all acknowledgements.)
        In ASP the values are those right after this push, per segment.

        Arguments and errors as for `push` and `pull`. On cancellation the push happens whole or
        not at all, as in `push`, and `out` is not written any more.
        """
        core = self.core
        core.writes.check_open("push_pull")
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, f"push_pull of {core.title}")
        choice = core.layout.choose(None, "push_pull")
        if out is not None:
            check_out(out, choice.shape, f"push_pull of {core.title}")
        call = self._push_pull_round if core.has_rounds else self._push_pull_now
        values, version = await call(grad, choice, out, weight, timeout_s)
        self._local.refresh(values, version)
        return values

    async def _push_pull_round(
        self,
        gradient: Float32Array,
        choice: Choice,
        out: Float32Array | None,
        weight: float | None,
        timeout_s: float | None,
    ) -> tuple[Float32Array, int]:
        core = self.core
        await core.place.ready_to_seal()
        if core.in_order:
            await core.writes.settled()
        weight = core.place.weighed(weight)
        # Nothing waits between here and the start: what a codec holds back counts on the push.
        operation = core.writes.plan(Push, gradient, None, timeout_s, verb="push_pull")
        clock = core.place.clock
        core.place.contribute(weight)
        if not core.in_order:
            await core.writes.perform(operation)
            await core.writes.settled()
            if core.place.clock == clock:  # no other task has called tick meanwhile
                core.place.seal_early()
            return await core.reads.fetch(choice, out, timeout_s, "push_pull")
        pushed = core.writes.start(operation)
        core.place.seal_early()
        try:
            fetched = await core.reads.fetch(choice, out, timeout_s, "push_pull")
        except BaseException:
            core.writes.release(operation, sealed=True)
            raise
        await core.writes.finish(operation, pushed, sealed=True)
        return fetched

    async def _push_pull_now(
        self,
        gradient: Float32Array,
        choice: Choice,
        out: Float32Array | None,
        weight: float | None,
        timeout_s: float | None,
    ) -> tuple[Float32Array, int]:
        core = self.core
        weight = core.place.weighed(weight)
        if core.replica is not None:  # the answer to a pull may be short, to this one it is not
            push = core.writes.plan(Push, gradient, None, timeout_s, verb="push_pull")
            core.place.contribute(weight)
            await core.writes.perform(push)
            return await core.reads.fetch(choice, out, timeout_s, "push_pull")
        operation = core.writes.plan(PushPull, gradient, None, timeout_s, verb="push_pull")
        core.place.contribute(weight)
        marks = core.staleness.marks() if core.staleness is not None else []
        values = np.empty(self.shape, np.float32) if out is None else out
        memory = as_bytes(values.reshape(-1))
        for part, piece in zip(operation.parts, choice.pieces, strict=True):
            part.into = memory[4 * piece.start : 4 * piece.stop]
        await core.writes.perform(operation)
        if core.staleness is not None:
            core.staleness.read(operation.versions, marks)
        return values, sum(operation.versions.values())

    def close(self) -> None:
        """Let go of what runs in the background; called when the worker closes."""
        self.core.close()
        self._local.stop()
