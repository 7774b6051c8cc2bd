"""The values of asynchronous tables: every pull is explained by whole pushes, each at most once.

For tables whose optimizer is `add` and whose whole values were recorded. A version counts
mutations, so a push whose version is known is in exactly the pulls of that version and later
ones; the others (of unknown outcome, or acknowledged as repeats) are looked for in the values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aiops.testing.history.explain import Candidate, explain
from aiops.testing.history.format import Opened
from aiops.testing.history.run import Operation, Part, Run
from aiops.testing.history.violation import Violation

__all__ = ["amount_of", "checkable", "elements", "parts_by_shard", "values_of_shards"]

Numbers = NDArray[np.float64]


def checkable(opened: Opened) -> bool:
    """Whether the values of a table can be computed from what was pushed."""
    return opened.values and opened.optimizer == "add" and opened.init is not None


def parts_by_shard(run: Run, table: int) -> dict[int, list[Part]]:
    """Return what went to each shard of a table, in the order of invocation."""
    found: dict[int, list[Part]] = {}
    for operation in run.operations:
        if operation.table_id == table:
            for part in operation.parts:
                found.setdefault(part.asked.shard, []).append(part)
    for parts in found.values():
        parts.sort(key=lambda part: part.operation.invoked_at)
    return found


def elements(part: Part, begin: int) -> NDArray[np.int64]:
    """Return the places, counted from the shard's begin, that a part is about, in its order."""
    ranges = part.asked.ranges or [(part.asked.begin, part.asked.end)]
    return np.concatenate([np.arange(low, high, dtype=np.int64) for low, high in ranges]) - begin


def amount_of(part: Part, begin: int, size: int) -> Numbers:
    """Return what a part adds to its shard."""
    amount = np.zeros(size)
    amount[elements(part, begin)] = part.asked.values
    return amount


@dataclass(slots=True)
class _Shard:
    """One shard as its versions go on: what is certainly in it, and what may be."""

    opened: Opened
    index: int
    whole: bool
    values: Numbers
    placed: list[Part]  # by version; those from `taken` on are not in `values` yet
    floating: list[Part]
    taken: int = 0
    found: int = 0  # floating ones that turned out to be in
    newest: dict[int, Part] = field(default_factory=dict)

    def advance(self, version: int) -> None:
        begin = self.opened.shards[self.index][1]
        while self.taken < len(self.placed):
            part = self.placed[self.taken]
            if part.ended.version > version:
                break
            self.values += amount_of(part, begin, self.values.size)
            self.taken += 1

    def check(self, pull: Part) -> Violation | None:
        version = pull.ended.version
        self.advance(version)
        begin = self.opened.shards[self.index][1]
        places = elements(pull, begin)
        rest = np.asarray(pull.ended.values) - self.values[places]
        possible = [part for part in self.floating if not pull.operation.precedes(part.operation)]
        candidates = [
            Candidate(
                amount_of(part, begin, self.values.size)[places], _needed(part, pull, version)
            )
            for part in possible
        ]
        count = version - self.taken - self.found if self.whole else None
        explanation = explain(rest, candidates, count)
        if explanation.miscounted:
            text = (
                f"{self._name()} has the values of another number of mutations than its version "
                f"{version} says"
            )
            return Violation("exactly-once", text, (pull.operation,))
        if explanation.wrong is not None:
            return self._violation(pull, places, *explanation.wrong)
        self._take(possible, explanation.inside, begin)
        return None

    def _take(self, possible: list[Part], inside: list[bool | None], begin: int) -> None:
        """Count those that are in as certain from now on."""
        for part, is_in in zip(possible, inside, strict=True):
            if is_in:
                self.floating.remove(part)
                self.values += amount_of(part, begin, self.values.size)
                self.found += 1

    def _name(self) -> str:
        return f"shard {self.index} of table {self.opened.name}"

    def _violation(
        self, pull: Part, places: NDArray[np.int64], place: int, off: float
    ) -> Violation:
        begin = self.opened.shards[self.index][1]
        element = int(places[place])
        touching = [
            part.operation
            for part in (*self.placed[: self.taken], *self.floating)
            if amount_of(part, begin, self.values.size)[element] != 0
        ]
        seen = np.asarray(pull.ended.values)[place]
        verdict = (
            "too little: a push is lost, or not seen"
            if off < 0
            else ("too much: a push was applied twice, too early, or by nobody")
        )
        text = (
            f"element {element + begin} of {self._name()} is {seen:g} at version "
            f"{pull.ended.version}, which is {abs(off):g} {verdict}"
        )
        return Violation("exactly-once", text, (*_some(touching), pull.operation))


def _some(operations: list[Operation]) -> list[Operation]:
    """Return the last few of the operations that a message may name."""
    return list(dict.fromkeys(operations))[-4:]


def _needed(part: Part, pull: Part, version: int) -> bool:
    """Whether a floating mutation must be in a pull of this version."""
    if not part.ok:
        return False
    return part.ended.version <= version or part.operation.precedes(pull.operation)


def values_of_shards(run: Run) -> Iterator[Violation]:
    """Check every pull of the asynchronous tables that can be computed."""
    if run.missing():
        return
    whole = run.one_clock()  # else what is under way at an instant is not known
    for table, opened in run.tables.items():
        if opened.mode not in ("asp", "ssp") or not checkable(opened):
            continue
        for index, parts in parts_by_shard(run, table).items():
            if any(part.operation.kind == "assign" for part in parts):
                continue  # what was there before is gone, in an order that is not always known
            yield from _check(opened, index, parts, whole)


def _check(opened: Opened, index: int, parts: list[Part], whole: bool) -> Iterator[Violation]:
    _, begin, end = opened.shards[index]
    changes = [part for part in parts if part.operation.changes and part.may_apply]
    shard = _Shard(
        opened,
        index,
        whole,
        np.full(end - begin, float(opened.init or 0)),
        placed=sorted((part for part in changes if part.placed), key=_version),
        floating=[part for part in changes if not part.placed],
    )
    seen = [part for part in parts if part.ok and part.ended.values is not None]
    for pull in sorted(seen, key=_version):
        violation = shard.check(pull)
        if violation is not None:
            yield violation
            return  # the values are wrong from here on


def _version(part: Part) -> int:
    return part.ended.version
