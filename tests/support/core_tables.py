"""What a worker's table handle does, for scripts of `core_cluster`: pieces, clocks, seals."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np

from aiops.roles.requests import Operation, Part
from aiops_protocol.control import (
    AttachTable,
    FinishWorker,
    Leave,
    Refused,
    TableInitialised,
    TableOpened,
    TableSpec,
)
from aiops_protocol.delivery import Outbox
from aiops_protocol.frames import Assign, Flag, Pull, Push, Request, Seal
from aiops_protocol.payload import Float32Array, as_bytes, weight_bytes
from core_cluster import Wait, WorkerNode

T = TypeVar("T")
Steps = Generator[Wait, None, T]


def spec_of(
    name: str,
    size: int,
    *,
    optimizer: str = "add",
    settings: dict[str, Any] | None = None,
    consistency: str = "bsp",
    reduce: str = "mean",
    staleness: int = 0,
    trim: int | None = None,
    quorum: dict[str, Any] | None = None,
    init: str = "constant",
    layout: str = "dense",
) -> TableSpec:
    """The settings of a table."""
    given: dict[str, dict[str, Any]] = {
        "bsp": {"reduce": reduce} | ({} if trim is None else {"trim": trim}),
        "quorum": {"reduce": reduce, "grace_s": 0.01, "late": "drop"} | (quorum or {}),
        "ssp": {"staleness": staleness},
    }
    return TableSpec(
        name=name,
        shape=[size],
        init_kind=init,
        init={} if init == "values" else {"value": 0.0},
        optimizer=optimizer,
        optimizer_settings=settings or {},
        consistency=consistency,
        consistency_settings=given.get(consistency, {}),
        layout=layout,
    )


def joined(worker: WorkerNode) -> Steps[None]:
    """Wait until the cluster is complete."""
    yield lambda: worker.rank is not None and worker.ready


def opened(
    worker: WorkerNode, spec: TableSpec, values: Float32Array | None = None, segment: int = 7
) -> Steps[CoreTable]:
    """Create or join a table; give the initial values if asked to."""
    reply = yield from _attached(worker, spec)
    table = CoreTable(worker, reply, segment)
    if reply.initialise:
        assert values is not None
        operation = table.change(Assign, values, 0, int(Flag.INITIAL))
        yield lambda: operation.done
        table.check(operation)
        worker.tell(TableInitialised(table=reply.table))
        yield from _attached(worker, spec)  # until the scheduler knows, nobody may use it
    return table


def _attached(worker: WorkerNode, spec: TableSpec) -> Steps[TableOpened]:
    worker.calls += 1
    call = worker.calls
    worker.tell(AttachTable(call=call, name=spec.name, spec=spec))

    def answer() -> TableOpened | Refused | None:
        for reply in worker.replies:
            if isinstance(reply, TableOpened | Refused) and reply.call == call:
                return reply
        return None

    yield lambda: answer() is not None
    reply = answer()
    assert isinstance(reply, TableOpened), reply
    return reply


class CoreTable:
    """One worker's view of a table; segments are small, so that one push is many frames."""

    def __init__(self, worker: WorkerNode, reply: TableOpened, segment: int) -> None:
        self.worker = worker
        self.table_id = reply.table
        self.parts = reply.parts
        self.size = int(np.prod(reply.spec.shape))
        self.rounds = reply.spec.consistency != "asp"  # so it has clocks to seal
        self.first = reply.from_version
        self.clock = self.first if self.rounds else 0
        self.contributed = False
        self.segment = segment
        self.outboxes = [Outbox() for _ in self.parts]

    def _pieces(self, begin: int, end: int) -> list[tuple[int, int, int]]:
        pieces = []
        for shard, part in enumerate(self.parts):
            at, stop = max(begin, part.begin), min(end, part.end)
            while at < stop:
                upper = min(at + self.segment, stop)
                pieces.append((shard, at, upper))
                at = upper
        return pieces

    def _start(self, operation: Operation) -> Operation:
        servers = [self.parts[part.shard].server for part in operation.parts]
        return self.worker.start(operation, servers)

    def _operation(self, verb: str) -> Operation:
        return Operation(verb, "a table", self.worker.cluster.now, 60.0, None)

    def change(
        self, kind: type[Request], values: Float32Array, begin: int = 0, flags: int = 0
    ) -> Operation:
        """Begin a push or an assignment of the elements from `begin` on."""
        operation = self._operation(kind.__name__)
        memory = as_bytes(values)
        for shard, low, high in self._pieces(begin, begin + values.size):
            Part(
                operation,
                kind,
                self.table_id,
                shard,
                clock=self.clock,
                begin=low,
                end=high,
                flags=flags,
                payload=memory[4 * (low - begin) : 4 * (high - begin)],
                outbox=self.outboxes[shard],
            )
        if kind is Push:
            self.contributed = True
        return self._start(operation)

    def push(self, values: Float32Array, begin: int = 0) -> Steps[None]:
        operation = self.change(Push, values, begin)
        yield lambda: operation.done
        self.check(operation)

    def assign(self, values: Float32Array, begin: int = 0) -> Steps[None]:
        operation = self.change(Assign, values, begin)
        yield lambda: operation.done
        self.check(operation)

    def seal(self, *, final: bool = False, weight: float = 1.0) -> Operation:
        """Seal the clock at every shard, without waiting."""
        flags = Flag.FINAL if final else Flag.CONTRIBUTED if self.contributed else Flag(0)
        weighted = flags is Flag.CONTRIBUTED and weight != 1.0
        operation = self._operation("seal")
        for shard in range(len(self.parts)):
            Part(
                operation,
                Seal,
                self.table_id,
                shard,
                clock=self.clock,
                flags=int(flags | Flag.WEIGHT if weighted else flags),
                payload=weight_bytes(weight) if weighted else b"",
                outbox=self.outboxes[shard],
            )
        self._start(operation)
        self.contributed = False
        if not final:
            self.clock += 1
        return operation

    def pull(self, version: int | None = None) -> Steps[tuple[Float32Array, dict[int, int]]]:
        """Pull everything; `None`: of this worker's clock."""
        values = np.full(self.size, np.nan, np.float32)
        wanted = self.clock if version is None else version
        operation = self._ask(values, dict.fromkeys(range(len(self.parts)), wanted))
        yield lambda: operation.done
        self.check(operation)
        return values, operation.versions

    def pull_newest(self, wanted: int = 0) -> Steps[tuple[Float32Array, int]]:
        """Pull everything of one version, for a worker that is outside of the rounds or late."""
        values = np.full(self.size, np.nan, np.float32)
        versions = dict.fromkeys(range(len(self.parts)), wanted)
        stale = dict(versions)
        while stale:
            operation = self._ask(values, stale)
            yield lambda operation=operation: operation.done  # type: ignore[misc]
            self.check(operation)
            versions |= operation.versions
            newest = max(versions.values())
            stale = {
                shard: newest
                for shard, version in versions.items()
                if version < newest or shard in operation.torn
            }
        return values, max(versions.values())

    def _ask(self, values: Float32Array, wanted: dict[int, int]) -> Operation:
        memory = as_bytes(values)
        operation = self._operation("pull")
        for shard, low, high in self._pieces(0, self.size):
            if shard in wanted:
                Part(
                    operation,
                    Pull,
                    self.table_id,
                    shard,
                    clock=wanted[shard],
                    begin=low,
                    end=high,
                    into=memory[4 * low : 4 * high],
                )
        return self._start(operation)

    @staticmethod
    def check(operation: Operation) -> None:
        if operation.error is not None:
            raise operation.error


def leave(worker: WorkerNode, *tables: CoreTable) -> Steps[None]:
    """Finish all tables and leave the job in order."""
    seals = [table.seal(final=True) for table in tables if table.rounds]
    yield lambda: all(operation.done for operation in seals)
    for operation in seals:
        CoreTable.check(operation)
    worker.tell(FinishWorker(clock=worker.clock))
    worker.tell(Leave(clean=True))
    worker.up.end()
    for connection in worker.connections:
        if connection is not None:
            connection.up.end()
    worker.alive = False
