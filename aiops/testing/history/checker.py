"""The checker: all rules over a recorded run, and the verdict.

Each rule is a function in a room of its own; the list here says which there are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from aiops.errors import DataError
from aiops.testing.history.barriers import leaving_of_barriers
from aiops.testing.history.bounds import (
    bound_of_workers,
    clocks_of_bounded,
    clocks_of_quorums,
    staleness_of,
)
from aiops.testing.history.order import (
    number_of_mutations,
    order_of_versions,
    value_of_versions,
    version_of_mutations,
)
from aiops.testing.history.round_values import values_of_rounds
from aiops.testing.history.rounds import (
    clocks_of_workers,
    closing_of_rounds,
    rounds_of_workers,
)
from aiops.testing.history.run import Run, read_runs
from aiops.testing.history.values import checkable, values_of_shards
from aiops.testing.history.violation import Violation
from aiops.wording import listed, shown

__all__ = ["Verdict", "check", "verify"]

Rule = Callable[[Run], Iterator[Violation]]

RULES: Final[tuple[Rule, ...]] = (
    number_of_mutations,
    version_of_mutations,
    order_of_versions,
    value_of_versions,
    clocks_of_workers,
    rounds_of_workers,
    closing_of_rounds,
    bound_of_workers,
    clocks_of_bounded,
    clocks_of_quorums,
    leaving_of_barriers,
    values_of_shards,
    values_of_rounds,
)

VIOLATIONS_MAX: Final = 100
"""Violations of one rule that are looked for; one is enough to know."""


@dataclass(slots=True)
class Verdict:
    """What a history says.

    Attributes
    ----------
    violations
        In the order in which they happened; empty if all promises were kept.
    staleness
        By table, pieces of pushes by the changes of others between read and push.
    notes
        What could not be checked, and why.
    """

    job: str
    workers: int = 0
    operations: int = 0
    unknown: int = 0
    tables: dict[str, str] = field(default_factory=dict)
    staleness: dict[str, dict[int, int]] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every promise was kept, as far as it could be checked."""
        return not self.violations


def check(run: Run) -> Verdict:
    """Check one run."""
    verdict = Verdict(run.job, workers=len(run.workers))
    for operation in run.operations:
        verdict.operations += 1
        verdict.unknown += operation.outcome == "unknown"
    for opened in run.tables.values():
        verdict.tables[opened.name] = opened.mode
    verdict.staleness = staleness_of(run)
    for rule in RULES:
        verdict.violations += islice(rule(run), VIOLATIONS_MAX)
    verdict.violations.sort(key=lambda violation: violation.at)
    verdict.notes = list(_notes(run))
    return verdict


def _notes(run: Run) -> Iterator[str]:
    missing = run.missing()
    if missing:
        yield (
            f"no history of {listed(missing)}: whether anything was applied that nobody has "
            "pushed was not checked, nor were values"
        )
    if not run.one_clock():
        yield "workers of several machines: operations of different machines are not ordered"
    for opened in run.tables.values():
        if opened.mode in ("bsp", "quorum") and not opened.values:
            yield (
                f"table {opened.name}: without its values, a contribution that is lost or doubled "
                "for all workers alike does not show (AIOPS_HISTORY_VALUES)"
            )
        if opened.values and not checkable(opened):
            yield (
                f"table {opened.name}: its values are compared, not computed (that needs the "
                "optimizer Add and one initial number)"
            )


def verify(path: str | Path) -> list[Verdict]:
    """Check a history file, or all histories of a folder; one verdict per job.

    Raises
    ------
    DataError
        There is no history, or a file is not one.
    """
    given: object = path
    if not isinstance(given, str | os.PathLike):
        raise DataError(f"verify: path is {shown(path)}; pass that of a history, or of a folder")
    return [check(run) for run in read_runs(Path(path))]
