"""Table: the handle of one dense table, from a worker's side.

It turns calls into operations of the customer and keeps the worker's place in the table's
rounds. Where elements are is `layout.py`, the local copy `local_copy.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from aiops.errors import UsageError
from aiops.layout import Choice, Layout, Rows, check_array
from aiops.local_copy import LocalCopy
from aiops.roles.requests import Operation, Part
from aiops.updates import Updates
from aiops_protocol.control import TableOpened
from aiops_protocol.delivery import Outbox
from aiops_protocol.frames import Assign, Flag, Pull, Push, PushPull, Request, Seal
from aiops_protocol.payload import Float32Array, as_bytes

if TYPE_CHECKING:
    from aiops.worker import Worker

__all__ = ["PushResult", "Table"]

PUSH_SOON_MAX: Final = 64
"""Background pushes in flight per table: one per mutation of the delivery window."""

SEALS_IN_FLIGHT_MAX: Final = 16
"""Ticks whose seals are not acknowledged yet; a worker that only ticks waits here."""

_INITIAL: Final = int(Flag.INITIAL)
_CONTRIBUTED: Final = int(Flag.CONTRIBUTED)
_FINAL: Final = int(Flag.FINAL)


class PushResult(NamedTuple):
    """What became of a push.

    `status` is `"applied"`: in ASP it is in the values that any later pull sees, in BSP it
    is recorded in the round and will be in the next version, once and only once. `version`
    is the version of the table when the push was acknowledged.
    """

    status: str
    version: int


class Table:
    """One dense table; made by `worker.table(...)`.

    Attributes
    ----------
    name, shape
        As created.
    local
        The versioned local copy (`LocalCopy`), refreshed by every whole pull.
    """

    def __init__(self, worker: Worker, opened: TableOpened) -> None:
        spec = opened.spec
        self._worker = worker
        self._customer = worker.customer
        self.table_id = opened.table
        self.name = spec.name
        self.shape = tuple(spec.shape)
        self.layout = Layout(spec.name, self.shape, opened.parts)
        self._servers = self.layout.servers
        self._outboxes = [Outbox() for _ in opened.parts]
        self._rounds = spec.consistency == "bsp"
        self._nonfinite = spec.allow_nonfinite
        self._first = opened.from_version
        self._sealed = 0  # clocks of this table that this worker has sealed
        self._sealed_early = False  # push_pull sealed the open clock already
        self._contributed = False  # something was pushed in the open clock
        self._left = worker.finished
        self._background: dict[asyncio.Future[PushResult], None] = {}
        self._seals: list[tuple[Operation, asyncio.Future[None]]] = []
        self._prefetched: tuple[int, asyncio.Task[tuple[Float32Array, int]]] | None = None
        self.local = LocalCopy(self)

    def __repr__(self) -> str:
        return f"<Table {self.name} shape={self.shape} version={self.version}>"

    @property
    def worker(self) -> Worker:
        """The worker that opened the table."""
        return self._worker

    @property
    def shards(self) -> int:
        """Into how many shards the table is cut."""
        return len(self._servers)

    @property
    def allow_nonfinite(self) -> bool:
        """Whether NaN and infinity may pass."""
        return self._nonfinite

    @property
    def has_rounds(self) -> bool:
        """Whether the table's version rises by rounds (BSP)."""
        return self._rounds

    @property
    def version(self) -> int:
        """Version of the values this worker has seen last; 0 before the first pull."""
        return self.local.version

    @property
    def partition(self) -> list[dict[str, int]]:
        """Which server holds which keys (flat element indices): server, begin, end, bytes."""
        return self.layout.describe()

    @property
    def wanted_version(self) -> int:
        """The version that a pull gets now: in BSP an exact one, 0 (the newest) otherwise."""
        return self._first + self._sealed if self._rounds and not self._left else 0

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
        choice = self.layout.choose(rows, "pull")
        if out is not None:
            self._check_out(out, choice)
        if rows is None:
            values, version = await self._pull_whole(out, timeout_s)
            self.local.refresh(values, version)
            return values
        target = out if out is not None and choice.order is None else None
        shape = choice.shape if choice.unique is None else (choice.unique.size, *self.shape[1:])
        values, _ = await self.fetch(
            Choice(shape, *choice[1:]), self.wanted_version, target, timeout_s
        )
        if choice.order is None:
            return values
        ordered: Float32Array = np.take(values, choice.order, axis=0, out=out)
        return ordered

    async def _pull_whole(
        self, out: Float32Array | None, timeout_s: float | None
    ) -> tuple[Float32Array, int]:
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is not None:
            wanted, task = prefetched
            if wanted == self.wanted_version and self._rounds:
                return await self._take_prefetched(task, out)
            task.cancel()
        return await self.fetch(
            self.layout.choose(None, "pull"), self.wanted_version, out, timeout_s
        )

    async def _take_prefetched(
        self, task: asyncio.Task[tuple[Float32Array, int]], out: Float32Array | None
    ) -> tuple[Float32Array, int]:
        values, version = await task
        if out is None:
            return values, version
        out[...] = values
        return out, version

    def _check_out(self, out: object, choice: Choice) -> None:
        what = f"pull of table {self.name}: out"
        if not isinstance(out, np.ndarray) or out.dtype != np.float32:
            raise UsageError(f"{what} must be a numpy array of float32")
        if out.shape != choice.shape:
            raise UsageError(f"{what} has shape {out.shape}, expected {choice.shape}")
        if not (out.flags.c_contiguous and out.flags.writeable):
            raise UsageError(f"{what} must be contiguous and writeable; leave it out to get one")

    async def fetch(
        self,
        choice: Choice,
        wanted: int,
        out: Float32Array | None,
        timeout_s: float | None,
        verb: str = "pull",
    ) -> tuple[Float32Array, int]:
        """Pull pieces of at least version `wanted`, all of the same version where that exists.

        A worker outside of the rounds may find shards at different versions while a round
        closes; the older ones are then asked for the newest that was seen.
        """
        self._worker.check()
        values = np.empty(choice.shape, np.float32) if out is None else out
        memory = as_bytes(values.reshape(-1))
        versions: dict[int, int] = {}
        stale = {piece.shard for piece in choice.pieces}
        while stale:
            operation = self._customer.operation(verb, self._subject(choice), timeout_s)
            asked = [piece for piece in choice.pieces if piece.shard in stale]
            for piece in asked:
                Part(
                    operation,
                    Pull,
                    self.table_id,
                    piece.shard,
                    clock=wanted,
                    begin=piece.begin,
                    end=piece.end,
                    ranges=piece.ranges,
                    into=memory[4 * piece.start : 4 * piece.stop],
                )
            await self.perform(operation)
            versions.update(operation.versions)
            if not self._rounds:
                return values, sum(versions.values())
            wanted = max(versions.values())
            stale = {shard for shard, version in versions.items() if version < wanted}
        return values, max(versions.values(), default=0)

    async def perform(self, operation: Operation) -> None:
        """Send an operation of this table and wait for all its answers."""
        servers = [self._servers[part.shard] for part in operation.parts]
        await self._customer.finish(operation, self._customer.start(operation, servers))

    def _subject(self, choice: Choice) -> str:
        if choice.shape == self.shape:
            return f"table {self.name}"
        return f"table {self.name} ({choice.shape[0]} rows)"

    def prefetch(self) -> None:
        """Begin to fetch what the next whole `pull` of this clock will ask for."""
        self._worker.check()
        if self._prefetched is not None:
            wanted, task = self._prefetched
            if wanted == self.wanted_version and not task.done():
                return
            task.cancel()
        choice = self.layout.choose(None, "prefetch")
        task = asyncio.get_running_loop().create_task(
            self.fetch(choice, self.wanted_version, None, None, "prefetch")
        )
        task.add_done_callback(_retrieve)
        self._prefetched = (self.wanted_version, task)

    def updates(self) -> AsyncIterator[tuple[int, Float32Array]]:
        """Iterate over new versions: `async for version, values in table.updates()`.

        The request for the next version waits at the servers, so each version arrives as soon
        as its round closes (BSP) or a push has changed something (ASP), without a round trip.
        The first one is the current version. A consumer that is slower than the training gets
        the newest version next; nothing is queued. `values` is fresh each time.
        """
        return Updates(self)

    # --- writing ---

    async def push(
        self, gradient: Float32Array, rows: Rows | None = None, *, timeout_s: float | None = None
    ) -> PushResult:
        """Send a gradient (or delta) to the servers; returns when all parts are acknowledged.

        Parameters
        ----------
        gradient : ndarray of float32
            Shape of the table, or of the rows. Borrowed, not copied, until this returns: do not
            change it meanwhile. Rows that are given repeatedly are summed.
        rows
            A slice, or row numbers; all rows if not given.
        timeout_s
            Seconds until the whole call gives up; see `pull`.

        Returns
        -------
        result : PushResult

        Raises
        ------
        UsageError
            Wrong shape, dtype or rows, NaN or infinity, a finished worker, or a clock that
            `push_pull` has sealed. Nothing was sent.
        RequestTimeout
            No answer in time: the push may or may not take effect, but never twice.
        NodeFailed, RequestRejected, RemoteError
            The job has failed; a server refuses; a server's optimizer failed.

        Notes
        -----
        On cancellation what is unsent is copied, so the push still happens whole; or not at
        all, if nothing of it had left.
        """
        self._check_open("push")
        return await self._mutate(Push, gradient, rows, timeout_s)

    async def assign(
        self, values: Float32Array, rows: Rows | None = None, *, timeout_s: float | None = None
    ) -> PushResult:
        """Set rows to these values, past the optimizer.

        In ASP at once. In BSP when the round closes, before its gradients, in rank order.
        Arguments, errors and cancellation as for `push`; repeated rows are an error.
        """
        self._check_open("assign")
        return await self._mutate(Assign, values, rows, timeout_s)

    async def _mutate(
        self, kind: type[Request], array: Float32Array, rows: Rows | None, timeout_s: float | None
    ) -> PushResult:
        operation = self._plan(kind, array, rows, timeout_s)
        if kind is Push:
            self._contributed = True
        await self.perform(operation)
        return self._result(operation)

    def _result(self, operation: Operation) -> PushResult:
        versions = operation.versions.values()
        version = max(versions, default=0) if self._rounds else sum(versions)
        return PushResult("applied", version)

    def _plan(
        self, kind: type[Request], array: Float32Array, rows: Rows | None, timeout_s: float | None
    ) -> Operation:
        """Check the array and cut it into the parts of one operation."""
        verb = kind.__name__.lower()
        choice = self.layout.choose(rows, verb)
        what = f"{verb} to table {self.name}"
        flat = check_array(array, choice.shape, what, allow_nonfinite=self._nonfinite)
        if choice.order is not None:
            flat = self._in_row_order(flat, choice, what, summed=kind is not Assign)
        memory = as_bytes(flat)
        operation = self._customer.operation(verb, self._subject(choice), timeout_s)
        for piece in choice.pieces:
            self._part(
                operation,
                kind,
                piece.shard,
                begin=piece.begin,
                end=piece.end,
                ranges=piece.ranges,
                payload=memory[4 * piece.start : 4 * piece.stop],
            )
        return operation

    def _in_row_order(
        self, flat: Float32Array, choice: Choice, what: str, *, summed: bool
    ) -> Float32Array:
        assert choice.order is not None
        assert choice.unique is not None
        width = self.layout.width
        given = flat.reshape(len(choice.order), width)
        if choice.unique.size != len(choice.order) and not summed:
            raise UsageError(f"{what}: a row is named twice; which value should it get?")
        ordered = np.zeros((choice.unique.size, width), np.float32)
        np.add.at(ordered, choice.order, given)
        return ordered.reshape(-1)

    def _part(self, operation: Operation, kind: type[Request], shard: int, **fields: Any) -> Part:
        clock = self._first + self._sealed if self._rounds else 0
        fields.setdefault("clock", clock)
        return Part(operation, kind, self.table_id, shard, outbox=self._outboxes[shard], **fields)

    def _check_open(self, verb: str) -> None:
        self._worker.check()
        if self._worker.finished:
            raise UsageError(
                f"{verb} to table {self.name}: this worker has finished; pull still works"
            )
        if self._sealed_early:
            raise UsageError(
                f"{verb} to table {self.name}: push_pull has sealed this clock; call tick() first"
            )

    def push_soon(self, gradient: Float32Array) -> asyncio.Future[PushResult]:
        """Copy the gradient now and send it in the background; `tick` waits for it.

        Returns a future of the result; awaiting it is optional, an error is raised by the next
        `tick` or `flush` all the same.

        Raises
        ------
        UsageError
            As for `push`; or 64 background pushes are in flight: await one, `flush` or `tick`.
        """
        self._check_open("push_soon")
        if len(self._background) >= PUSH_SOON_MAX:
            raise UsageError(
                f"push_soon to table {self.name}: {PUSH_SOON_MAX} pushes are in flight; await one "
                "of them, table.flush() or worker.tick()"
            )
        operation = self._plan(Push, np.array(gradient, copy=True), None, None)
        self._contributed = True
        servers = [self._servers[part.shard] for part in operation.parts]
        started = self._customer.start(operation, servers)
        self._customer.flush()
        task = asyncio.get_running_loop().create_task(self._finish_push(operation, started))
        task.add_done_callback(_retrieve)
        self._background[task] = None
        return task

    async def _finish_push(self, operation: Operation, started: asyncio.Future[None]) -> PushResult:
        await self._customer.finish(operation, started)
        return self._result(operation)

    async def flush(self) -> None:
        """Wait until every background push is acknowledged; raise the first error of any."""
        pushes, self._background = list(self._background), {}
        if pushes:
            results = await asyncio.gather(*pushes, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result

    async def push_pull(
        self,
        gradient: Float32Array,
        *,
        out: Float32Array | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Push, and fetch the values once the push has taken effect, in one round trip.

        In BSP this seals the clock for this table and returns the values of the next version,
        when the round has closed; a further push in this clock is a `UsageError`. (Over
        several shards it is two round trips: a seal may only follow all acknowledgements.)
        In ASP the values are those right after this push, per segment.

        Arguments and errors as for `push` and `pull`.
        """
        self._check_open("push_pull")
        choice = self.layout.choose(None, "push_pull")
        if out is not None:
            self._check_out(out, choice)
        if not self._rounds:
            return await self._push_pull_now(gradient, choice, out, timeout_s)
        operation = self._plan(Push, gradient, None, timeout_s)
        servers = [self._servers[part.shard] for part in operation.parts]
        pushed = self._customer.start(operation, servers)
        self._contributed = True
        if len(self._servers) > 1:
            await self._customer.finish(operation, pushed)
        await self.flush()
        self._seal(final=False)
        self._sealed_early = True
        try:
            values, version = await self.fetch(
                choice, self.wanted_version, out, timeout_s, "push_pull"
            )
        finally:
            await self._customer.finish(operation, pushed)
        self.local.refresh(values, version)
        return values

    async def _push_pull_now(
        self,
        gradient: Float32Array,
        choice: Choice,
        out: Float32Array | None,
        timeout_s: float | None,
    ) -> Float32Array:
        operation = self._plan(PushPull, gradient, None, timeout_s)
        values = np.empty(self.shape, np.float32) if out is None else out
        memory = as_bytes(values.reshape(-1))
        for part, piece in zip(operation.parts, choice.pieces, strict=True):
            part.into = memory[4 * piece.start : 4 * piece.stop]
        await self.perform(operation)
        self.local.refresh(values, sum(operation.versions.values()))
        return values

    # --- the clock ---

    async def close_clock(self) -> None:
        """Flush, and seal the open clock; called by `worker.tick`."""
        await self.flush()
        if not self._rounds or self._left:
            return
        if self._sealed_early:
            self._sealed_early = False
        else:
            self._seal(final=False)
        await self._reap_seals(SEALS_IN_FLIGHT_MAX)

    def _seal(self, *, final: bool) -> None:
        flags = _FINAL if final else _CONTRIBUTED if self._contributed else 0
        operation = self._customer.operation("seal", f"table {self.name}", None)
        for shard in range(len(self._servers)):
            self._part(operation, Seal, shard, flags=flags)
        servers = [self._servers[part.shard] for part in operation.parts]
        future = self._customer.start(operation, servers)
        future.add_done_callback(_retrieve)
        self._seals.append((operation, future))
        self._contributed = False
        if not final:
            self._sealed += 1

    async def _reap_seals(self, allowed: int) -> None:
        """Wait until at most `allowed` seals are unanswered; raise the error of a failed one."""
        while self._seals:
            operation, future = self._seals[0]
            if not future.done() and len(self._seals) <= allowed:
                return
            await self._customer.finish(operation, asyncio.shield(future))
            self._seals.pop(0)

    async def leave_rounds(self) -> None:
        """Seal what is open and take part in no later round; called by `worker.finish`."""
        await self.flush()
        if not self._rounds or self._left:
            return
        if self._contributed and not self._sealed_early:
            self._seal(final=False)
        self._sealed_early = False
        self._seal(final=True)
        self._left = True
        await self._reap_seals(0)

    async def initialise(self, values: Float32Array) -> None:
        """Send the initial values; called by `worker.table` of the first creator."""
        what = f"initial values of table {self.name}"
        flat = check_array(values, self.shape, what, allow_nonfinite=self._nonfinite)
        memory = as_bytes(flat)
        operation = self._customer.operation("initialise", f"table {self.name}", None)
        for piece in self.layout.choose(None, "initialise").pieces:
            self._part(
                operation,
                Assign,
                piece.shard,
                begin=piece.begin,
                end=piece.end,
                flags=_INITIAL,
                payload=memory[4 * piece.start : 4 * piece.stop],
            )
        await self.perform(operation)

    def close(self) -> None:
        """Let go of what runs in the background; called when the worker closes."""
        if self._prefetched is not None:
            self._prefetched[1].cancel()
        for task in self._background:
            task.cancel()
        self.local.stop()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark an error as seen: it is raised where the user next waits."""
    if not future.cancelled():
        future.exception()
