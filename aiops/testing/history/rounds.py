"""Rounds and clocks: what bulk-synchronous tables promise about versions, seals and ticks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiops.testing.history.run import Operation, Part, Run, WorkerHistory
from aiops.testing.history.violation import Violation

__all__ = ["clocks_of_workers", "closing_of_rounds", "rounds_of_workers"]


@dataclass(slots=True)
class _Place:
    """A worker's place in the rounds of one table, as it goes through its history."""

    clock: int
    in_rounds: bool
    pushed: list[Operation] = field(default_factory=list)  # in the open clock


def rounds_of_workers(run: Run) -> Iterator[Violation]:
    """Check each worker's own operations: pulls, pushes and seals belong to its clock."""
    for worker in run.workers:
        places = {
            table: _Place(opened.first, opened.takes_part)
            for table, opened in worker.tables.items()
            if opened.mode == "bsp"
        }
        for operation in worker.operations:
            place = places.get(operation.table_id)
            if place is None:
                continue
            match operation.kind:
                case "pull":
                    yield from _check_pull(operation, place)
                case "push" | "assign":
                    yield from _check_push(operation, place)
                    place.pushed.append(operation)
                case "seal":
                    yield from _check_seal(operation, place)


def _check_pull(operation: Operation, place: _Place) -> Iterator[Violation]:
    for part in operation.parts:
        if not part.ok:
            continue
        version, table = part.ended.version, operation.table.name
        if version < part.asked.clock:
            text = f"a pull asked for version {part.asked.clock} of {table} and got {version}"
            yield Violation("rounds", text, (operation,))
        elif place.in_rounds and version != place.clock and operation.invoked.verb != "updates":
            text = f"a pull at clock {place.clock} of table {table} returned version {version}"
            yield Violation("rounds", text, (operation,))


def _check_push(operation: Operation, place: _Place) -> Iterator[Violation]:
    for part in operation.parts:
        clock, version = part.asked.clock, part.ended.version
        what = f"a {operation.kind} of clock {clock} to table {operation.table.name}"
        if clock != place.clock:
            text = f"{what} was sent in clock {place.clock}"
            yield Violation("clocks", text, (operation,))
        elif part.ok and (version < clock or (part.placed and version > clock)):
            when = "after that round had closed" if version > clock else "before that round opened"
            text = f"{what} was taken at version {version}, {when}"
            yield Violation("rounds", text, (operation,))


def _check_seal(operation: Operation, place: _Place) -> Iterator[Violation]:
    clocks = {part.asked.clock for part in operation.parts}
    table = operation.table.name
    if not place.in_rounds and operation.table.takes_part:
        yield Violation("clocks", f"table {table} was sealed after its last seal", (operation,))
    if clocks - {place.clock}:
        text = f"clock {min(clocks)} of table {table} was sealed where {place.clock} was open"
        yield Violation("clocks", text, (operation,))
    applied = [push for push in place.pushed if any(part.ok for part in push.parts)]
    if applied and not operation.invoked.contributed:
        text = f"clock {place.clock} of table {table} was sealed as if nothing had been pushed"
        yield Violation("rounds", text, (*applied[:3], operation))
    place.pushed = []
    if operation.invoked.final:
        place.in_rounds = False
    else:
        place.clock += 1


def closing_of_rounds(run: Run) -> Iterator[Violation]:
    """Check that no version was handed out before every member had sealed the round before it.

    A member that never sealed it has left or was lost; the round closes without it.
    """
    hosts = {worker.host for worker in run.workers}
    for host in sorted(hosts):
        workers = [worker for worker in run.workers if worker.host == host]
        for table, opened in run.tables.items():
            if opened.mode == "bsp":
                yield from _closing(workers, table)


def _closing(workers: list[WorkerHistory], table: int) -> Iterator[Violation]:
    first_seen: dict[int, Part] = {}
    for part in (
        part
        for worker in workers
        for operation in worker.operations
        if operation.table_id == table
        for part in operation.parts
        if part.ok
    ):
        known = first_seen.get(part.ended.version)
        if known is None or part.operation.ended_at < known.operation.ended_at:
            first_seen[part.ended.version] = part
    # Who has seen version v has seen that every round before v was closed.
    earliest: Part | None = None
    by_version: list[tuple[int, Part]] = []
    for version in sorted(first_seen, reverse=True):
        part = first_seen[version]
        if earliest is None or part.operation.ended_at < earliest.operation.ended_at:
            earliest = part
        by_version.append((version, earliest))
    seen = dict(by_version)
    versions = sorted(seen)
    for worker in workers:
        for seal in worker.of_kind("seal"):
            taken = seal.table_id == table and any(part.ok for part in seal.parts)
            if not taken or seal.invoked.final:  # a refused one is that of a lost member
                continue
            place = bisect_right(versions, seal.parts[0].asked.clock)
            if place == len(versions):
                continue
            closed = versions[place]
            if seen[closed].operation.ended_at < seal.invoked_at:
                text = (
                    f"version {closed} of table {seal.table.name} was handed out before {worker} "
                    f"had sealed clock {seal.parts[0].asked.clock}"
                )
                yield Violation("rounds", text, (seen[closed].operation, seal))


def clocks_of_workers(run: Run) -> Iterator[Violation]:
    """Check that each tick completes the clock after the one before it."""
    for worker in run.workers:
        expected = worker.header.clock
        ticks = list(worker.of_kind("tick"))
        if ticks and worker.header.incarnation > 1:
            # One that comes back goes on where the job is, which it learns with its first table.
            expected = max(expected, ticks[0].invoked.clock)
        for tick in ticks:
            if tick.invoked.clock != expected:
                text = f"{worker} completed clock {tick.invoked.clock} where {expected} was open"
                yield Violation("clocks", text, (tick,))
            if tick.outcome == "ok":
                expected = tick.invoked.clock + 1
