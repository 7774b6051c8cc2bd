"""The order of versions: what every shard's versions tell, in any run of any training.

In an asynchronous table a version counts mutations, so that even without values a lost push, a
doubled one, or a read of the past shows. Values themselves are `values` and `round_values`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from aiops.testing.history.run import Part, Run
from aiops.testing.history.violation import Violation

__all__ = [
    "number_of_mutations",
    "order_of_versions",
    "value_of_versions",
    "version_of_mutations",
]


COUNTED: Final = ("asp", "ssp")
"""Modes in which a version counts mutations."""


@dataclass(slots=True)
class _Sweep:
    """One shard as the clock goes on: what has been seen of it, acknowledged, begun."""

    counts: bool  # whether its versions count mutations
    whole: bool  # whether all mutations that there were are in the histories
    newest: Part | None = None
    acknowledged: int = 0
    begun: int = 0
    before: dict[Part, tuple[Part | None, int]] = field(default_factory=dict)

    def invoke(self, part: Part) -> None:
        self.before[part] = self.newest, self.acknowledged
        if part.operation.changes and part.may_apply:
            self.begun += 1

    def end(self, part: Part) -> Violation | None:
        seen, acknowledged = self.before.pop(part)
        if not part.ok:
            return None
        violation = self._against_seen(part, seen)
        if violation is None and self.counts:
            violation = self._against_counts(part, acknowledged)
        if self.newest is None or part.ended.version > self.newest.ended.version:
            self.newest = part
        if part.operation.changes:
            self.acknowledged += 1
        return violation

    def _against_seen(self, part: Part, seen: Part | None) -> Violation | None:
        if seen is None:
            return None
        makes_newer = self.counts and part.operation.changes and part.placed
        if part.ended.version >= seen.ended.version + makes_newer:
            return None
        what = _where(part)
        own = seen.operation.worker is part.operation.worker
        promise = "own-writes" if own and seen.operation.changes else "order"
        if makes_newer:
            text = (
                f"a {part.operation.kind} made version {part.ended.version} of {what}, though "
                f"version {seen.ended.version} had been seen before it began"
            )
        else:
            text = (
                f"version {part.ended.version} of {what} was seen after version "
                f"{seen.ended.version}"
            )
        return Violation(promise, text, (seen.operation, part.operation))

    def _against_counts(self, part: Part, acknowledged: int) -> Violation | None:
        version, what = part.ended.version, _where(part)
        least = acknowledged + part.operation.changes
        if version < least:
            text = (
                f"{what} was at version {version} when {least} mutations had been acknowledged: "
                "one of them is lost"
            )
            return Violation("exactly-once", text, (part.operation,))
        if self.whole and version > self.begun:
            text = (
                f"{what} was at version {version} when only {self.begun} mutations had begun: "
                "one of them was applied twice"
            )
            return Violation("exactly-once", text, (part.operation,))
        return None


def _where(part: Part) -> str:
    return f"shard {part.asked.shard} of table {part.operation.table.name}"


def _parts(run: Run) -> Iterator[Part]:
    for operation in run.operations:
        if operation.kind != "initialise":
            yield from operation.parts


def order_of_versions(run: Run) -> Iterator[Violation]:
    """Check that in the course of time nobody sees a shard go back, nor mutations uncounted.

    Operations of different machines are not compared: their clocks differ.
    """
    whole = run.one_clock() and not run.missing()
    sweeps: dict[tuple[str, int, int], _Sweep] = {}
    marks: list[tuple[int, int, int, Part]] = []
    for number, part in enumerate(_parts(run)):
        operation = part.operation
        marks.append((operation.invoked_at, 0, number, part))
        marks.append((operation.ended_at, 1, number, part))
        key = (operation.worker.host, *part.shard)
        if key not in sweeps:
            sweeps[key] = _Sweep(operation.table.mode in COUNTED, whole)
    marks.sort(key=lambda mark: mark[:3])
    for _, is_end, _, part in marks:
        sweep = sweeps[part.operation.worker.host, *part.shard]
        if not is_end:
            sweep.invoke(part)
        elif (violation := sweep.end(part)) is not None:
            yield violation


def version_of_mutations(run: Run) -> Iterator[Violation]:
    """Check that in an asynchronous table no two mutations have made the same version."""
    made: dict[tuple[int, int, int], Part] = {}
    for part in _parts(run):
        operation = part.operation
        if not (operation.changes and part.placed and operation.table.mode in COUNTED):
            continue
        other = made.setdefault((*part.shard, part.ended.version), part)
        if other is not part:
            text = (
                f"two mutations made version {part.ended.version} of {_where(part)}: "
                "one of them is lost"
            )
            yield Violation("exactly-once", text, (other.operation, operation))


def value_of_versions(run: Run) -> Iterator[Violation]:
    """Check that whoever was given a version of the same keys was given the same values."""
    seen: dict[tuple[int, ...], Part] = {}
    for part in _parts(run):
        operation, asked = part.operation, part.asked
        if operation.kind not in ("pull", "push_pull") or not part.ok:
            continue
        key = (*part.shard, asked.begin, asked.end, asked.keys, part.ended.version)
        other = seen.setdefault(key, part)
        if other.ended.checksum != part.ended.checksum:
            text = (
                f"version {part.ended.version} of {_where(part)}, keys [{asked.begin}, "
                f"{asked.end}), has two values: checksums {other.ended.checksum:08x} and "
                f"{part.ended.checksum:08x}"
            )
            yield Violation("one-value", text, (other.operation, operation))


def number_of_mutations(run: Run) -> Iterator[Violation]:
    """Check that no two mutations of a session carry the same number: one would be dropped."""
    for worker in run.workers:
        taken: dict[tuple[int, int], dict[int, Part]] = defaultdict(dict)
        for operation in worker.operations:
            for part in operation.parts:
                if not part.ended.seq:
                    continue
                other = taken[part.shard].setdefault(part.ended.seq, part)
                if other is not part:
                    text = f"two mutations to {_where(part)} have number {part.ended.seq}"
                    yield Violation("exactly-once", text, (other.operation, operation))
