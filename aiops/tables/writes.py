"""Pushes and assignments of one table on their way: planned, sent, and followed to their end.

A change that its caller no longer awaits (cancelled, or sent in the background) still happens
whole; its memory is our own by then, and its error is raised by the next `flush`.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from aiops.checks import check_array
from aiops.compression.auto import AutoCompressor
from aiops.compression.compressor import Compressor
from aiops.compression.gate import DENSE, Gate
from aiops.errors import UsageError
from aiops.roles.requests import Operation, Part
from aiops.tables.layout import Choice, Layout, Piece, Rows
from aiops_protocol.codecs import Encoded, word_of
from aiops_protocol.frames import AckLevel, Assign, Flag, Request
from aiops_protocol.payload import Float32Array, as_bytes

if TYPE_CHECKING:
    from aiops.tables.core import TableCore

__all__ = ["RowWrites", "Writes"]

_PARAMETERS = int(Flag.CODEC_PARAMETERS)


class Writes:
    """The changes of one table that are under way.

    Attributes
    ----------
    acknowledged
        How many have ended; a pull that began before the last one may lack it.
    """

    def __init__(self, table: TableCore) -> None:
        self._table = table
        self._awaited: dict[Operation, asyncio.Future[None]] = {}
        self._alone: dict[asyncio.Future[None], None] = {}  # nobody else waits for these
        self.acknowledged = 0

    def check_open(self, verb: str) -> None:
        """Raise `UsageError` if nothing can be changed now, or what has ended the job."""
        table = self._table
        worker = table.worker
        worker.check()
        if worker.finished:
            raise UsageError(f"{verb} to {table.title}: this worker has finished; pull still works")
        if table.place.sealed_early:
            raise UsageError(
                f"{verb} to {table.title}: push_pull has sealed this clock; call tick() first"
            )

    def cut(
        self,
        kind: type[Request],
        flat: Float32Array,
        choice: Choice,
        timeout_s: float | None,
        *,
        verb: str,
        flags: int = 0,
    ) -> Operation:
        """Cut an array, flat and in the order of the pieces, into the parts of one operation."""
        table = self._table
        memory = as_bytes(flat)
        operation = table.customer.operation(verb, table.subject(choice), timeout_s)
        # Where nothing waits for it, a learning rate may still go by it.
        clock = table.place.clock if table.is_clocked else table.worker.clock
        table_id, outboxes, staleness = table.table_id, table.outboxes, table.staleness
        for shard, begin, end, ranges, start, stop, keys in choice.pieces:
            payload = memory[4 * start : 4 * stop]
            outbox = outboxes[shard]
            part = Part(  # in the order of its fields: names would cost as much as the object
                operation, kind, table_id, shard, clock, begin, end, ranges, flags, payload, None,
                outbox, keys,
            )  # fmt: skip
            if staleness is not None:
                part.base = staleness.base(shard)
        if staleness is not None and kind is not Assign:
            operation.staleness = staleness.histogram
        return operation

    def add(
        self, operation: Operation, kind: type[Request], encoded: Encoded, pieces: list[Piece]
    ) -> int:
        """Add the parts of what was encoded to an operation; return the bytes of their payloads."""
        table = self._table
        clock = table.place.clock if table.is_clocked else table.worker.clock
        staleness = table.staleness
        operation.staleness = None if staleness is None else staleness.histogram
        size = 0
        for shard, begin, end, ranges, start, stop, keys in pieces:
            codec, parameter, payload = encoded.cut(start, stop)
            size += len(payload)
            Part(
                operation,
                kind,
                table.table_id,
                shard,
                clock,
                begin,
                end,
                ranges,
                _PARAMETERS if codec else 0,
                payload,
                outbox=table.outboxes[shard],
                keys=keys,
                codec=codec,
                codec_parameters=word_of(stop - start, parameter) if codec else 0,
                base=-1 if staleness is None else staleness.base(shard),
            )
        return size

    def start(self, operation: Operation) -> asyncio.Future[None]:
        """Send an operation that `perform`, or another call that cares, will await."""
        table = self._table
        return table.customer.start(operation, table.servers)

    async def perform(self, operation: Operation, level: int = AckLevel.APPLIED) -> None:
        """Send an operation and wait until all of it is acknowledged, at this level.

        On cancellation it goes on by itself, whole; or, if nothing of it had left, it never was.
        """
        if level != operation.level:  # what is only received is followed to its end
            operation.level, operation.received = level, self._follow
        future = self._awaited[operation] = self.start(operation)
        try:  # as `finish` does, which would be one coroutine more for each push
            await future
        except asyncio.CancelledError:
            self.release(operation)
            raise
        finally:
            self._awaited.pop(operation, None)
            self.acknowledged += 1

    async def finish(
        self, operation: Operation, future: asyncio.Future[None], *, sealed: bool = False
    ) -> None:
        """Wait for an operation; `sealed`: it has to happen, because its clock is sealed."""
        try:
            await future
        except asyncio.CancelledError:
            self.release(operation, sealed=sealed)
            raise
        finally:
            self._awaited.pop(operation, None)
            self.acknowledged += 1

    def release(self, operation: Operation, *, sealed: bool = False) -> None:
        """Let an operation go on alone, with memory of its own; or drop it if nothing has left."""
        rest = self._table.customer.cancel(operation, keep=sealed or operation.kept)
        if rest is not None:
            self._follow(rest)

    def send_alone(self, operation: Operation) -> asyncio.Future[None]:
        """Send an operation whose memory nobody else changes, and let it go on alone."""
        future = self.start(operation)
        self._follow(future)
        return future

    def _follow(self, future: asyncio.Future[None]) -> None:
        self._alone[future] = None
        future.add_done_callback(self._ended)

    def _ended(self, future: asyncio.Future[None]) -> None:
        self.acknowledged += 1
        if future.exception() is None:  # an error stays, to be raised by `flush`
            self._alone.pop(future, None)

    @property
    def under_way(self) -> bool:
        """Whether any change is not acknowledged yet."""
        return any(
            user.writes._awaited or any(not future.done() for future in user.writes._alone)
            for user in self._table.users
        )

    @property
    def alone(self) -> int:
        """How many changes go on that nobody awaits."""
        return sum(not future.done() for future in self._alone)

    async def flush(self) -> None:
        """Wait for what goes on alone; raise the first error of any. Cancelling is harmless."""
        waiting = [future for future in self._alone if not future.done()]
        if waiting:
            await asyncio.wait(waiting)
        failed = [future for future in self._alone if future.done()]
        for future in failed:
            del self._alone[future]
        if failed:
            failed[0].result()

    async def settled(self) -> None:
        """Wait for what any task of any customer awaits: a seal may only follow all of it."""
        for user in list(self._table.users):
            await user.writes.own_settled()

    async def own_settled(self) -> None:
        """Wait also for what other tasks await."""
        if self._awaited:
            await asyncio.wait(list(self._awaited.values()))
        if self._alone:
            await self.flush()


def _tell(
    gate: Gate,
    latest: tuple[str, int],
    payload_bytes: int,
    operation: Operation,
    sent_at: float,
    future: asyncio.Future[None],
) -> None:
    """Tell the gate what a push took, unless it waited by rule, or failed.

    One that was sent before another had ended counts from there.
    """
    now, link = time.perf_counter(), gate.link
    began, link.free_at = max(sent_at, link.free_at), now
    if future.cancelled() or future.exception() is not None or operation.waiting_for:
        return
    gate.sent(*latest, payload_bytes, operation.encode_s, now - began)


class RowWrites(Writes):
    """The changes of a dense table, which are given by rows.

    Parameters
    ----------
    table
        Whose.
    layout
        Where its rows are.
    compressor
        What compresses pushes, if anything does.
    """

    def __init__(self, table: TableCore, layout: Layout, compressor: Compressor | None) -> None:
        super().__init__(table)
        self._layout = layout
        self._compressor = compressor
        self._chosen = DENSE

    def plan(
        self,
        kind: type[Request],
        array: object,
        rows: Rows | None,
        timeout_s: float | None,
        *,
        verb: str,
        flags: int = 0,
        copied: bool = False,
    ) -> Operation:
        """Check the array, copy it if asked for, and cut it into the parts of one operation."""
        table = self._table
        layout = self._layout
        choice = layout.whole if rows is None else layout.choose(rows, verb)
        what = f"{verb} to {table.title}"
        flat = check_array(array, choice.shape, what, allow_nonfinite=table.allow_nonfinite)
        if choice.order is not None:
            flat = self._in_row_order(flat, choice, what, summed=kind is not Assign)
        elif copied:
            flat = flat.copy()
        compressor = self._compressor
        if compressor is not None and kind is not Assign and not compressor.passes(flat):
            return self._compressed(compressor, kind, flat, choice, timeout_s, verb)
        return self.cut(kind, flat, choice, timeout_s, verb=verb, flags=flags)

    def _compressed(
        self,
        compressor: Compressor,
        kind: type[Request],
        flat: Float32Array,
        choice: Choice,
        timeout_s: float | None,
        verb: str,
    ) -> Operation:
        """Encode a push once, and cut the result: what it means is the same for any servers."""
        table = self._table
        began = time.perf_counter()
        encoded = compressor.encode(flat, self._layout.elements(choice))
        if isinstance(compressor, AutoCompressor) and compressor.gate.chosen != self._chosen:
            gate, self._chosen = compressor.gate, compressor.gate.chosen
            fields = {"table": table.name, "direction": "push", "codec": gate.chosen}
            table.worker.postoffice.log.info("compression_chosen", **fields, reason=gate.reason)
        operation = table.customer.operation(verb, table.subject(choice), timeout_s)
        operation.kept = True  # what was held back counts on it
        compressor.bytes_sent += self.add(operation, kind, encoded, choice.pieces)
        operation.encode_s = time.perf_counter() - began
        return operation

    def start(self, operation: Operation) -> asyncio.Future[None]:
        """Send an operation; the cost gate, if there is one, hears what it took."""
        future = super().start(operation)
        compressor = self._compressor
        if isinstance(compressor, AutoCompressor) and operation.encode_s:
            size = sum(len(part.payload) for part in operation.parts)
            what = (compressor.gate, compressor.latest, size, operation, time.perf_counter())
            future.add_done_callback(partial(_tell, *what))
        return future

    def _in_row_order(
        self, flat: Float32Array, choice: Choice, what: str, *, summed: bool
    ) -> Float32Array:
        assert choice.order is not None
        assert choice.unique is not None
        width = self._layout.width
        given = flat.reshape(len(choice.order), width)
        ordered = np.zeros((choice.unique.size, width), np.float32)
        if choice.unique.size == len(choice.order):
            ordered[choice.order] = given
        elif summed:
            np.add.at(ordered, choice.order, given)
        else:
            raise UsageError(f"{what}: a row is named twice; which value should it get?")
        return ordered.reshape(-1)
