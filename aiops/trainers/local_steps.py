"""Settings of a training with local steps: how often, and what the servers do with the changes."""

from __future__ import annotations

from dataclasses import dataclass

from aiops.errors import ConfigError
from aiops.local_sgd import DILOCO, EVERY_MAX, FRAGMENTS_MAX
from aiops.optim import SGD, Momentum, Optimizer
from aiops.optim.settings import number, whole


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """How a training with local steps exchanges; see `aiops.LocalSGD`.

    Parameters
    ----------
    every
        Steps of each worker between two exchanges.
    outer_lr, outer_momentum
        Of the Nesterov momentum with which the servers apply the mean change. A momentum of 0 and
        a rate of 1 give the plain mean (FedAvg).
    fragments
        Parts that are exchanged in turn; must divide `every`.
    delay
        Steps until what the servers made of a part is taken in.
    """

    every: int
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    fragments: int = 1
    delay: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        for name, least, most in (
            ("every", 1, EVERY_MAX),
            ("fragments", 1, FRAGMENTS_MAX),
            ("delay", 0, EVERY_MAX),
        ):
            value = whole("local steps", name, getattr(self, name), at_least=least, at_most=most)
            object.__setattr__(self, name, value)
        lr = number("local steps", "outer_lr", self.outer_lr, above=0.0)
        momentum = number(
            "local steps", "outer_momentum", self.outer_momentum, at_least=0.0, below=1.0
        )
        object.__setattr__(self, "outer_lr", lr)
        object.__setattr__(self, "outer_momentum", momentum)
        if self.every % self.fragments:
            raise ConfigError(
                f"local steps: fragments is {self.fragments}, which does not divide the "
                f"{self.every} steps between two exchanges"
            )
        if self.delay >= self.period:
            raise ConfigError(
                f"local steps: delay is {self.delay}; it must be below the {self.period} steps "
                "between two exchanges of any part"
            )

    @property
    def period(self) -> int:
        """Local steps in a clock of the worker."""
        return self.every // self.fragments

    def outer(self) -> Optimizer:
        """Return what the servers do with the mean change."""
        if not self.outer_momentum:
            return SGD(lr=self.outer_lr)
        if (self.outer_lr, self.outer_momentum) == (DILOCO.lr, DILOCO.momentum):
            return DILOCO
        return Momentum(lr=self.outer_lr, momentum=self.outer_momentum, nesterov=True)
