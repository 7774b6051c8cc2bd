"""The tables of one worker: what a table's settings become, and opening each of them once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from aiops.checks import check_array, check_count, check_flag, is_one_of
from aiops.compression import Codec
from aiops.compression.auto import AutoCompressor
from aiops.consistency import Consistency
from aiops.errors import ConfigError, RequestTimeout, UsageError
from aiops.init import Constant, Initializer
from aiops.optim import Optimizer
from aiops.optim.clipping import refuse_row_limit
from aiops.roles.job import RESIDUAL_NORM
from aiops.tables.compression import compression_spelling
from aiops.tables.row_compression import row_spelling
from aiops.tables.sparse_table import SparseTable
from aiops.tables.table import Table
from aiops.wording import shown
from aiops.workers.state import WorkerState
from aiops_protocol.control import TableSpec
from aiops_protocol.limits import ROW_WIDTH_MAX
from aiops_protocol.payload import Float32Array

if TYPE_CHECKING:
    from aiops.workers.worker import Worker

__all__ = ["Tables", "sparse_table_spec", "table_spec"]

AnyTable: TypeAlias = Table | SparseTable


class Tables:
    """Opens tables and knows those that are open.

    A table is opened in a task of its own, because the scheduler counts on this worker from the
    moment it is asked: a caller that is cancelled, or out of time, must not leave the others
    waiting for the seals of a table that this worker does not know.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._open: dict[str, AnyTable] = {}
        self._opening: dict[str, asyncio.Task[AnyTable]] = {}
        self.state = WorkerState()
        self._late: list[AnyTable] = []  # whose rounds this worker has entered after others

    @property
    def all(self) -> list[AnyTable]:
        """Every open table."""
        return list(self._open.values())

    def stats(self) -> dict[str, dict[str, Any]]:
        """Return what each open table counts."""
        return {table.name: table.core.stats() for table in self.all}

    async def open(
        self, name: str, spec: TableSpec | None, values: Float32Array | None, timeout_s: float
    ) -> AnyTable:
        """Create a table or join it; the same object for each call of a name."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._open_or_join(name, spec, values)
        except TimeoutError:
            scheduler = self._worker.postoffice.scheduler
            raise RequestTimeout(
                f"opening table {name}: no answer from the scheduler at {scheduler} within "
                f"{timeout_s:g} s; it goes on in the background",
                operation=f"opening table {name}",
                elapsed_s=timeout_s,
            ) from None

    async def open_dense(
        self, name: str, spec: TableSpec | None, values: Float32Array | None, timeout_s: float
    ) -> Table:
        """Open a table that must be a dense one."""
        table = await self.open(name, spec, values, timeout_s)
        if not isinstance(table, Table):
            raise UsageError(f"table {name} is a sparse one; open it by worker.sparse_table")
        return table

    async def open_sparse(self, name: str, spec: TableSpec | None, timeout_s: float) -> SparseTable:
        """Open a table that must be a sparse one."""
        table = await self.open(name, spec, None, timeout_s)
        if not isinstance(table, SparseTable):
            raise UsageError(f"table {name} is a dense one; open it by worker.table")
        return table

    async def _open_or_join(
        self, name: str, spec: TableSpec | None, values: Float32Array | None
    ) -> AnyTable:
        while (opening := self._opening.get(name)) is not None:
            await asyncio.wait((opening,))
        known = self._open.get(name)
        if known is not None:
            postoffice = self._worker.postoffice
            await postoffice.attach(name, spec, observer=self._worker.finished)  # or the difference
            return known
        task = asyncio.get_running_loop().create_task(self._attach(name, spec, values))
        self._opening[name] = task
        task.add_done_callback(lambda _: self._opening.pop(name))
        return await asyncio.shield(task)

    async def _attach(
        self, name: str, spec: TableSpec | None, values: Float32Array | None
    ) -> AnyTable:
        postoffice = self._worker.postoffice
        observer = self._worker.finished
        opened = await postoffice.attach(name, spec, observer=observer)
        if self._worker.main_customer.witness is not None:
            self._worker.main_customer.witness.opened(opened, takes_part=not observer)
        table: AnyTable
        if opened.spec.layout == "dense":
            table = Table(self._worker, opened)
        else:
            table = SparseTable(self._worker, opened)
        if opened.initialise:
            assert values is not None
            assert isinstance(table, Table)
            await table.core.initialise(values)
            postoffice.initialised(opened.table)
            # Used before the scheduler knows, the table would be given its values once more by
            # somebody else, should this worker be lost now.
            await postoffice.attach(name, spec, observer=observer)
        self.state.give(table)
        self._open[name] = table
        if table.core.place.in_step:
            self._take_place(table, opened.job_clock)
        return table

    def compression(self) -> dict[str, dict[str, Any]]:
        """Return what compression has done so far, by table."""
        found: dict[str, dict[str, Any]] = {}
        for table in self.all:
            compressor, replica = table.core.compressor, table.core.replica
            if compressor is not None:
                found[table.name] = compressor.stats()
            if replica is not None:
                found.setdefault(table.name, {})["pull"] = replica.stats()
        return found

    def measure(self) -> dict[str, float]:
        """Return numbers for status: what compression holds back."""
        measured: dict[str, float] = {}
        for table in self.all:
            compressor = table.core.compressor
            if compressor is not None:
                measured[f"{RESIDUAL_NORM}{table.name}"] = compressor.residual_norm
        return measured

    def choices(self) -> dict[str, str]:
        """Return for status what cost gates have chosen, and why: by table and direction."""
        found: dict[str, str] = {}
        for table in self.all:
            compressor, replica = table.core.compressor, table.core.replica
            if isinstance(compressor, AutoCompressor):
                gate = compressor.gate
                found[f"{table.name} push"] = f"{gate.chosen}: {gate.reason}"
            if replica is not None and replica.gate is not None:
                found[f"{table.name} pull"] = f"{replica.gate.chosen}: {replica.gate.reason}"
        return found

    def _take_place(self, table: AnyTable, job_clock: int | None) -> None:
        """Be at one clock of the job in all tables; see `TableOpened.job_clock`.

        Otherwise others could wait for this worker's seal of one table while it waits for theirs
        of another.
        """
        postoffice, place, late = self._worker.postoffice, table.core.place, self._late
        if job_clock is None:
            postoffice.entered(table.core.table_id, place.clock)
            return
        if late:
            before = postoffice.job_clock
            place.skip(max(before - job_clock, 0))
            for other in late:
                other.core.place.skip(max(job_clock - before, 0))
        late.append(table)
        postoffice.enters(job_clock)
        for known in late:
            postoffice.entered(known.core.table_id, known.core.place.due)

    async def opened(self) -> None:
        """Wait for what is being opened: this worker is counted on there already."""
        if self._opening:
            await asyncio.wait(list(self._opening.values()))

    async def close(self) -> None:
        """Let go of all tables."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for table in self.all:
            table.close()


