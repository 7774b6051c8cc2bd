"""A sweep: many seeds of the scenarios, what happened in them all, and what broke."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from aiops.testing.simulation.nemesis import FAULTS
from aiops.testing.simulation.scenarios import SCENARIOS, Outcome, run_scenario
from aiops.testing.simulation.scenarios.silence import WEATHERS

__all__ = ["GOALS", "Sweep", "sweep"]

GOALS: Final = ("kill", "zombie", *FAULTS, *WEATHERS, "replaced")
"""What must happen at least once in a sweep of some size, or it has proved little."""

GOALS_FROM_SEEDS: Final = 20
"""A sweep of fewer seeds cannot be expected to see everything."""


class Sweep(msgspec.Struct):
    """The sum of many runs."""

    runs: int = 0
    virtual_s: float = 0.0
    seen: dict[str, int] = {}
    failures: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.runs += 1
        self.virtual_s += outcome.virtual_s
        for what, times in outcome.seen.items():
            self.seen[what] = self.seen.get(what, 0) + times
        if outcome.failure:
            self.failures.append(outcome)

    def unseen(self, scenarios: Sequence[str]) -> list[str]:
        """Return the goals that no run has reached, where the sweep was large enough."""
        if self.runs < GOALS_FROM_SEEDS * len(SCENARIOS) or set(scenarios) != set(SCENARIOS):
            return []
        return [goal for goal in GOALS if not self.seen.get(goal)]


def sweep(
    seeds: Iterable[int], scenarios: Sequence[str], ran: Callable[[Outcome], None]
) -> Iterator[Outcome]:
    """Run every scenario with every seed; `ran` hears of each, the failed ones are yielded."""
    for seed in seeds:
        for name in scenarios:
            outcome = run_scenario(name, seed)
            ran(outcome)
            if outcome.failure:
                yield outcome
