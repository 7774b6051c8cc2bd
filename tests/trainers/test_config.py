"""Settings of a training run: defaults for each model, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aiops.errors import ConfigError
from aiops.optim import FTRL, SGD, Adam, AdamW, Cosine, Momentum, Schedule, WarmUp
from aiops.trainers import Linear, Mlp, Softmax, TrainConfig, from_arrays
from aiops.trainers.config import HIDDEN_MAX, LAYERS_MAX, MODELS, OPTIMIZERS
from aiops.trainers.local_steps import LocalSteps


@pytest.mark.parametrize("model", MODELS)
def test_each_model_has_defaults_and_none_is_left_open(model: str) -> None:
    config = TrainConfig(model=model)
    assert config.epochs == MODELS[model].epochs
    assert config.steps is None
    assert config.make_optimizer() == Momentum(lr=MODELS[model].lr, momentum=0.9)
    assert config.task == MODELS[model].task


def test_what_is_given_wins() -> None:
    config = TrainConfig(model="mlp", steps=7, optimizer="sgd", lr=1)
    assert (config.steps, config.epochs) == (7, None)
    assert config.make_optimizer() == SGD(lr=1.0)
    assert TrainConfig(optimizer="adam").make_optimizer() == Adam(lr=0.003)
    assert TrainConfig(momentum=0.5).make_optimizer() == Momentum(lr=0.05, momentum=0.5)
    assert TrainConfig(optimizer="adamw", weight_decay=0).make_optimizer() == AdamW(
        0.003, weight_decay=0.0
    )
    assert TrainConfig(optimizer="ftrl", l1=2, l2=1).make_optimizer() == FTRL(l1=2.0, l2=1.0)
    assert TrainConfig(
        optimizer="sgd", lr_schedule="warmup:2,cosine:9:0.5"
    ).make_optimizer() == SGD(Schedule(0.1, WarmUp(2), Cosine(9, end=0.5)))
    assert config.planned_steps(per_epoch=11) == 7
    assert TrainConfig(epochs=3).planned_steps(per_epoch=11) == 33


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "cnn"}, "model is 'cnn'; it must be one of linear, softmax, mlp"),
        ({"model": None}, "model is None"),
        ({"steps": 3, "epochs": 2}, "give one"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"epochs": -1}, "epochs is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 2**21}, "at most 1048576"),
        ({"optimizer": "add"}, "one of sgd, momentum, adam, adamw"),
        ({"optimizer": "lamb"}, "one of sgd, momentum, adam, adamw"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"lr": "fast"}, "lr is 'fast'"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"seed": -1}, "seed is -1"),
        ({"consistency": "ssp"}, "bsp, asp, ssp:N such as ssp:3, or quorum:N"),
        ({"consistency": "bsp:3"}, "bsp, asp, ssp:N such as ssp:3, or quorum:N"),
        ({"consistency": "ssp:-1"}, "bsp, asp, ssp:N such as ssp:3, or quorum:N"),
        ({"hidden": (0,)}, "hidden is 0"),
        ({"hidden": (HIDDEN_MAX + 1,)}, f"at most {HIDDEN_MAX}"),
        ({"hidden": (1,) * (LAYERS_MAX + 1)}, f"at most {LAYERS_MAX}"),
        ({"hidden": 256}, "hidden is 256"),
        ({"hidden": "256"}, "hidden is '256'"),
        ({"target_loss": 0.0}, "target_loss is 0.0"),
        ({"target_loss": float("nan")}, "target_loss is nan"),
        ({"patience": 0}, "patience is 0"),
        ({"check_every": 0}, "check_every is 0"),
        ({"max_seconds": -5}, "max_seconds is -5"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"lr_schedule": "linear:5"}, "unknown stage 'linear'"),
        ({"lr_schedule": "cosine"}, "needs more numbers: cosine:steps:end"),
        ({"optimizer": "ftrl", "lr_schedule": "cosine:9"}, "pass a number"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"weight_decay": 0.1, "optimizer": "ftrl"}, "ftrl has no weight_decay; its l2"),
        ({"l1": 1.0}, "l1 is for ftrl and proximal-sgd, not for momentum"),
        ({"l2": -1.0, "optimizer": "proximal-sgd"}, "l2 is -1.0"),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**settings)
    assert words in str(caught.value)


def test_settings_travel_as_json() -> None:
    config = TrainConfig(
        model="mlp",
        epochs=3,
        hidden=(8, 4),
        target_loss=0.5,
        seed=np.int64(3),  # type: ignore[arg-type]
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="unknown settings layers"):
        TrainConfig.from_dict({"layers": 3})


def test_a_model_is_made_in_the_size_of_the_data() -> None:
    x = np.random.default_rng(0).standard_normal((20, 3))
    classes = from_arrays(x, np.arange(20) % 4)
    numbers = from_arrays(x, x[:, 0] * 7.0, task="regression")
    assert isinstance(TrainConfig(model="softmax").make_model(classes), Softmax)
    network = TrainConfig(model="mlp", hidden=(5,)).make_model(classes)
    assert isinstance(network, Mlp)
    assert network.widths == (3, 5, 4)
    line = TrainConfig(model="linear").make_model(numbers)
    assert isinstance(line, Linear)
    assert line.target_scale == numbers.target_scale
    with pytest.raises(ConfigError, match="load it with task='regression'"):
        TrainConfig(model="linear").make_model(classes)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_can_be_asked_for_by_name(name: str) -> None:
    assert TrainConfig(optimizer=name).make_optimizer().name == name


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"compression": "zip"}, "train: compression 'zip': no codec"),
        ({"pull_compression": "qsgd"}, "train: pull_compression cannot be qsgd"),
        ({"pull_compression": "int8", "sync": "ring"}, "in a ring nothing is pulled"),
        ({"compression": "auto", "sync": "ring"}, "name a codec"),
    ],
)
def test_compression_is_checked_before_anything_starts(settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        TrainConfig(**settings)


def test_compression_travels_with_the_settings() -> None:
    config = TrainConfig(compression="top-k:0.01", pull_compression="one-bit")
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert TrainConfig(compression="auto").compression == "auto"
    assert TrainConfig(compression="int8", local=LocalSteps(every=5)).local is not None
