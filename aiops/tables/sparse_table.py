"""SparseTable: the handle of one sparse table, from a worker's side; what users call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aiops.checks import check_ack, check_array, check_out, check_timeout
from aiops.errors import UsageError
from aiops.roles.requests import Operation
from aiops.tables.core import TableCore
from aiops.tables.key_layout import KeyChoice, KeyLayout, Wanted
from aiops.tables.row_compression import RowCompressor
from aiops.tables.table import PushResult, push_result
from aiops_protocol.codecs import Raw, mix
from aiops_protocol.control import TableOpened
from aiops_protocol.frames import AckLevel, Assign, Push, Request
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.runtime.customer import Customer
    from aiops.workers.worker import Worker

__all__ = ["SparseTable"]


class SparseTable:
    """One sparse table; made by `worker.sparse_table(...)`.

    Its rows have keys, any integers from 0 to 2**64-2, and come into being when they are first
    changed. What a row begins with follows from the table's `init` and the key alone.

    Attributes
    ----------
    name, width
        As created.
    core
        The parts it is made of, for those who build on them.
    """

    def __init__(
        self,
        worker: Worker,
        opened: TableOpened,
        main: SparseTable | None = None,
        customer: Customer | None = None,
    ) -> None:
        spec = opened.spec
        self.core: TableCore = TableCore(
            worker, opened, None if main is None else main.core, customer
        )
        self.name = spec.name
        self.width = spec.shape[0]
        self._layout = KeyLayout(
            spec.name, self.width, hashed=spec.layout == "hashed", parts=opened.parts
        )
        self._version = 0
        self._compressor: RowCompressor | None = None
        if isinstance(main, SparseTable):
            self._compressor = main._compressor  # what is held back is that of the whole worker
        elif spec.compression:
            seed = mix(*spec.name.encode(), worker.rank)
            self._compressor = RowCompressor(spec.compression, self.width, seed)
        self.core.compressor = self._compressor

    def __repr__(self) -> str:
        return f"<SparseTable {self.name} width={self.width} version={self.version}>"

    @property
    def worker(self) -> Worker:
        """The worker that opened the table."""
        return self.core.worker

    def used_by(self, customer: Customer) -> SparseTable:
        """Return the table as a further customer of the worker uses it."""
        return SparseTable(self.worker, self.core.opened, self, customer)

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
        """Version of the rows that this worker has pulled last; 0 before the first pull."""
        return self._version

    @property
    def partition(self) -> list[dict[str, int]]:
        """Which server holds which keys: server, begin, end.

        In a table of layout `hashed` these are ranges of mixed keys.
        """
        return self._layout.describe()

    # --- compression ---

    def compression_state(self) -> dict[str, NDArray[Any]]:
        """Return what compression holds back at this worker; see `Table.compression_state`."""
        return {} if self._compressor is None else self._compressor.state_dict()

    def load_compression_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what was held back; see `Table.load_compression_state`."""
        if self._compressor is None:
            raise UsageError(f"{self.core.title} has no compression whose state could be loaded")
        self._compressor.load_state_dict(state)

    # --- reading ---

    async def pull(
        self,
        keys: Wanted,
        *,
        out: Float32Array | None = None,
        timeout_s: float | None = None,
    ) -> Float32Array:
        """Fetch the rows of these keys from the servers that hold them.

        Parameters
        ----------
        keys
            Integers from 0 to 2**64-2 in any order, repeats allowed.
        out : ndarray of float32, shape (len(keys), width)
            Receives the rows; its content is undefined after an error. A fresh array is returned
            if not given.
        timeout_s
            Seconds until the whole call gives up; see `Table.pull`.

        Returns
        -------
        values : ndarray of float32, shape (len(keys), width)
            In the order asked; the caller's to keep. A key that nobody has changed has its initial
            values, and gets no row by being asked for. In BSP exactly the version of this
            worker's clock.

        Raises
        ------
        RequestTimeout
            No answer in time; the message names servers, keys, and whom they wait for.
        NodeFailed
            The job has failed.
        UsageError
            What is no key, or an `out` of another shape.

        Notes
        -----
        Cancelling is harmless: a pull changes nothing, and `out` is not written any more.
        """
        what = f"pull of {self.core.title}"
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, what)
        chosen = self._layout.choose(keys, "pull")
        shape = (chosen.order.size, self.width)
        if out is not None:
            check_out(out, shape, what)
        rows, version = await self.core.reads.fetch(chosen.choice, None, timeout_s)
        if chosen.choice.pieces:
            self._version = version
        values = np.empty(shape, np.float32) if out is None else out
        chosen.spread(rows, values)
        return values

    # --- writing ---

    async def push(
        self,
        keys: Wanted,
        grads: Float32Array,
        *,
        weight: float | None = None,
        ack: str = "applied",
        timeout_s: float | None = None,
    ) -> PushResult:
        """Send gradients (or deltas) of rows; returns when all parts are acknowledged.

        Parameters
        ----------
        keys
            Integers from 0 to 2**64-2 in any order. What is given for a repeated key is added up
            before it leaves.
        grads : ndarray of float32, shape (len(keys), width)
            Copied by the call, before anything is sent.
        weight
            How much this worker's contribution counts in the mean of the round, for example the
            number of its samples; see `Table.push`.
        ack
            `"applied"`, or `"received"`: return as soon as all parts are in the servers' memory;
            see `Table.push`.
        timeout_s
            Seconds until the whole call gives up; see `Table.pull`.

        Returns
        -------
        result : PushResult

        Raises
        ------
        UsageError
            What is no key, a wrong shape or dtype, NaN or infinity, a weight or `ack` that cannot
            be, a finished worker. Nothing was sent.
        RequestTimeout
            No answer in time: the push may or may not take effect, but never twice.
        NodeFailed, RequestRejected, RemoteError
            The job has failed; a server refuses; it has no memory for new rows, or its optimizer
            failed. A large push travels in parts, of which others may have taken effect.

        Notes
        -----
        On cancellation the push still happens whole; or not at all, if nothing of it had left. The
        next `tick` waits for it.
        """
        level = check_ack(ack, f"push to {self.core.title}")
        return await self._change(Push, keys, grads, timeout_s, "push", weight, level)

    async def assign(
        self, keys: Wanted, values: Float32Array, *, timeout_s: float | None = None
    ) -> PushResult:
        """Set rows to these values, past the optimizer; rows that are not there are made.

        In ASP at once. In BSP when the round closes, before its gradients, in rank order.
        Arguments, errors and cancellation as for `push`; repeated keys are an error.
        """
        return await self._change(Assign, keys, values, timeout_s, "assign")

    async def _change(
        self,
        kind: type[Request],
        keys: Wanted,
        array: Float32Array,
        timeout_s: float | None,
        verb: str,
        weight: float | None = None,
        level: AckLevel = AckLevel.APPLIED,
    ) -> PushResult:
        core = self.core
        core.writes.check_open(verb)
        what = f"{verb} to {core.title}"
        if timeout_s is not None:
            timeout_s = check_timeout(timeout_s, what)
        chosen = self._layout.choose(keys, verb)
        if kind is Assign and chosen.starts is not None:
            raise UsageError(f"{what}: a key is named twice; which values should its row get?")
        shape = (chosen.order.size, self.width)
        flat = check_array(array, shape, what, allow_nonfinite=core.allow_nonfinite)
        rows = chosen.gathered(flat.reshape(shape))
        weight = core.place.weighed(weight)
        compressor = self._compressor
        if compressor is None or kind is Assign:
            operation = core.writes.cut(kind, rows.reshape(-1), chosen.choice, timeout_s, verb=verb)
        else:
            operation = self._compressed(compressor, chosen, rows, timeout_s, verb)
        if kind is Push:
            core.place.contribute(weight)
        clock = core.place.clock
        await core.writes.perform(operation, level)
        return push_result(core, operation, clock)

    def _compressed(
        self,
        compressor: RowCompressor,
        chosen: KeyChoice,
        rows: Float32Array,
        timeout_s: float | None,
        verb: str,
    ) -> Operation:
        """Encode a push once, and cut the result; rows that cannot be coded go as they are."""
        core = self.core
        encoded, coded = compressor.encode(chosen.keys, rows)
        operation = core.customer.operation(verb, core.subject(chosen.choice), timeout_s)
        operation.kept = True  # what was held back counts on it
        pieces = chosen.choice.pieces
        if not coded.all():
            pieces = self._layout.cut(chosen.keys[coded])
            rest, given = self._layout.cut(chosen.keys[~coded]), rows[~coded].reshape(-1)
            compressor.bytes_sent += core.writes.add(operation, Push, Raw(given), rest)
        compressor.bytes_sent += core.writes.add(operation, Push, encoded, pieces)
        return operation

    def close(self) -> None:
        """Let go of what runs in the background; called when the worker closes."""
        self.core.close()
