"""Learning rates that change with the clock: `SGD(lr=Schedule(0.1, WarmUp(100), Cosine(900)))`.

What lives here: `Schedule`, its stages, and the line of text in which one travels. What does not:
which clock a step has. In a table with rounds that is the number of the round, otherwise the
furthest clock of any worker whose push has come to the shard (`aiops.shards.shard`).

A stage gives a factor of the learning rate for each of its steps. Stages follow one another; each
counts its steps from 0, and after the last stage its last factor stays. Only settings travel, and
every server computes the rate by itself, in double precision.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final

from aiops.errors import ConfigError
from aiops.optim.settings import number, whole
from aiops.wording import shown

__all__ = [
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Schedule",
    "Stage",
    "Step",
    "WarmUp",
    "check_rate",
    "rate_now",
    "stages_from",
]

STAGES_MAX: Final = 16
STEPS_MAX: Final = 2**53  # up to here a double counts exactly
_MARK: Final = "schedule "


class Stage(ABC):
    """A part of a schedule: a factor for each of its steps."""

    __slots__ = ()

    word: ClassVar[str]
    """What stands for this stage in a text."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Steps after which the next stage begins; `None`: it never ends."""

    @abstractmethod
    def factor(self, step: int) -> float:
        """Return the factor at a step, counted from 0 at the start of the stage."""


@dataclass(frozen=True, slots=True)
class Constant(Stage):
    """The learning rate as it is.

    Parameters
    ----------
    steps
        Until the next stage begins; not given: for ever.
    """

    word: ClassVar[str] = "constant"

    steps: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.steps is not None:
            _keep_steps(self, "steps")

    @property
    def length(self) -> int | None:
        """As given."""
        return self.steps

    def factor(self, step: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True, slots=True)
class WarmUp(Stage):
    """A straight line up to the learning rate, which the last step of the stage has.

    With `start=0` the first of n steps has one n-th of it, so that no step is lost.

    Parameters
    ----------
    steps
        Steps of the stage.
    start
        Share of the learning rate from which the line starts, in [0, 1].
    """

    word: ClassVar[str] = "warmup"

    steps: int
    start: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        _keep_steps(self, "steps")
        _keep_share(self, "start")

    @property
    def length(self) -> int:
        """As given."""
        return self.steps

    def factor(self, step: int) -> float:
        """Return the share at this point of the line."""
        return self.start + (1.0 - self.start) * min(1.0, (step + 1) / self.steps)


@dataclass(frozen=True, slots=True)
class Cosine(Stage):
    """Half a cosine from the learning rate down to a share of it.

    Several one after the other restart it.

    Parameters
    ----------
    steps
        Steps of the stage.
    end
        Share of the learning rate that is left after it, in [0, 1].

    References
    ----------
    .. [1] I. Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts",
       ICLR 2017.
    """

    word: ClassVar[str] = "cosine"

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        _keep_steps(self, "steps")
        _keep_share(self, "end")

    @property
    def length(self) -> int:
        """As given."""
        return self.steps

    def factor(self, step: int) -> float:
        """Return the share at this point of the curve."""
        turn = math.cos(math.pi * min(1.0, step / self.steps))
        return self.end + (1.0 - self.end) * (1.0 + turn) / 2.0


