"""Each planted bug is found, so bugs like it would be."""

from __future__ import annotations

import datetime

import pytest

from aiops.testing.simulation.mutants import MUTANTS, Mutant
from aiops.testing.simulation.scenarios import run_scenario

SEEDS_MAX = 2000
A_FEW = 5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All of them when asked for, otherwise a few that change from day to day."""
    if "mutant" not in metafunc.fixturenames:
        return
    mutants = list(MUTANTS)
    if not metafunc.config.getoption("--all-mutants"):
        start = datetime.date.today().toordinal() * A_FEW % len(mutants)
        mutants = (mutants + mutants)[start : start + A_FEW]
    metafunc.parametrize("mutant", mutants, ids=[mutant.name for mutant in mutants])


def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    for seed in range(SEEDS_MAX):
        if run_scenario(mutant.scenario, seed, mutant.plant).failure:
            return
    pytest.fail(f"{mutant.name} ({mutant.why}) survived {SEEDS_MAX} seeds of {mutant.scenario}")


def test_without_dedup_conservation_fails_for_nearly_every_seed() -> None:
    """The scenario must really make repeats, or it would prove nothing."""
    no_dedup = next(mutant for mutant in MUTANTS if mutant.name == "no-dedup")
    found = [
        bool(run_scenario(no_dedup.scenario, seed, no_dedup.plant).failure) for seed in range(25)
    ]
    assert sum(found) >= 0.99 * len(found)