def table_spec(
    name: str,
    shape: tuple[int, ...] | int,
    init: float | Float32Array | Initializer,
    optimizer: Optimizer,
    consistency: Consistency,
    allow_nonfinite: bool,
    compression: Codec | str | None = None,
    pull_compression: Codec | str | None = None,
) -> tuple[TableSpec, Float32Array | None]:
    """Check a table's settings; return what travels and the initial values, if given as such."""
    what = f"table {name}"
    allow_nonfinite = check_flag(allow_nonfinite, f"{what}: allow_nonfinite")
    given: object = shape
    sizes = given if isinstance(given, tuple | list) else (given,)
    dims = tuple(check_count(size, f"{what}: shape {shown(given)}: a size") for size in sizes)
    _check_rules(what, optimizer, consistency)
    refuse_row_limit(optimizer, what)
    values: Float32Array | None = None
    kind: str
    settings: dict[str, float | int | bool | str | None]
    if isinstance(init, np.ndarray):
        values = _initial_values(init, dims, what, allow_nonfinite)
        kind, settings = "values", {}
    else:
        initializer = init if isinstance(init, Initializer) else Constant(init)
        kind, settings = initializer.kind, dict(initializer.settings())
    spec = TableSpec(
        name=name,
        shape=list(dims),
        init_kind=kind,
        init=settings,
        optimizer=optimizer.name,
        optimizer_settings=dict(optimizer.settings()),
        consistency=consistency.mode,
        consistency_settings=consistency.settings(),
        allow_nonfinite=allow_nonfinite,
        compression=compression_spelling(compression, dims, what, allow_nonfinite=allow_nonfinite),
        pull_compression=compression_spelling(
            pull_compression, dims, what, allow_nonfinite=allow_nonfinite, pulls=True
        ),
    )
    return _travelling(spec, what), values


