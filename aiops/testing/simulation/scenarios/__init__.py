"""Scenarios: what a simulated cluster does under faults, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import msgspec

from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.scenarios.agreement import agreement
from aiops.testing.simulation.scenarios.bounded import bounded
from aiops.testing.simulation.scenarios.comeback import comeback
from aiops.testing.simulation.scenarios.common import Scenario
from aiops.testing.simulation.scenarios.conservation import conservation
from aiops.testing.simulation.scenarios.quorums import quorums
from aiops.testing.simulation.scenarios.silence import silence
from aiops.testing.simulation.scenarios.survival import survival
from aiops.testing.simulation.seal import sealed

__all__ = ["SCENARIOS", "Outcome", "run_scenario"]

SCENARIOS: Final[dict[str, Scenario]] = {
    "conservation": conservation,
    "agreement": agreement,
    "survival": survival,
    "silence": silence,
    "comeback": comeback,
    "bounded": bounded,
    "quorums": quorums,
}


class Outcome(msgspec.Struct):
    """How a run ended.

    `failure` is empty when everything held. `seen` counts what happened: a sweep in which
    something never happened proves nothing about it.
    """

    scenario: str
    seed: int
    failure: str
    digest: str
    virtual_s: float
    turns: int
    seen: dict[str, int]


def run_scenario(
    name: str,
    seed: int,
    mutant: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Outcome:
    """Run one scenario with one seed, sealed off from the real clock and real chance.

    Parameters
    ----------
    mutant
        A planted bug to be in force during the run.
    """
    loop = SimLoop(seed)
    seen: dict[str, int] = {}
    failure = ""
    with sealed(loop), mutant():
        try:
            loop.run_until_complete(SCENARIOS[name](loop, seen))
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        if loop.strays and not failure:
            failure = f"an exception that nobody handled: {loop.strays[0]}"
        outcome = Outcome(name, seed, failure, loop.digest, loop.time(), loop.turns, seen)
        loop.bury()
    return outcome
