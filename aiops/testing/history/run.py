"""A recorded run: the histories of all workers of one job, read from their files.

Reading and putting together only; what must hold of a run is in the rooms that `checker` lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from aiops.errors import DataError
from aiops.testing.history.format import (
    FORMAT,
    Closed,
    Ended,
    Event,
    Header,
    Invoked,
    Opened,
    Outcome,
    PartAsked,
    PartEnded,
    decode,
)
from aiops.wording import shown

__all__ = ["Operation", "Part", "Run", "WorkerHistory", "read_runs"]

NEVER: Final = 2**63
"""The end of what has not ended."""

_UNHEARD: Final = PartEnded(outcome="unknown")


@dataclass(slots=True, eq=False)
class Part:
    """One frame of an operation, asked and answered."""

    operation: Operation
    asked: PartAsked
    ended: PartEnded

    @property
    def shard(self) -> tuple[int, int]:
        """The shard that it went to: table and index."""
        return self.operation.table_id, self.asked.shard

    @property
    def ok(self) -> bool:
        """Whether it was answered well."""
        return self.ended.outcome == "ok"

    @property
    def may_apply(self) -> bool:
        """Whether it has taken effect, or may have, or still may."""
        return self.ended.outcome != "fail"

    @property
    def placed(self) -> bool:
        """Whether the version in its answer is the one that it made itself.

        The answer to a repeat has the version of the shard at that later time.
        """
        return self.ok and not self.ended.resent


@dataclass(slots=True, eq=False)
class Operation:
    """One call of a worker, from its invocation to its end."""

    worker: WorkerHistory
    line: int
    invoked: Invoked
    ended_at: int = NEVER
    ended_line: int = 0
    outcome: Outcome = "unknown"
    error: str = ""
    generation: int = 0
    parts: list[Part] = field(default_factory=list)

    @property
    def invoked_at(self) -> int:
        """When it began."""
        return self.invoked.at

    @property
    def kind(self) -> str:
        """What it is."""
        return self.invoked.kind

    @property
    def table_id(self) -> int:
        """Id of its table, 0 for none."""
        return self.invoked.table

    @property
    def table(self) -> Opened:
        """Its table, as this worker has opened it."""
        return self.worker.tables[self.invoked.table]

    @property
    def changes(self) -> bool:
        """Whether it changes values, or is to."""
        return self.kind in ("push", "push_pull", "assign")

    def precedes(self, other: Operation) -> bool:
        """Whether it had ended before the other began, as far as that can be told."""
        return self.worker.host == other.worker.host and self.ended_at < other.invoked_at

    def __str__(self) -> str:
        """One line for a person: who, what, where, how it ended, and where it is written."""
        invoked = self.invoked
        words = [f"{self.worker} #{invoked.op} {invoked.verb or invoked.kind}"]
        if invoked.table:
            words.append(f"of {self.table.name}" if invoked.table in self.worker.tables else "")
        if invoked.name:
            words.append(f"{invoked.name} (generation {self.generation})")
        if invoked.kind == "tick":
            words.append(f"of clock {invoked.clock}")
        words.append(f"[{_seconds(self.worker.run_at, invoked.at)}")
        end = "..." if self.ended_at == NEVER else _seconds(self.worker.run_at, self.ended_at)
        words[-1] += f" - {end}] {self.outcome}"
        return " ".join(filter(None, words)) + f"  ({self.worker.path.name}:{self.line})"


def _seconds(start: int, at: int) -> str:
    return f"{(at - start) / 1e9:.6f} s"


@dataclass(slots=True, eq=False)
class WorkerHistory:
    """What one incarnation of one worker did.

    Attributes
    ----------
    run_at
        The beginning of the run, for messages.
    """

    path: Path
    header: Header
    tables: dict[int, Opened] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    closed: Closed | None = None
    run_at: int = 0

    @property
    def host(self) -> str:
        """The machine, and with it the clock."""
        return self.header.host

    def __str__(self) -> str:
        """Rank and, from the second on, incarnation."""
        header = self.header
        again = f" (incarnation {header.incarnation})" if header.incarnation > 1 else ""
        return f"worker {header.worker}{again}"

    def of_kind(self, *kinds: str) -> Iterator[Operation]:
        """Yield its operations of these kinds, in the order of invocation."""
        return (operation for operation in self.operations if operation.kind in kinds)


@dataclass(slots=True)
class Run:
    """All histories of one job."""

    job: str
    workers: list[WorkerHistory]

    @property
    def operations(self) -> Iterator[Operation]:
        """All operations of all workers."""
        return (operation for worker in self.workers for operation in worker.operations)

    @property
    def tables(self) -> dict[int, Opened]:
        """Every table that anybody has opened, by id."""
        found: dict[int, Opened] = {}
        for worker in self.workers:
            for table, opened in worker.tables.items():
                known = found.get(table)
                if known is None or (opened.values and not known.values):
                    found[table] = opened
        return found

    def missing(self) -> list[str]:
        """Return the workers that must have been in the job and have no history here."""
        have = {(worker.header.worker, worker.header.incarnation) for worker in self.workers}
        ranks = {rank for worker in self.workers for rank in worker.header.workers}
        ranks.update(rank for rank, _ in have)
        lacking = []
        for rank in range(max(ranks, default=-1) + 1):
            newest = max((inc for other, inc in have if other == rank), default=0)
            lacking += [
                f"worker {rank} (incarnation {incarnation})"
                for incarnation in range(1, max(newest, 1) + 1)
                if (rank, incarnation) not in have
            ]
        return lacking

    def one_clock(self) -> bool:
        """Whether all workers share one clock."""
        return len({worker.host for worker in self.workers}) <= 1


def read_runs(path: Path) -> list[Run]:
    """Read a history, or every `*.jsonl` of a folder; one run per job.

    Raises
    ------
    DataError
        There is none, or a file is not one; the message has file and line.
    """
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name that is too long
        raise DataError(f"cannot read {shown(str(path))}: {error.strerror}") from error
    if is_folder:
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise DataError(f"{path} has no history: no file *.jsonl is in it")
    else:
        files = [path]
    jobs: dict[str, list[WorkerHistory]] = {}
    for file in files:
        try:
            lines = file.read_bytes().split(b"\n")
        except (OSError, ValueError) as error:  # ValueError: a byte 0 in the name
            why = getattr(error, "strerror", None) or error
            raise DataError(f"cannot read {shown(str(file))}: {why}") from error
        worker = build(file, _events(file, lines))
        jobs.setdefault(worker.header.job, []).append(worker)
    return [assemble(job, workers) for job, workers in jobs.items()]


def assemble(job: str, workers: list[WorkerHistory]) -> Run:
    """Put the histories of one job together."""
    workers.sort(key=lambda worker: (worker.header.worker, worker.header.incarnation))
    start = min(worker.header.at for worker in workers)
    for worker in workers:
        worker.run_at = start
    return Run(job, workers)


def _events(path: Path, lines: Sequence[bytes]) -> Iterator[Event]:
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield decode(line)
        except msgspec.MsgspecError as error:
            raise DataError(f"{path}:{number}: not a line of a history: {error}") from None
    # What follows the last newline was being written when the worker was killed.


def build(path: Path, events: Iterable[Event]) -> WorkerHistory:
    """Make a history of its events.

    Raises
    ------
    DataError
        They are no history, or of another format.
    """
    worker: WorkerHistory | None = None
    by_number: dict[int, Operation] = {}
    for line, event in enumerate(events, start=1):
        where = f"{path}:{line}"
        if worker is None:
            if not isinstance(event, Header):
                raise DataError(f"{path} is not a history: its first line is no header")
            if event.format != FORMAT:
                raise DataError(
                    f"{path} has format {event.format}; this version of aiops reads {FORMAT}"
                )
            worker = WorkerHistory(path, event)
            continue
        match event:
            case Opened():
                worker.tables[event.table] = event
            case Invoked():
                by_number[event.op] = operation = Operation(worker, line, event)
                if event.table and event.table not in worker.tables:
                    raise DataError(f"{where}: table {event.table} was not opened before")
                operation.parts = [Part(operation, asked, _UNHEARD) for asked in event.parts]
                worker.operations.append(operation)
            case Ended():
                begun = by_number.get(event.op)
                if begun is None or begun.ended_at != NEVER:
                    raise DataError(f"{where}: operation {event.op} is not under way")
                _end(begun, event, where)
                begun.ended_line = line
            case Closed():
                worker.closed = event
            case Header():
                raise DataError(f"{where}: a second header")
    if worker is None:
        raise DataError(f"{path} is empty")
    return worker


def _end(operation: Operation, event: Ended, where: str) -> None:
    operation.ended_at = event.at
    operation.outcome = event.outcome
    operation.error = event.error
    operation.generation = event.generation
    if len(event.parts) != len(operation.parts):
        raise DataError(f"{where}: {len(event.parts)} answers to {len(operation.parts)} parts")
    for part, ended in zip(operation.parts, event.parts, strict=True):
        part.ended = ended
