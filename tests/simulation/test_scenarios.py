"""Whole clusters of the real runtime under faults, on virtual time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from aiops.testing.simulation.scenarios import Outcome, run_scenario
from aiops.testing.simulation.sweep import Sweep
from swept import BLOCK, Block, swept

SEEDS = {
    "conservation": 300,
    "agreement": 60,
    "survival": 40,
    "silence": 40,
    "comeback": 40,
    "bounded": 20,
    "quorums": 20,
}
BLOCKS = [(name, first) for name, seeds in SEEDS.items() for first in range(0, seeds, BLOCK)]
SIGHTS = [(name, 1000) for name in SEEDS]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[dict[Block, Future[list[Outcome]]]]:
    """What the blocks of all the tests that are asked for will have led to."""
    mine = [item for item in request.session.items if item.path == request.path]
    names = {item.name for item in mine}
    wanted = [
        block
        for block in BLOCKS
        if f"{test_promises_hold_under_faults.__name__}[{block[0]}-{block[1]}]" in names
    ]
    if test_everything_that_may_happen_happens.__name__ in names:
        wanted += SIGHTS
    with swept(wanted) as found:
        yield found


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{name}-{first}" for name, first in BLOCKS])
def test_promises_hold_under_faults(block: Block, runs: dict[Block, Future[list[Outcome]]]) -> None:
    """A failing seed is repeated by `aiops simulate --scenario ... --seed ...`."""
    total = Sweep()
    for outcome in runs[block].result():
        total.add(outcome)
    assert not [f"seed {outcome.seed}: {outcome.failure}" for outcome in total.failures]
    assert total.runs == BLOCK
    assert sum(total.seen.values()) > BLOCK, "hardly anything happened to these clusters"


def test_everything_that_may_happen_happens(runs: dict[Block, Future[list[Outcome]]]) -> None:
    total = Sweep()
    for block in SIGHTS:
        for outcome in runs[block].result():
            total.add(outcome)
    assert not total.failures
    assert not total.unseen(list(SEEDS))


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