@dataclass(frozen=True, slots=True)
class Step(Stage):
    """The learning rate times a factor, once more after every so many steps. It never ends.

    Parameters
    ----------
    every
        Steps between two drops.
    times
        The factor, above 0 and at most 1.
    """

    word: ClassVar[str] = "step"

    every: int
    times: float = 0.1

    def __post_init__(self) -> None:
        """Check the settings."""
        _keep_steps(self, "every")
        times = number("Step", "times", self.times, above=0.0, at_most=1.0)
        object.__setattr__(self, "times", times)

    @property
    def length(self) -> None:
        """It never ends."""

    def factor(self, step: int) -> float:
        """Return the factor to the power of the drops so far."""
        return float(self.times ** (step // self.every))


@dataclass(frozen=True, slots=True)
class InverseSqrt(Stage):
    """Fall with the root of the steps: `sqrt(after / (after + step))`. It never ends.

    After a warm-up of `after` steps this is the schedule of [1]_ with the learning rate as its
    peak.

    Parameters
    ----------
    after
        Steps after which the rate has fallen to 0.71 of it.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 5.3.
    """

    word: ClassVar[str] = "sqrt"

    after: int

    def __post_init__(self) -> None:
        """Check the settings."""
        _keep_steps(self, "after")

    @property
    def length(self) -> None:
        """It never ends."""

    def factor(self, step: int) -> float:
        """Return the share at this step."""
        return math.sqrt(self.after / (self.after + step))


_STAGES: Final[Mapping[str, type[Stage]]] = {
    stage.word: stage for stage in (Constant, WarmUp, Cosine, Step, InverseSqrt)
}


@dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """A learning rate that changes with the clock; pass it as `lr` of an optimizer.

    Parameters
    ----------
    lr
        The learning rate of which the stages give shares, above 0.
    *stages
        `Constant`, `WarmUp`, `Cosine`, `Step`, `InverseSqrt`: at least one, at most 16. All but
        the last one need an end.

    Raises
    ------
    ConfigError
        A bad setting, no stages or too many, or a stage after one that never ends.

    Notes
    -----
    Call it with a clock, counted from 0, to see the rate: `Schedule(0.1, WarmUp(4))(0)` is 0.025.
    """

    lr: float
    stages: tuple[Stage, ...]

    def __init__(self, lr: float, *stages: Stage) -> None:
        object.__setattr__(self, "lr", number("Schedule", "lr", lr, above=0.0))
        object.__setattr__(self, "stages", stages)
        if not 1 <= len(stages) <= STAGES_MAX:
            raise ConfigError(
                f"Schedule: {len(stages)} stages were given; give 1 to {STAGES_MAX}, such as "
                "WarmUp(100), Cosine(900)"
            )
        for stage in stages:
            if not isinstance(stage, Stage):
                raise ConfigError(
                    f"Schedule: {shown(stage)} is no stage; use one such as Cosine(1000)"
                )
        for stage, after in pairwise(stages):
            if stage.length is None:
                raise ConfigError(
                    f"Schedule: {shown(after)} never begins, because {shown(stage)} before it has "
                    "no end"
                )

    def __call__(self, clock: int) -> float:
        """Return the learning rate of a clock, the first of which is 0."""
        step = max(0, clock)
        for stage in self.stages[:-1]:
            assert stage.length is not None
            if step < stage.length:
                return self.lr * stage.factor(step)
            step -= stage.length
        return self.lr * self.stages[-1].factor(step)

    def __str__(self) -> str:
        """Return the text in which it travels: `schedule 0.1 warmup:100:0.0 cosine:900:0.0`."""
        return " ".join([f"{_MARK}{self.lr!r}", *map(_stage_text, self.stages)])

    @staticmethod
    def is_text(value: object) -> bool:
        """Whether a setting that has arrived is the text of a schedule."""
        return isinstance(value, str) and value.startswith(_MARK)

    @staticmethod
    def parse(text: str) -> Schedule:
        """Return the schedule that has this text.

        Raises
        ------
        ConfigError
            It is none; the message names the part that is wrong.
        """
        lr, *stages = text.removeprefix(_MARK).split(" ")
        if not Schedule.is_text(text):
            raise ConfigError(f"lr is {text[:100]!r}, which is no schedule")
        return Schedule(_plain_number(lr, "lr"), *stages_from(",".join(stages)))


def stages_from(text: str) -> tuple[Stage, ...]:
    """Return the stages that a text such as `warmup:100,cosine:900:0.1` names, in order.

    Raises
    ------
    ConfigError
        An unknown word, or numbers that the stage does not take.
    """
    given: object = text
    if not isinstance(given, str):
        raise ConfigError(f"schedule is {shown(given)}; pass a text such as warmup:100,cosine:900")
    return tuple(map(_stage_from, text.split(",")[: STAGES_MAX + 1]))


def _stage_text(stage: Stage) -> str:
    assert dataclasses.is_dataclass(stage)
    values = [getattr(stage, field.name) for field in dataclasses.fields(stage)]
    return ":".join([stage.word, *(repr(value) for value in values if value is not None)])


def _stage_from(text: str) -> Stage:
    word, *values = text.strip()[:200].split(":")
    stage = _STAGES.get(word)
    if stage is None:
        raise ConfigError(
            f"schedule: unknown stage {shown(word)}; known are {', '.join(_STAGES)}, as in "
            "warmup:100,cosine:900"
        )
    assert dataclasses.is_dataclass(stage)
    fields = dataclasses.fields(stage)
    if len(values) > len(fields):
        raise ConfigError(f"schedule: {text.strip()[:200]!r} has too many numbers: {_form(stage)}")
    settings = {
        field.name: _plain_number(value, f"{word} {field.name}")
        for field, value in zip(fields, values, strict=False)
    }
    try:
        made = stage(**settings)
    except TypeError:
        raise ConfigError(
            f"schedule: {text.strip()[:200]!r} needs more numbers: {_form(stage)}"
        ) from None
    assert isinstance(made, Stage)
    return made


def _form(stage: type[Stage]) -> str:
    assert dataclasses.is_dataclass(stage)
    return ":".join([stage.word, *(field.name for field in dataclasses.fields(stage))])


def _plain_number(text: str, what: str) -> float:
    try:
        value = float(text)
        return int(text) if value == int(value) and text.strip().isdecimal() else value
    except (ValueError, OverflowError):
        raise ConfigError(f"schedule: {what} is {shown(text)}; it must be a number") from None


def _keep_steps(stage: Stage, field: str) -> None:
    value = getattr(stage, field)
    checked = whole(type(stage).__name__, field, value, at_least=1, at_most=STEPS_MAX)
    object.__setattr__(stage, field, checked)


def _keep_share(stage: Stage, field: str) -> None:
    value = number(type(stage).__name__, field, getattr(stage, field), at_least=0.0, at_most=1.0)
    object.__setattr__(stage, field, value)


def check_rate(owner: str, lr: object) -> float | Schedule:
    """Return a learning rate as a plain float above 0, or the schedule that it is.

    Raises
    ------
    ConfigError
        Neither.
    """
    return lr if isinstance(lr, Schedule) else number(owner, "lr", lr, above=0.0)


def rate_now(lr: float | Schedule) -> float:
    """Return the learning rate of an optimizer that has been asked for a clock (`at`)."""
    assert not isinstance(lr, Schedule), "call Optimizer.at(clock) before a step"
    return lr
