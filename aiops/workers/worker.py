"""Worker: the handle of one worker of a job; `connect`, in `connecting`, makes it.

What lives here: the clock, the steps, the way out. Requests travel in `aiops.runtime.customer`,
membership in `aiops.runtime.postoffice`; tables are opened in `tables`, and what a worker
tells about itself is in `reports`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

from aiops.checks import check_count, check_name, check_timeout
from aiops.compression import Codec
from aiops.consistency import BSP, Consistency
from aiops.errors import UsageError
from aiops.init import Initializer
from aiops.optim import SGD, Optimizer
from aiops.runtime.customer import Customer
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.witness import Telling
from aiops.tables.sparse_table import SparseTable
from aiops.tables.table import Table
from aiops.workers.customer_handle import CustomerHandle, Customers
from aiops.workers.identity import WorkerIdentity
from aiops.workers.reports import Reports
from aiops.workers.ring import Ring
from aiops.workers.rings import Rings, RingSettings
from aiops.workers.state import KeepsState
from aiops.workers.tables import Tables, sparse_table_spec, table_spec
from aiops_protocol.payload import Float32Array

__all__ = ["Worker"]

CONNECT_TIMEOUT_S: Final = 60.0
"""How long `connect` waits for the scheduler, the servers and the other workers."""

TABLE_TIMEOUT_S: Final = 60.0
"""How long opening a table may take: allocation on all servers, or a round of a running job."""

BARRIER_TIMEOUT_S: Final = 600.0
"""Ten minutes of computing before a barrier are normal, an hour is a hang."""


class Worker(WorkerIdentity, KeepsState):
    """One worker of a job. Made by `connect`, used as `async with`.

    Attributes
    ----------
    main_customer, postoffice
        The parts it is made of, for those who build on them.
    """

    def __init__(self, postoffice: Postoffice, customer: Customer) -> None:
        self.postoffice = postoffice
        self.main_customer = customer
        self.finished = False
        self._told_finished = False
        self._tables = Tables(self)
        self._customers = Customers(self)
        self._rings = Rings(customer.van, postoffice)
        self._planned = 0
        self._open_step = False
        self._ticking = False
        self._reports = Reports(postoffice, self._customers, self._tables)
        self._closed = False

    def __repr__(self) -> str:
        return f"<Worker {self.rank} ({self.name}) clock={self.clock}>"

    async def __aenter__(self) -> Self:
        """Nothing to do: it is connected already."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave, cleanly or as a loss."""
        await self.close(error)

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
        compression: Codec | str | None = None,
        pull_compression: Codec | str | None = None,
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
            `BSP()` (if not given), `SSP(staleness=3)`, `Quorum(minimum=3)` or `ASP()`.
        allow_nonfinite
            Let NaN and infinity pass.
        compression
            How pushes travel: a codec of `aiops.compression` such as `TopK(0.01)`, or its
            spelling `"top-k:0.01"`. What it loses is held back and sent later (error feedback).
        pull_compression
            How values come back: workers then have a replica of the table, which is brought
            near to the exact values by compressed differences; all of them the same bits.

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
        RequestTimeout
            No answer within `timeout_s`.

        Notes
        -----
        In BSP every worker of the job takes part in the table's rounds from its creation on, also
        one that opens it later: until that has ticked, or finished, the others wait for it. A
        worker that joins the job later enters at the next round.

        When this is cancelled or out of time, opening goes on in the background, and this worker
        seals the table's clocks like those of the others; calling again returns the table.
        """
        check_name(name, "the table's name")
        timeout_s = check_timeout(timeout_s, f"opening table {name}")
        spec, values = None, None
        if shape is not None:
            mode = BSP() if consistency is None else consistency
            optimizer = SGD(lr=0.01) if optimizer is None else optimizer
            spec, values = table_spec(
                name, shape, init, optimizer, mode, allow_nonfinite, compression, pull_compression
            )
            mode.check_workers(self.postoffice.expected_workers)
        return await self._tables.open_dense(name, spec, values, timeout_s)

    async def sparse_table(
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
        """Create a sparse table, whose rows come into being as they are used; or join it.

        Parameters
        ----------
        name, optimizer, consistency, allow_nonfinite
            As for `table`.
        width
            Values in a row, 1 to 65,536. Without it an existing table is joined.
        init
            A number or an `aiops.init` object: what a row begins with. A random one follows from
            its seed and the row's key alone.
        layout
            `"hashed"` spreads any keys evenly over the servers. `"range"` keeps neighbours
            together: it cuts the range of all keys, 0 to 2**64-1, into one part for each server.
        compression
            How pushed rows travel: fp16, bf16, fp8, int8, int4, one-bit, qsgd or lz4, with scales
            for each row. What is lost is held back by key (`HELD_BYTES_MAX`), as in `table`.
        pull_compression
            How rows come back: fp16 or bf16; rounded, the server keeps the exact ones.

        Returns
        -------
        table : SparseTable

        Raises
        ------
        ConfigError, UsageError
            A setting is wrong, there is no such table to join, or it is a dense one.
        TableMismatch
            It exists with other settings; the message names the difference.
        RequestTimeout
            No answer within `timeout_s`.

        Notes
        -----
        Nothing is reserved for the rows: a push that makes one too many for a server's memory is
        refused (`RemoteError`). Who takes part in rounds, and cancelling, are as for `table`.
        """
        check_name(name, "the table's name")
        timeout_s = check_timeout(timeout_s, f"opening table {name}")
        spec = None
        if width is not None:
            mode = BSP() if consistency is None else consistency
            optimizer = SGD(lr=0.01) if optimizer is None else optimizer
            spec = sparse_table_spec(
                name, width, init, optimizer, mode, layout, allow_nonfinite, compression,
                pull_compression,
            )  # fmt: skip
            mode.check_workers(self.postoffice.expected_workers)
        return await self._tables.open_sparse(name, spec, timeout_s)

    # --- rings ---

    async def ring(
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
        """Form a ring of all live workers, for collective calls among them.

        Every live, unfinished worker calls this; it returns when all have. In a ring that has been
        formed already, a worker that comes later waits until the members call `Ring.reform`.

        Parameters
        ----------
        name
            Letters, digits and `. _ : -`; the same name again returns the same ring, and what is
            asked of it then must be what it has.
        timeout_s
            How long to wait for the others, here and in `Ring.reform`: 60 s if not given.
        call_timeout_s
            How long a call waits for the others, unless it says otherwise: 600 s if not given.
        bind, advertise, insecure
            Where other workers reach this one, as for `Server`: any free port of 127.0.0.1 if not
            given. With `insecure=True` alone, of the address from which this worker reaches the
            scheduler. These, `transport` and `connections` of a worker's first ring hold for all.
        transport
            "auto": shared memory between processes of one host, otherwise TCP; or one of the two.
        topology
            "rank" (if not given), or "measured": over TCP sums go round by the quickest links
            (`Ring.order`).
        connections
            How many to open to each other worker over TCP, 1 (if not given) to 8: for long, fast
            links.

        Raises
        ------
        BarrierTimeout
            Not all workers have come in time; `missing` names them.
        ConfigError
            The name or an address is wrong, or other machines could not reach this worker.
        UsageError
            This worker has finished, a setting is none that can be, or it is not what the ring of
            this name, or this worker's first ring, has.
        """
        check_name(name, "the ring's name")
        asked = RingSettings(
            timeout_s, call_timeout_s, topology, bind, advertise, insecure, transport, connections
        )
        return await self._rings.open(name, asked)

    def customer(self, name: str) -> CustomerHandle:
        """Return a further customer of this worker, the same for each call of a name.

        It has connections to the servers of its own, which `async with` opens and closes, so that
        a bulk transfer does not hold up small requests. See `CustomerHandle`.

        Raises
        ------
        UsageError
            This worker has had 255 of them.
        """
        self.check()
        return self._customers.get(check_name(name, "the customer's name"))

    # --- the clock ---

    async def tick(self) -> None:
        """Complete one clock: flush background pushes and seal every open table.

        Raises
        ------
        UsageError
            After `finish`, or while another task is in here.
        AiopsError
            What a background push, or an earlier seal, has met.

        Notes
        -----
        When it is cancelled or raises, the clock is still open.
        """
        self.check()
        if self.finished:
            raise UsageError("tick: this worker has finished and has no more clocks")
        if self._ticking:
            raise UsageError("tick: another task of this worker completes this clock already")
        self._ticking = True
        try:
            with Telling(self.main_customer.witness, "tick", clock=self.clock):
                await self._complete_clock()
        finally:
            self._ticking = False

    async def _complete_clock(self) -> None:
        for table in self._tables.all:
            await table.core.writes.settled()
            await table.core.place.ready_to_seal()
        for table in self._tables.all:
            table.core.place.seal()
        self.postoffice.clock += 1
        self._open_step = self.postoffice.in_step = False
        self.main_customer.flush()

    def steps(self, n: int) -> AsyncIterator[int]:
        """Iterate over `n` steps, one clock each; yields absolute step numbers.

        The k-th loop of a script covers the `n` steps after those of the earlier loops; a
        worker that was lost and restarted goes on where the job is. Ends early, for all workers
        at the same boundary, after `stop`. `break` leaves the clock unsealed until the next
        `steps`, `tick` or `finish`.
        """
        first = self._planned
        self._planned += check_count(n, "steps: n")
        return self._steps(first, self._planned)

    async def _steps(self, first: int, stop: int) -> AsyncIterator[int]:
        if self.finished:
            raise UsageError("steps: this worker has finished and has no more clocks")
        if self._open_step:
            await self.tick()
        for step in range(max(first, min(self.clock, stop)), stop):
            # A loop that only computes must still hear of a stop, or of the end of the job.
            await asyncio.sleep(0)
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
        Idempotent; when it was cancelled, call it again.
        """
        if self._told_finished:
            return
        self.check()
        with Telling(self.main_customer.witness, "finish"):
            await self._leave_rounds()

    async def _leave_rounds(self) -> None:
        await self._tables.opened()
        if not self.finished:
            for table in self._tables.all:
                await table.core.writes.settled()
            for table in self._tables.all:
                table.core.place.leave()
            if self._open_step:
                self.postoffice.clock += 1
                self._open_step = self.postoffice.in_step = False
            self.finished = True
        for table in self._tables.all:
            await table.core.place.settled()
        if not self._told_finished:
            self._rings.leave()
            self._told_finished = True
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
        A worker whose call was cancelled stays at the barrier: its next call of the same name
        waits for the same opening, or returns at once if that has come.
        """
        check_name(name, "the barrier's name")
        timeout_s = check_timeout(timeout_s, f"barrier {name}")
        with Telling(self.main_customer.witness, "barrier", name=name) as call:
            call.generation = await self.postoffice.barrier(name, timeout_s)

    async def stop(self, reason: str) -> None:
        """Ask all workers to stop at one step boundary; returns at once.

        `steps` loops end there, everywhere; `stop_reason` tells why.
        """
        self.postoffice.request_stop(str(reason))

    # --- observation ---

    def publish_metrics(self, **metrics: float) -> None:
        """Show numbers (a loss) in status and progress; cheap, sent with the next report."""
        self._reports.publish(metrics)

    def span(self, name: str, step: int | None = None) -> AbstractContextManager[None]:
        """Record how long a block takes, if the job is traced."""
        return self._reports.span(name, step)

    def stats(self) -> dict[str, Any]:
        """Return latencies, bytes by cause and by server, compression, and what tables count.

        Of compression: the codec, how many pushes, the bytes that were given and the bytes that
        they became (without frames), and the norm of what is held back. Of a table: `late`,
        contributions that came after their round had closed; `staleness`, pushed pieces by the
        number of changes of others between read and push (16 and more under powers of two).
        """
        return {
            **self._reports.stats(),
            "compression": self._tables.compression(),
            "tables": self._tables.stats(),
        }

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
        self._reports.close(last=self.postoffice.failure is None)
        self.postoffice.leave(clean, "" if clean else describe(error))
        await self._rings.close()
        await self._tables.close()
        await self._customers.close()
        await self.main_customer.close()
        await self.postoffice.wait_left()
        await self.postoffice.stop_heart()
        if self.main_customer.witness is not None:
            self.main_customer.witness.close(clean=clean, reason=describe(error) if error else "")


def describe(error: BaseException | None) -> str:
    """Put an error into one line that may travel."""
    if error is None:
        return "closed"
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text.encode("utf-8", "replace").decode()
