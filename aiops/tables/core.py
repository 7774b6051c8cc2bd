"""TableCore: what the parts of one table's handle share; DenseCore: with rows by number.

The parts are the worker's place in the rounds (`rounds`), what is read (`table_reads`) and
what is written (`writes`). What users call is in `table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiops.compression.compressor import Compressor
from aiops.compression.pull_gate import PullGate
from aiops.compression.pulls import PULL_CANDIDATES
from aiops.compression.spelling import AUTO
from aiops.roles.rules import CLOCKED, ROUNDS, has_lead
from aiops.tables.compression import compressor_for, measured_prices
from aiops.tables.layout import Choice, Layout
from aiops.tables.reads import Reads
from aiops.tables.replica import PulledReplica
from aiops.tables.rounds import Place
from aiops.tables.row_compression import RowCompressor
from aiops.tables.staleness import Staleness
from aiops.tables.writes import RowWrites, Writes
from aiops_protocol.codecs import mix
from aiops_protocol.control import TableOpened, TableSpec
from aiops_protocol.delivery import Outbox
from aiops_protocol.frames import Assign, Flag
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.runtime.customer import Customer
    from aiops.workers.worker import Worker

__all__ = ["DenseCore", "TableCore"]

_INITIAL = int(Flag.INITIAL)


class TableCore:
    """One open table of one worker.

    Attributes
    ----------
    title
        For messages: `table w`.
    has_rounds
        Whether its version rises by rounds (BSP, Quorum).
    takes_weights
        Whether one contribution to a round may count more than another.
    has_lead
        Whether its rounds close without those who are late, as its first shard decides.
    keeps_late
        Whether what comes late counts in the next round.
    is_clocked
        Whether others wait for this worker's clock there (all but ASP).
    servers
        Ranks of the servers, one for each shard.
    compressor
        What compresses the pushes of this worker, if anything does.
    rounded_pulls
        Whether the rows of a sparse table are rounded for their way back.
    replica
        This worker's copy of the public replica, if pulls are compressed.
    staleness
        What pushes are computed on; only without rounds.
    outboxes
        One for each shard: its mutations are numbered there.
    main
        The worker's own core, if this is that of a further customer: it has the place in rounds.
    users
        The cores of all customers; a seal may only follow what they all have pushed.
    """

    def __init__(
        self,
        worker: Worker,
        opened: TableOpened,
        main: TableCore | None = None,
        customer: Customer | None = None,
    ) -> None:
        spec = opened.spec
        self.worker = worker
        self.customer = customer or worker.main_customer
        self.opened = opened
        self.main = main
        self.table_id = opened.table
        self.name = spec.name
        self.title = f"table {spec.name}"
        self.shape = tuple(spec.shape)
        self.servers = [part.server for part in opened.parts]
        self.has_rounds = spec.consistency in ROUNDS
        reduce = spec.consistency_settings.get("reduce")
        self.takes_weights = self.has_rounds and reduce == "mean"
        self.has_lead = has_lead(spec)
        self.keeps_late = spec.consistency_settings.get("late") == "next"
        self.is_clocked = spec.consistency in CLOCKED
        self.allow_nonfinite = spec.allow_nonfinite
        self.outboxes = [Outbox() for _ in opened.parts]
        takes_part = self.is_clocked and not worker.finished
        self.compressor: Compressor | RowCompressor | None = None
        self.rounded_pulls = spec.layout != "dense" and bool(spec.pull_compression)
        self.replica: PulledReplica | None = None
        if main is None:
            self.users: list[TableCore] = [self]
            self.place = Place(self, opened.from_version, takes_part=takes_part)
        else:
            self.users, self.place = main.users, main.place
            self.users.append(self)
        self.staleness = None if self.has_rounds else Staleness(len(opened.parts))
        self.reads = Reads(self, None)
        self.writes = Writes(self)

    @property
    def in_order(self) -> bool:
        """Whether a seal that is sent after a push arrives after it: over one connection."""
        return self.shards == 1 and self.main is None

    @property
    def shards(self) -> int:
        """Into how many shards the table is cut."""
        return len(self.outboxes)

    def subject(self, choice: Choice) -> str:
        """Name what a call is about, for its error messages."""
        if choice.shape == self.shape:
            return self.title
        return f"{self.title} ({choice.shape[0]} rows)"

    def stats(self) -> dict[str, Any]:
        """Return what is counted of this table."""
        found: dict[str, Any] = {"late": self.place.late} if self.has_lead else {}
        if self.staleness is not None:
            found["staleness"] = dict(sorted(self.staleness.histogram.counts.items()))
        return found

    def close(self) -> None:
        """Let go of what runs in the background."""
        self.reads.forget()
        if self.main is not None and self in self.users:
            self.users.remove(self)


class DenseCore(TableCore):
    """One open dense table of one worker.

    Attributes
    ----------
    layout
        Where its elements are.
    """

    writes: RowWrites
    compressor: Compressor | None

    def __init__(
        self,
        worker: Worker,
        opened: TableOpened,
        main: DenseCore | None = None,
        customer: Customer | None = None,
    ) -> None:
        super().__init__(worker, opened, main, customer)
        self.layout = Layout(self.name, self.shape, opened.parts)
        self.servers = self.layout.servers
        # What compression holds back is held back once for the whole worker.
        self.compressor = main.compressor if main else _compressor(worker, opened.spec)
        if opened.spec.pull_compression:
            self.replica = _replica(
                worker, opened.spec.pull_compression, self.layout, self.customer
            )
        self.reads = Reads(self, self.layout.whole)
        self.writes = RowWrites(self, self.layout, self.compressor)

    async def initialise(self, values: Float32Array) -> None:
        """Send the initial values, as the first creator."""
        operation = self.writes.plan(Assign, values, None, None, verb="initialise", flags=_INITIAL)
        await self.writes.perform(operation)


def _replica(worker: Worker, spelling: str, layout: Layout, customer: Customer) -> PulledReplica:
    """Return this worker's copy of the public replica, and what chooses how values come."""
    if spelling != AUTO:
        return PulledReplica(spelling, layout)
    customer.measure_arrivals()
    prices, uplink = measured_prices(PULL_CANDIDATES), worker.main_customer.uplink
    servers = len(set(layout.servers))
    gate = PullGate(layout.size, servers, prices, customer.arrivals, uplink)
    return PulledReplica(spelling, layout, gate)


def _compressor(worker: Worker, spec: TableSpec) -> Compressor | None:
    """Return what compresses this worker's pushes, if the table says so."""
    if not spec.compression:
        return None
    seed = mix(*spec.name.encode(), worker.rank)
    compressor = compressor_for(
        spec.compression, tuple(spec.shape), seed, worker.main_customer.uplink
    )
    warnings = compressor.codec.warnings()
    if "velocity" in compressor.codec.elementwise and spec.optimizer != "sgd":
        warnings.append(f"{spec.compression} has momentum of its own, and so may {spec.optimizer}")
    for text in warnings:
        worker.postoffice.log.warning("compression", table=spec.name, warning=text)
    return compressor
