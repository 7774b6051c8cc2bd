"""Whole clusters of the real runtime under faults, on virtual time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from aiops.testing.simulation.scenarios import run_scenario
from aiops.testing.simulation.sweep import Sweep, sweep

SEEDS = {
    "conservation": 300,
    "agreement": 60,
    "survival": 40,
    "silence": 40,
    "comeback": 40,
    "bounded": 20,
    "quorums": 20,
}
BLOCK = 20


def _blocks() -> list[tuple[str, int]]:
    return [(name, first) for name, seeds in SEEDS.items() for first in range(0, seeds, BLOCK)]


@pytest.mark.parametrize(("scenario", "first"), _blocks())
def test_promises_hold_under_faults(scenario: str, first: int) -> None:
    """A failing seed is repeated by `aiops simulate --scenario ... --seed ...`."""
    total = Sweep()
    failures = [
        f"seed {outcome.seed}: {outcome.failure}"
        for outcome in sweep(range(first, first + BLOCK), [scenario], total.add)
    ]
    assert not failures
    assert total.runs == BLOCK
    assert sum(total.seen.values()) > BLOCK, "hardly anything happened to these clusters"


def test_everything_that_may_happen_happens() -> None:
    total = Sweep()
    names = list(SEEDS)
    assert not list(sweep(range(1000, 1020), names, total.add))
    assert not total.unseen(names)


@pytest.mark.parametrize("scenario", list(SEEDS))
def test_the_same_seed_is_the_same_run(scenario: str) -> None:
    """Bit for bit: also in another process, with another hash seed, in another order."""
    seeds = [3, 1, 2]
    here = {seed: run_scenario(scenario, seed).digest for seed in seeds}
    code = (
        "import json; from aiops.testing.simulation.scenarios import run_scenario; "
        f"print(json.dumps({{s: run_scenario({scenario!r}, s).digest for s in (2, 3, 1)}}))"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "271828",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    there = {int(seed): digest for seed, digest in json.loads(done.stdout).items()}
    assert there == here
    assert len(set(here.values())) == len(seeds)
