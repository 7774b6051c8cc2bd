"""Learning rates by the clock: each stage by hand, their order, the text in which they travel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError
from aiops.optim import (
    Constant,
    Cosine,
    InverseSqrt,
    Optimizer,
    Schedule,
    Stage,
    Step,
    WarmUp,
    optimizer_from,
    register,
)
from aiops.optim.schedules import STAGES_MAX, stages_from

lengths = st.integers(1, 10**9)
shares = st.floats(0.0, 1.0, width=32)
endings = st.one_of(
    st.builds(Constant, lengths),
    st.builds(WarmUp, lengths, shares),
    st.builds(Cosine, lengths, shares),
)
endless = st.one_of(
    st.builds(Constant),
    st.builds(Step, lengths, st.floats(0.125, 1.0, width=32)),
    st.builds(InverseSqrt, lengths),
    endings,
)
schedules = st.builds(
    lambda lr, stages, last: Schedule(lr, *stages, last),
    st.floats(1e-9, 1e9),
    st.lists(endings, max_size=4),
    endless,
)


@pytest.mark.parametrize(
    ("stage", "rates"),
    [
        (Constant(), {0: 1.0, 10**9: 1.0}),
        (WarmUp(4), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 99: 1.0}),
        (WarmUp(2, start=0.5), {0: 0.75, 1: 1.0}),
        (Cosine(100), {0: 1.0, 50: 0.5, 100: 0.0, 1000: 0.0}),
        (Cosine(2, end=0.5), {0: 1.0, 1: 0.75, 2: 0.5, 3: 0.5}),
        (Step(every=10), {0: 1.0, 9: 1.0, 10: 0.1, 25: 0.01}),
        (Step(every=1, times=0.5), {0: 1.0, 1: 0.5, 3: 0.125}),
        (InverseSqrt(after=100), {0: 1.0, 100: math.sqrt(0.5), 300: 0.5, 9900: 0.1}),
    ],
)
def test_each_stage_by_hand(stage: Stage, rates: dict[int, float]) -> None:
    schedule = Schedule(8.0, stage)
    for clock, rate in rates.items():
        assert schedule(clock) == pytest.approx(8.0 * rate, abs=1e-12)


def test_stages_follow_one_another_and_count_anew() -> None:
    schedule = Schedule(1.0, WarmUp(2), Constant(3), Cosine(2), Step(every=1, times=0.5))
    expected = [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 1.0, 0.5, 0.25]
    assert [schedule(clock) for clock in range(10)] == pytest.approx(expected)


def test_a_warm_up_meets_the_inverse_root_at_the_peak() -> None:
    """The schedule of the transformer: linear up to step w, then proportional to 1 / sqrt(step)."""
    schedule = Schedule(0.5, WarmUp(100), InverseSqrt(100))
    for step in (1, 50, 100, 101, 400, 10_000):
        wanted = 0.5 * min(step / 100, math.sqrt(100 / (step - 1)) if step > 100 else 1.0)
        assert schedule(step - 1) == pytest.approx(wanted)


@given(schedule=schedules)
def test_the_text_says_everything(schedule: Schedule) -> None:
    text = str(schedule)
    assert Schedule.is_text(text)
    assert Schedule.parse(text) == schedule
    assert len(text) < 1024


@given(schedule=schedules, clock=st.integers(0, 2**53))
def test_a_rate_is_never_above_the_learning_rate_nor_below_zero(
    schedule: Schedule, clock: int
) -> None:
    assert 0.0 <= schedule(clock) <= schedule.lr
    assert schedule(-clock) == schedule(0)


@given(stage=st.one_of(st.builds(Cosine, lengths, shares), st.builds(InverseSqrt, lengths)))
def test_what_falls_never_rises(stage: Stage) -> None:
    rates = [Schedule(1.0, stage)(clock) for clock in (0, 1, 2, 10, 1000, 10**6, 10**9, 10**12)]
    assert all(after <= before for before, after in pairwise(rates))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schedule(0.1), "0 stages were given"),
        (lambda: Schedule(0.1, *[Cosine(1)] * (STAGES_MAX + 1)), "give 1 to 16"),
        (lambda: Schedule(0.0, Constant()), "lr is 0.0"),
        (lambda: Schedule(0.1, 0.5), "0.5 is no stage"),  # type: ignore[arg-type]
        (lambda: Schedule(0.1, Step(5), Cosine(5)), "Cosine(steps=5, end=0.0) never begins"),
        (lambda: Schedule(0.1, Constant(), WarmUp(5)), "never begins"),
        (lambda: WarmUp(0), "WarmUp: steps is 0"),
        (lambda: WarmUp(5, start=1.5), "start is 1.5"),
        (lambda: Cosine(2.5), "steps is 2.5"),  # type: ignore[arg-type]
        (lambda: Cosine(10, end=-0.1), "end is -0.1"),
        (lambda: Step(every=10, times=0.0), "times is 0.0"),
        (lambda: Step(every=10, times=2.0), "times is 2.0"),
        (lambda: InverseSqrt(after=True), "after is True"),
        (lambda: stages_from(""), "unknown stage ''"),
        (lambda: stages_from("linear:5"), "known are constant, warmup, cosine, step, sqrt"),
        (lambda: stages_from("warmup"), "'warmup' needs more numbers: warmup:steps:start"),
        (lambda: stages_from("sqrt:1:2"), "too many numbers: sqrt:after"),
        (lambda: stages_from("cosine:many"), "cosine steps is 'many'"),
        (lambda: stages_from("cosine:1e3"), "steps is 1000.0"),
        (lambda: stages_from("cosine:nan"), "cosine steps is 'nan'"),
        (lambda: Schedule.parse("0.1 cosine:5"), "which is no schedule"),
        (lambda: Schedule.parse("schedule fast cosine:5"), "lr is 'fast'"),
        (lambda: Schedule.parse("schedule 0.1"), "unknown stage ''"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert words in str(caught.value)


def test_stages_as_on_the_command_line() -> None:
    assert stages_from("warmup:10, cosine:90:0.1") == (WarmUp(10), Cosine(90, end=0.1))
    assert stages_from("constant") == (Constant(),)
    assert stages_from("constant:5,step:10:0.5") == (Constant(5), Step(10, times=0.5))
    assert stages_from("sqrt:100") == (InverseSqrt(100),)


@register
@dataclass(frozen=True, slots=True)
class Twofold(Optimizer):
    """One's own optimizer with two settings that may change, and checks of neither."""

    name: ClassVar[str] = "test-twofold"

    lr: Any = 0.1
    noise: Any = 0.0
    label: str = "scheduled"

    def update(self, values: Any, gradient: Any, state: Any, step: Any, scratch: Any) -> None:
        values -= self.lr * gradient + self.noise


def test_any_setting_of_ones_own_optimizer_may_be_a_schedule() -> None:
    optimizer = Twofold(noise=Schedule(2.0, Step(every=5, times=0.5)))
    again = optimizer_from("test-twofold", optimizer.settings())
    assert again == optimizer
    assert again.at(7) == Twofold(noise=1.0)
    assert optimizer.noise(0) == 2.0
