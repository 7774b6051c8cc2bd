"""Settings of optimizers: what is refused, what travels, how a class of one's own is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import pytest

from aiops.errors import AiopsError, ConfigError
from aiops.optim import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Add,
    Assign,
    Cosine,
    Momentum,
    Optimizer,
    ProximalSGD,
    RMSProp,
    Schedule,
    Steps,
    WarmUp,
    optimizer_from,
    optimizer_names,
    register,
)
from aiops_protocol.payload import Float32Array

BAD: list[tuple[Callable[[], Optimizer], str, str]] = [
    (lambda: SGD(lr=0.0), "lr", "above 0"),
    (lambda: SGD(lr=-0.1), "lr", "above 0"),
    (lambda: SGD(lr=float("nan")), "lr", "above 0"),
    (lambda: SGD(lr=float("inf")), "lr", "float32"),
    (lambda: SGD(lr=1e39), "lr", "float32"),
    (lambda: SGD(lr=1e-60), "lr", "in float32 it is 0"),
    (lambda: SGD(lr="0.1"), "lr", "number"),  # type: ignore[arg-type]  # what a script may pass
    (lambda: SGD(lr=True), "lr", "number"),
    (lambda: SGD(lr=0.1, weight_decay=-1.0), "weight_decay", "at least 0"),
    (lambda: SGD(lr=0.1, clip_value=0.0), "clip_value", "above 0"),
    (lambda: Momentum(lr=-1.0), "lr", "above 0"),
    (lambda: Momentum(lr=0.1, momentum=1.0), "momentum", "below 1"),
    (lambda: Momentum(lr=0.1, momentum=0.99999999), "momentum", "in float32 it is 1"),
    (lambda: Momentum(lr=0.1, momentum=-0.1), "momentum", "at least 0"),
    (lambda: Momentum(lr=0.1, nesterov=1), "nesterov", "True or False"),  # type: ignore[arg-type]
    (lambda: Momentum(lr=0.1, momentum=0.0, nesterov=True), "nesterov", "momentum above 0"),
    (lambda: Adam(lr=0.0), "lr", "above 0"),
    (lambda: Adam(beta1=1.0), "beta1", "below 1"),
    (lambda: Adam(beta2=1.5), "beta2", "below 1"),
    (lambda: Adam(eps=0.0), "eps", "above 0"),
    (lambda: Adam(eps=1e-60), "eps", "in float32 it is 0"),
    (lambda: Adam(clip_value=-2.0), "clip_value", "above 0"),
    (lambda: AdamW(beta1=-0.5), "beta1", "at least 0"),
    (lambda: AdamW(weight_decay=-1.0), "weight_decay", "at least 0"),
    (lambda: Adagrad(initial=-1.0), "initial", "at least 0"),
    (lambda: Adagrad(eps=0.0), "eps", "above 0"),
    (lambda: RMSProp(decay=1.0), "decay", "below 1"),
    (lambda: FTRL(lr=0.0), "lr", "above 0"),
    (lambda: FTRL(l1=-1.0), "l1", "at least 0"),
    (lambda: FTRL(beta=-1.0), "beta", "at least 0"),
    (
        lambda: FTRL(lr=Schedule(0.1, Cosine(9))),  # type: ignore[arg-type]  # the point
        "lr is a schedule",
        "pass a number",
    ),
    (lambda: ProximalSGD(lr=0.1, l2=-1.0), "l2", "at least 0"),
    (lambda: ProximalSGD(lr=-0.1), "lr", "above 0"),
]

GOOD = [
    SGD(lr=0.25),
    SGD(lr=1, weight_decay=0.5, clip_value=2),
    Momentum(lr=0.1, momentum=0.5, nesterov=True),
    Adam(beta1=0.5, eps=1e-3),
    AdamW(lr=0.1, weight_decay=0.0),
    Adagrad(lr=1, initial=0.5),
    RMSProp(decay=0.5),
    FTRL(lr=0.5, beta=2, l1=1.5, l2=0.25, clip_value=1.0),
    ProximalSGD(lr=0.5, l1=1.0),
    SGD(lr=Schedule(0.3, WarmUp(10), Cosine(90, end=0.1))),
    Adam(lr=Schedule(1e-7, Cosine(3))),
    Add(),
    Assign(),
]


@pytest.mark.parametrize(("make", "setting", "fix"), BAD)
def test_a_bad_setting_is_named_together_with_the_fix(
    make: Callable[[], Optimizer], setting: str, fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert setting in str(caught.value)
    assert fix in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AiopsError)


@pytest.mark.parametrize("optimizer", GOOD, ids=repr)
def test_name_and_settings_are_enough_to_make_an_equal_one(optimizer: Optimizer) -> None:
    settings = optimizer.settings()
    assert all(type(value) in (int, float, bool, str, type(None)) for value in settings.values())
    assert optimizer_from(optimizer.name, settings) == optimizer


def test_numpy_scalars_become_plain_numbers() -> None:
    """Settings often come out of a numpy computation, and must still travel."""
    optimizer = SGD(lr=cast(float, np.float32(0.5)), weight_decay=np.float64(0.25))
    kinds = [type(value) for value in optimizer.settings().values()]
    assert kinds == [float, float, type(None), type(None)]
    assert optimizer == SGD(lr=0.5, weight_decay=0.25)


def test_settings_cannot_be_changed_after_the_check() -> None:
    with pytest.raises(AttributeError):
        SGD(lr=0.5).lr = -1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("sdg", {"lr": 0.1}, "unknown optimizer 'sdg'"),
        (7, {}, "unknown optimizer 7"),
        ("sgd", {}, "lr"),
        ("sgd", {"rate": 0.1, "lr": 0.1}, "rate"),
        ("sgd", {"lr": -1.0}, "above 0"),
        ("add", {"lr": 0.1}, "lr"),
    ],
)
def test_what_arrives_over_the_wire_is_checked(
    name: str, settings: Mapping[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=r"sgd|optimizer|SGD") as caught:
        optimizer_from(name, settings)
    assert words in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        optimizer_from("rprop", {})
    for name in ("adam", "add", "assign", "momentum", "sgd"):
        assert name in str(caught.value)
        assert name in optimizer_names()


@register
@dataclass(frozen=True, slots=True)
class SignStep(Optimizer):
    """An optimizer as a user would write it."""

    name: ClassVar[str] = "test-sign-step"
    slots: ClassVar[tuple[str, ...]] = ("steps",)

    lr: float = 0.5

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        np.sign(gradient, out=gradient)
        values -= np.float32(self.lr) * gradient
        state["steps"] += 1


def test_a_class_of_ones_own_is_found_by_name() -> None:
    optimizer = optimizer_from("test-sign-step", {"lr": 2.0})
    values = np.zeros(2, np.float32)
    state = {"steps": np.zeros(2, np.float32)}
    optimizer.update(values, np.array([-3.0, 9.0], np.float32), state, 1, np.empty(2, np.float32))
    assert values.tolist() == [2.0, -2.0]
    assert state["steps"].tolist() == [1.0, 1.0]
    assert SignStep.__name__ == "SignStep"
    assert register(SignStep) is SignStep


def test_a_plain_class_without_settings_will_do() -> None:
    class Nothing(Optimizer):
        name = "test-nothing"

        def update(
            self,
            values: Float32Array,
            gradient: Float32Array,
            state: Mapping[str, Float32Array],
            step: Steps,
            scratch: Float32Array,
        ) -> None:
            return

    register(Nothing)
    assert optimizer_from("test-nothing", {}).settings() == {}


def test_a_name_belongs_to_one_class() -> None:
    class Impostor(SignStep):
        name = "sgd"

    with pytest.raises(ConfigError, match=r"'sgd' already belongs to aiops\.optim\.sgd\.SGD"):
        register(Impostor)
    assert type(optimizer_from("sgd", {"lr": 0.1})) is SGD


def test_what_cannot_be_an_optimizer_is_not_registered() -> None:
    class Abstract(Optimizer):
        name = "test-abstract"

    class Nameless(SignStep):
        name = ""

    class Doubled(SignStep):
        name = "test-doubled"
        slots = ("velocity", "velocity")

    for cls, words in (
        (Abstract, "update"),
        (Nameless, "name"),
        (Doubled, "slots"),
        (int, "subclass"),
    ):
        with pytest.raises(ConfigError, match=words):
            register(cls)  # type: ignore[type-var]  # `int` is the point
    assert "test-abstract" not in optimizer_names()