def sparse_table_spec(
    name: str,
    width: int,
    init: float | Initializer,
    optimizer: Optimizer,
    consistency: Consistency,
    layout: str,
    allow_nonfinite: bool,
    compression: Codec | str | None = None,
    pull_compression: Codec | str | None = None,
) -> TableSpec:
    """Check the settings of a sparse table; return what travels."""
    what = f"sparse table {name}"
    allow_nonfinite = check_flag(allow_nonfinite, f"{what}: allow_nonfinite")
    columns = check_count(width, f"{what}: width")
    if not 1 <= columns <= ROW_WIDTH_MAX:
        raise UsageError(f"{what}: width is {columns}; a row has 1 to {ROW_WIDTH_MAX} values")
    if not is_one_of(layout, ("hashed", "range")):
        raise ConfigError(f'{what}: layout is {shown(layout)}; pass "hashed" or "range"')
    if isinstance(init, np.ndarray):
        raise ConfigError(
            f"{what}: init is an array; rows are made one by one, so pass a number or an object of "
            "aiops.init, and assign what is known"
        )
    _check_rules(what, optimizer, consistency)
    initializer = init if isinstance(init, Initializer) else Constant(init)
    spec = TableSpec(
        name=name,
        shape=[columns],
        init_kind=initializer.kind,
        init=dict(initializer.settings()),
        optimizer=optimizer.name,
        optimizer_settings=dict(optimizer.settings()),
        consistency=consistency.mode,
        consistency_settings=consistency.settings(),
        allow_nonfinite=allow_nonfinite,
        layout=layout,
        compression=row_spelling(compression, what, nonfinite=bool(allow_nonfinite), pulls=False),
        pull_compression=row_spelling(
            pull_compression, what, nonfinite=bool(allow_nonfinite), pulls=True
        ),
    )
    return _travelling(spec, what)


def _check_rules(what: str, optimizer: object, consistency: object) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"{what}: optimizer is {shown(optimizer)}; pass an object of aiops.optim such as "
            "SGD(lr=0.1)"
        )
    if not isinstance(consistency, Consistency):
        raise ConfigError(
            f"{what}: consistency is {shown(consistency)}; pass BSP(), SSP(staleness=3), "
            "Quorum(minimum=3) or ASP()"
        )


def _initial_values(
    init: Float32Array, dims: tuple[int, ...], what: str, allow_nonfinite: bool
) -> Float32Array:
    """Return a copy of the initial values: they are sent when the table has been created."""
    try:
        flat = check_array(init, dims, f"{what}: init", allow_nonfinite=allow_nonfinite)
    except UsageError as error:
        raise ConfigError(str(error)) from None
    return flat.reshape(dims).copy()


def _travelling(spec: TableSpec, what: str) -> TableSpec:
    """Make sure that the scheduler will accept the message: a wrong one ends the connection."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=TableSpec)
    except (msgspec.MsgspecError, TypeError, OverflowError, ValueError) as error:
        raise ConfigError(f"{what}: a setting cannot travel: {error}") from error
    return spec
