"""What tables promise whose workers may be apart: bounded staleness, and rounds without the late.

In an SSP table nobody goes on at clock c before all have completed c - s. In a quorum a worker
may leave rounds out, but never goes back, and what it says of its clocks fits what it does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from aiops.observability.staleness import StalenessHistogram
from aiops.testing.history.run import NEVER, Operation, Run, WorkerHistory
from aiops.testing.history.violation import Violation

__all__ = ["bound_of_workers", "clocks_of_bounded", "clocks_of_quorums", "staleness_of"]


def bound_of_workers(run: Run) -> Iterator[Violation]:
    """Check that no read or change was let through before all had completed enough.

    Only workers of the same machine are compared, and only those that were surely there: open,
    not finished, and never lost.
    """
    for host in sorted({worker.host for worker in run.workers}):
        workers = [worker for worker in run.workers if worker.host == host]
        for table, opened in run.tables.items():
            if opened.mode == "ssp":
                yield from _bound(workers, table, opened.staleness)


def _bound(workers: list[WorkerHistory], table: int, staleness: int) -> Iterator[Violation]:
    members = [_Member(worker, table) for worker in workers if table in worker.tables]
    for worker in workers:
        for operation in worker.operations:
            if operation.table_id != table or operation.kind in ("seal", "initialise"):
                continue
            if not any(part.ok for part in operation.parts):
                continue
            clock = max(part.asked.clock for part in operation.parts if part.ok)
            for member in members:
                if member.worker is worker or not member.is_there(operation):
                    continue
                late = member.completing(clock - staleness)
                if late is None or late.invoked_at <= operation.ended_at:
                    continue
                text = (
                    f"a {operation.kind} at clock {clock} of table {operation.table.name} was let "
                    f"through before {member.worker} had completed {clock - staleness} clocks: "
                    f"more than {staleness} apart"
                )
                yield Violation("staleness", text, (operation, late))
                return


class _Member:
    """A worker as the others know it: when it completed which clock."""

    def __init__(self, worker: WorkerHistory, table: int) -> None:
        self.worker = worker
        self._opened = worker.tables[table]
        seals = [seal for seal in worker.of_kind("seal") if seal.table_id == table]
        self._final = next((seal for seal in seals if seal.invoked.final), None)
        self._seals = {
            seal.parts[0].asked.clock: seal
            for seal in seals
            if not seal.invoked.final and seal.parts
        }

    def is_there(self, operation: Operation) -> bool:
        """Whether the others have to wait for it: it takes part, and was never lost."""
        closed = self.worker.closed
        if closed is None or not closed.clean or not self._opened.takes_part:
            return False
        left_at = closed.at if self._final is None else self._final.invoked_at
        return self._opened.at <= operation.invoked_at and operation.ended_at < left_at

    def completing(self, clocks: int) -> Operation | None:
        """Return the seal by which it completed so many clocks; `None` if it needed none.

        One that it never sealed it has left before.
        """
        if clocks <= self._opened.first:
            return None
        return self._seals.get(clocks - 1, self._final)


def clocks_of_bounded(run: Run) -> Iterator[Violation]:
    """Check that in an SSP table each operation has the worker's own clock there."""
    for worker in run.workers:
        clocks = {
            table: opened.first
            for table, opened in worker.tables.items()
            if opened.mode == "ssp" and opened.takes_part
        }
        left: set[int] = set()
        for operation in worker.operations:
            clock = clocks.get(operation.table_id)
            if clock is None or operation.table_id in left or not operation.parts:
                continue
            asked = {part.asked.clock for part in operation.parts}
            ahead = operation.kind == "pull" and operation.invoked.verb in ("prefetch", "updates")
            if asked != {clock} and not ahead and operation.kind != "initialise":
                name = operation.table.name
                text = f"a {operation.kind} of clock {min(asked)} of {name} where {clock} was open"
                yield Violation("clocks", text, (operation,))
            if operation.kind == "seal":
                if operation.invoked.final:
                    left.add(operation.table_id)
                else:
                    clocks[operation.table_id] = clock + 1


