"""Each planted bug is found, so bugs like it would be."""

from __future__ import annotations

import gc
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from itertools import chain

import pytest

from aiops.testing.simulation.mutants import MUTANTS, Mutant
from aiops.testing.simulation.scenarios import run_scenario

SEEDS_MAX = 2000


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_found(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    """With the seed that is known to find it, or any other if that does not any more."""
    known = [] if request.config.getoption("--all-mutants") else [mutant.seed]
    for seed in chain(known, range(SEEDS_MAX)):
        if run_scenario(mutant.scenario, seed, mutant.plant).failure:
            print(f"{mutant.name}: found with seed {seed}")
            return
    pytest.fail(f"{mutant.name} ({mutant.why}) survived {SEEDS_MAX} seeds of {mutant.scenario}")


def test_without_dedup_conservation_fails_for_nearly_every_seed() -> None:
    """The scenario must really make repeats, or it would prove nothing."""
    no_dedup = next(mutant for mutant in MUTANTS if mutant.name == "no-dedup")
    found = [
        bool(run_scenario(no_dedup.scenario, seed, no_dedup.plant).failure) for seed in range(25)
    ]
    assert sum(found) >= 0.99 * len(found)


def test_a_run_that_fails_leaves_nothing_that_was_begun() -> None:
    """What a `finally` gathers after the end belongs to no other loop, where it would wait."""
    no_dedup = next(mutant for mutant in MUTANTS if mutant.name == "no-dedup")
    assert run_scenario(no_dedup.scenario, no_dedup.seed, no_dedup.plant).failure
    begun = [one for one in gc.get_objects() if iscoroutine(one)]
    assert not [one for one in begun if getcoroutinestate(one) == CORO_CREATED]
