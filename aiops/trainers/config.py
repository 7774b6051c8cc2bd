"""How to train: the settings of one training run, checked, with defaults that suit each model.

What lives here: `TrainConfig` and the choice of a model for a data set. What does not: the
cluster (how many servers and workers), the data, and the loop that follows these settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aiops.checks import is_one_of
from aiops.compression import codec_from
from aiops.compression.pulls import pull_codec
from aiops.compression.spelling import AUTO
from aiops.consistency import Quorum, consistency_from
from aiops.errors import ConfigError
from aiops.optim import Optimizer, Schedule, optimizer_from
from aiops.optim.schedules import stages_from
from aiops.optim.settings import number, whole
from aiops.trainers.data import Dataset, Task
from aiops.trainers.local_steps import LocalSteps
from aiops.trainers.models import Linear, Mlp, Model, Softmax
from aiops.wording import listed, shown

STEPS_MAX: Final = 2**31 - 1  # a year of steps at 70 a second
BATCH_MAX: Final = 2**20
HIDDEN_MAX: Final = 16_384  # units of a layer: two such layers are already 1 GiB of weights
LAYERS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a model trains well with when nothing else is asked for."""

    task: Task
    epochs: int
    optimizer: str
    lr: float


# Each reaches its end on the digits and is stable on standardised data. 40 epochs of mlp with
# four workers of batch 32 give 97.7 % on the digits test.
MODELS: Final[Mapping[str, Defaults]] = {
    "linear": Defaults("regression", epochs=40, optimizer="momentum", lr=0.01),
    "softmax": Defaults("classification", epochs=40, optimizer="momentum", lr=0.05),
    "mlp": Defaults("classification", epochs=40, optimizer="momentum", lr=0.05),
}
# The learning rate that goes with an optimizer other than the model's own.
OPTIMIZERS: Final[Mapping[str, float]] = {
    "sgd": 0.1,
    "momentum": 0.05,
    "adam": 0.003,
    "adamw": 0.003,
    "adagrad": 0.05,
    "rmsprop": 0.001,
    "ftrl": 0.1,
    "proximal-sgd": 0.1,
}
PROXIMAL: Final = ("ftrl", "proximal-sgd")
# With local steps each worker has an optimizer of its own; these are DiLoCo's.
LOCAL_OPTIMIZER: Final = "adamw"
LOCAL_LR: Final = 0.001
SYNCS: Final = ("servers", "ring")
RING_ORDERS: Final = ("any", "rank")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of a training run. What is `None` at first is replaced by the model's default.

    Parameters
    ----------
    model
        `linear`, `softmax` or `mlp`.
    steps, epochs
        How long to train: give one of them, or neither for the model's default. Steps are those
        of each worker; an epoch is one pass over the rows of a worker.
    batch_size
        Rows per worker and step.
    optimizer
        `sgd`, `momentum`, `adam`, `adamw`, `adagrad`, `rmsprop`, `ftrl` or `proximal-sgd`.
    lr
        Learning rate.
    lr_schedule
        How it changes with the steps, as in `warmup:100,cosine:900:0.1`: stages one after the
        other, which are `constant:steps`, `warmup:steps:start`, `cosine:steps:end`,
        `step:every:times` and `sqrt:after`.
    momentum
        Share of the velocity that is kept; only for the optimizer `momentum`.
    weight_decay
        Only for optimizers that have it.
    l1, l2
        Penalties; only for `ftrl` and `proximal-sgd`.
    clip_norm
        The gradient of each worker is scaled down to this norm.
    seed
        Decides the start and the order of the rows.
    consistency
        `bsp`: all workers step together. `asp`: nobody waits. `ssp:3`: nobody is more than three
        steps ahead of the slowest.
    sync
        `servers`: they have the parameters. `ring`: every worker has them, and gradients are
        averaged among the workers; all step together.
    ring_order
        With `ring`, in which order gradients are added: `any`, or `rank`, which gives the bits of
        `servers` with `bsp`.
    compression, pull_compression
        How gradients go and values come back, such as `top-k:0.01`; see `aiops.compression`.
    hidden
        Units in each hidden layer; only for the model `mlp`.
    target_loss
        Stop as soon as the loss on the train rows is at most this.
    patience
        Stop when this many checks in a row have not found a lower loss.
    check_every
        Steps between two checks of the loss.
    max_seconds
        Stop at the first step boundary after this much time.
    local
        Steps that each worker takes alone between two exchanges, by `optimizer`; `None`: every
        step is exchanged, and the servers have the optimizer.
    """

    model: str = "softmax"
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 32
    optimizer: str | None = None
    lr: float | None = None
    lr_schedule: str | None = None
    momentum: float = 0.9
    weight_decay: float | None = None
    l1: float | None = None
    l2: float | None = None
    clip_norm: float | None = None
    seed: int = 0
    consistency: str = "bsp"
    sync: str = "servers"
    ring_order: str = "any"
    compression: str | None = None
    pull_compression: str | None = None
    hidden: tuple[int, ...] = (256, 128)
    target_loss: float | None = None
    patience: int | None = None
    check_every: int = 20
    max_seconds: float | None = None
    local: LocalSteps | None = None

    def __post_init__(self) -> None:
        """Fill in the defaults of the model and check everything."""
        if not is_one_of(self.model, MODELS):
            raise _refused("model", self.model, f"one of {', '.join(MODELS)}")
        try:
            consistency_from(self.consistency)
        except ConfigError as error:
            raise ConfigError(f"train: {error}") from None
        local: object = self.local
        if not isinstance(local, LocalSteps | None):
            raise _refused("local", local, "LocalSteps(...)")
        self._check_sync()
        self._check_compression()
        defaults = MODELS[self.model]
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"train: steps ({self.steps}) and epochs ({self.epochs}) are both given; give one"
            )
        if self.steps is None and self.epochs is None:
            self._set("epochs", defaults.epochs)
        self._choose_optimizer(defaults)
        for name, most in (("steps", STEPS_MAX), ("epochs", STEPS_MAX), ("patience", STEPS_MAX)):
            if getattr(self, name) is not None:
                self._set(name, whole("train", name, getattr(self, name), at_least=1, at_most=most))
        for name, most in (("batch_size", BATCH_MAX), ("check_every", STEPS_MAX)):
            self._set(name, whole("train", name, getattr(self, name), at_least=1, at_most=most))
        self._set("seed", whole("train", "seed", self.seed))
        for name in ("target_loss", "max_seconds", "clip_norm"):
            if getattr(self, name) is not None:
                self._set(name, number("train", name, getattr(self, name), above=0.0))
        self._set("hidden", _checked_hidden(self.hidden))
        self.make_optimizer()  # checks lr and what goes with it, and names them

    def _choose_optimizer(self, defaults: Defaults) -> None:
        own, lr = defaults.optimizer, defaults.lr
        if self.local is not None:
            own, lr = LOCAL_OPTIMIZER, LOCAL_LR
        if self.optimizer is None:
            self._set("optimizer", own)
        elif not is_one_of(self.optimizer, OPTIMIZERS):
            raise _refused("optimizer", self.optimizer, f"one of {', '.join(OPTIMIZERS)}")
        if self.lr is None:
            self._set("lr", lr if self.optimizer == own else OPTIMIZERS[str(self.optimizer)])
        if self.weight_decay is not None and self.optimizer in PROXIMAL:
            raise ConfigError(f"train: {self.optimizer} has no weight_decay; its l2 does that")
        for name in ("l1", "l2"):
            if getattr(self, name) is not None and self.optimizer not in PROXIMAL:
                raise ConfigError(
                    f"train: {name} is for {' and '.join(PROXIMAL)}, not for {self.optimizer}"
                )

    def _check_sync(self) -> None:
        if not is_one_of(self.sync, SYNCS):
            raise _refused("sync", self.sync, f"one of {', '.join(SYNCS)}")
        if not is_one_of(self.ring_order, RING_ORDERS):
            raise _refused("ring_order", self.ring_order, f"one of {', '.join(RING_ORDERS)}")
        if self.sync == "ring" and self.consistency != "bsp":
            raise ConfigError(
                f"train: in a ring all workers step together, so consistency is bsp and not "
                f"{self.consistency}; leave it out, or train with sync=servers"
            )
        if self.local is not None and self.local.fragments > 1:
            self._check_fragments()
        if self.sync == "ring" and self.local is not None:
            raise ConfigError("train: local steps go with sync=servers; leave one of them out")
        if self.sync == "servers" and self.ring_order != "any":
            raise ConfigError("train: ring_order is for sync=ring; give both, or neither")

    def _check_fragments(self) -> None:
        if isinstance(consistency_from(self.consistency), Quorum):
            raise ConfigError(
                f"train: {self.consistency} counts contributions, and a fragment that is not due "
                "gets none; use one fragment"
            )

    def _check_compression(self) -> None:
        if self.sync == "ring" and self.pull_compression:
            raise ConfigError(
                "train: in a ring nothing is pulled, so pull_compression has nothing to do; leave "
                "it out: compression is for both ways there"
            )
        if self.sync == "ring" and self.compression == AUTO:
            raise ConfigError(
                "train: compression auto is for what goes to servers; in a ring all members must "
                "send the same form, so name a codec, such as int8 or one-bit"
            )
        try:
            if self.compression is not None and not is_one_of(self.compression, (AUTO,)):
                codec_from(self.compression)
            if self.pull_compression is not None and not is_one_of(self.pull_compression, (AUTO,)):
                pull_codec(codec_from(self.pull_compression))
        except ConfigError as error:
            raise ConfigError(f"train: {error}") from None

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def task(self) -> Task:
        """What the model predicts: a class or a number. `load` wants to know."""
        return MODELS[self.model].task

    def make_optimizer(self) -> Optimizer:
        """Return the optimizer: of the servers, or of each worker if it takes local steps."""
        settings: dict[str, object] = {"lr": self.lr}
        if self.lr_schedule is not None:
            assert self.lr is not None
            settings["lr"] = Schedule(self.lr, *stages_from(self.lr_schedule))
        if self.optimizer == "momentum":
            settings["momentum"] = self.momentum
        for name in ("weight_decay", "l1", "l2"):
            if getattr(self, name) is not None:
                settings[name] = getattr(self, name)
        return optimizer_from(str(self.optimizer), settings)

    def make_model(self, dataset: Dataset) -> Model:
        """Return the model in the size that fits a data set.

        Raises
        ------
        ConfigError
            The data set was loaded for another task.
        """
        if dataset.task != self.task:
            raise ConfigError(
                f"the model {shown(self.model)} is for {self.task} but {dataset.name} was loaded "
                f"for {dataset.task}; load it with task={shown(self.task)}"
            )
        match self.model:
            case "linear":
                return Linear(dataset.features, dataset.target_scale)
            case "softmax":
                return Softmax(dataset.features, dataset.classes)
            case _:
                return Mlp(dataset.features, dataset.classes, self.hidden)

    def planned_steps(self, per_epoch: int) -> int:
        """Return how many steps each worker shall take.

        Parameters
        ----------
        per_epoch
            Steps in an epoch.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * per_epoch

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as plain values, for JSON."""
        return {**dataclasses.asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> TrainConfig:
        """Rebuild settings from `to_dict`.

        Raises
        ------
        ConfigError
            An unknown or bad setting.
        """
        unknown = settings.keys() - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ConfigError(f"train: unknown settings {listed(sorted(unknown))}")
        local = settings.get("local")
        return cls(**{**settings, "local": LocalSteps(**local) if local else None})


def _refused(name: str, value: object, rule: str) -> ConfigError:
    return ConfigError(f"train: {name} is {shown(value)}; it must be {rule}")


def _checked_hidden(hidden: object) -> tuple[int, ...]:
    layers = hidden if isinstance(hidden, list | tuple) else None
    if layers is None or len(layers) > LAYERS_MAX:
        raise _refused("hidden", hidden, f"at most {LAYERS_MAX} sizes of layers, as (256, 128)")
    return tuple(
        whole("train", "hidden", units, at_least=1, at_most=HIDDEN_MAX) for units in layers
    )