def clocks_of_quorums(run: Run) -> Iterator[Violation]:
    """Check that in a quorum a worker's clocks only rise, and that it says what it has pushed."""
    for worker in run.workers:
        least = {
            table: opened.first
            for table, opened in worker.tables.items()
            if opened.mode == "quorum" and opened.takes_part
        }
        pushed: dict[int, list[Operation]] = defaultdict(list)
        left: set[int] = set()
        for operation in worker.operations:
            table = operation.table_id
            if table not in least or table in left or not operation.parts:
                continue
            clock, name = operation.parts[0].asked.clock, operation.table.name
            for part in operation.parts:
                if operation.kind == "pull" and part.ok and part.ended.version < part.asked.clock:
                    got, wanted = part.ended.version, part.asked.clock
                    text = f"a pull asked for version {wanted} of {name} and got {got}"
                    yield Violation("rounds", text, (operation,))
            gives = operation.changes or (operation.kind == "seal" and not operation.invoked.final)
            if gives and clock < least[table]:
                text = f"a {operation.kind} of clock {clock} of {name}, which was sealed"
                yield Violation("clocks", text, (operation,))
            if operation.changes:
                pushed[table] += [operation] * any(part.ok for part in operation.parts)
            elif operation.kind == "seal" and operation.invoked.final:
                left.add(table)
            elif operation.kind == "seal":
                other = [push for push in pushed[table] if push.parts[0].asked.clock != clock]
                if pushed[table] and (other or not operation.invoked.contributed):
                    text = f"clock {clock} of {name} was sealed as if nothing had been pushed"
                    yield Violation("rounds", text, (*pushed[table][:3], operation))
                pushed[table] = []
                least[table] = clock + 1


def staleness_of(run: Run) -> dict[str, dict[int, int]]:
    """Return how stale gradients were, by table: what servers and workers count, from histories.

    A pushed piece whose answer is that of a repeat is not counted: its place is not known.
    """
    found: dict[str, StalenessHistogram] = {}
    for worker in run.workers:
        for table, opened in worker.tables.items():
            if opened.mode in ("asp", "ssp"):
                histogram = found.setdefault(opened.name, StalenessHistogram())
                _count(worker, table, histogram)
    return {name: dict(sorted(each.counts.items())) for name, each in found.items() if each.counts}


def _count(worker: WorkerHistory, table: int, histogram: StalenessHistogram) -> None:
    events: list[tuple[int, bool, Operation]] = []
    for operation in worker.operations:
        if operation.table_id == table:
            events.append((operation.line, False, operation))
            if operation.ended_at != NEVER:
                events.append((operation.ended_line, True, operation))
    own: dict[int, int] = defaultdict(int)
    before: dict[Operation, dict[int, int]] = {}
    offsets: dict[int, int] = {}
    for _, is_end, operation in sorted(events, key=lambda event: event[0]):
        if not is_end:
            _begin(operation, own, offsets, histogram)
            before[operation] = dict(own)
        elif operation.kind in ("pull", "push_pull") and not operation.invoked.verb:
            for part in operation.parts:
                if part.ok:
                    shard = part.asked.shard
                    offsets[shard] = part.ended.version - before[operation].get(shard, 0)


def _begin(
    operation: Operation,
    own: dict[int, int],
    offsets: dict[int, int],
    histogram: StalenessHistogram,
) -> None:
    if not (operation.changes or operation.kind == "initialise"):
        return
    for part in operation.parts:
        shard = part.asked.shard
        offset = offsets.get(shard)
        if offset is not None and operation.kind in ("push", "push_pull") and part.placed:
            histogram.note(part.ended.version - 1 - max(offset + own[shard], 0))
        own[shard] += 1
