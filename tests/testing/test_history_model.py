"""Histories that a model cluster makes up: valid ones are accepted, those with a bug rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.testing.history import check
from history_model import BUGS, Model

seeds = st.integers(0, 2**32)


@given(seeds, st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.booleans())
def test_what_a_correct_cluster_does_is_accepted(
    seed: int, workers: int, shards: int, steps: int, deaths: bool
) -> None:
    """With answers that are lost or repeated, unknown outcomes that count late, and deaths."""
    model = Model(seed, workers=workers, shards=shards, steps=steps, deaths=deaths)
    verdict = check(model.run())
    assert verdict.violations == []
    assert verdict.operations > 0


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_whenever_it_strikes(bug: str) -> None:
    """All of them, in every run in which there was an occasion."""
    struck = 0
    for seed in range(40):
        model = Model(seed, steps=6, bug=bug)
        verdict = check(model.run())
        if model.fired:
            struck += 1
            assert not verdict.holds, f"seed {seed}: {bug} is accepted"
        else:
            assert verdict.holds
    assert struck >= 10
