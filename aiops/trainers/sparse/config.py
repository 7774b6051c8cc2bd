"""How to train a sparse model: settings, checked, with defaults that suit each model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiops.checks import is_one_of
from aiops.consistency import consistency_from
from aiops.errors import ConfigError
from aiops.optim import FTRL, Adagrad, Optimizer
from aiops.trainers.sparse.models import FACTORS_MAX, FactorizationMachine, Logistic, SparseModel
from aiops.wording import shown

__all__ = ["SPARSE_MODELS", "SparseConfig"]

SPARSE_MODELS: Final = {"logistic": "ftrl", "fm": "adagrad"}
"""Each with the optimizer that it takes by default."""


@dataclass(frozen=True, slots=True)
class SparseConfig:
    """Settings of one training run.

    Parameters
    ----------
    model
        `logistic` or `fm`.
    epochs
        Passes over the data.
    batch_size
        Rows of each worker and step.
    optimizer
        `ftrl` or `adagrad`; `fm` takes only `adagrad`, because FTRL forgets where vectors begin.
    lr
        Learning rate; 0.1 for `ftrl`, 0.05 for `adagrad`, if not given.
    l1, l2
        Penalties, only for `ftrl`.
    factors
        Length of the vectors, only for `fm`.
    hash_names
        Features are names and not numbers.
    seed
        Of the vectors' beginnings.
    consistency
        As in `aiops train`: `bsp`, `asp`, `ssp:3`, `quorum:3`.

    Raises
    ------
    ConfigError
        A setting is unknown or out of bounds.
    """

    model: str
    epochs: int = 1
    batch_size: int = 256
    optimizer: str | None = None
    lr: float | None = None
    l1: float | None = None
    l2: float | None = None
    factors: int = 8
    hash_names: bool = False
    seed: int = 0
    consistency: str = "bsp"

    def __post_init__(self) -> None:
        """Check the settings."""
        if not is_one_of(self.model, SPARSE_MODELS):
            raise ConfigError(f"model is {shown(self.model)}; there is {', '.join(SPARSE_MODELS)}")
        if self.epochs < 1 or self.batch_size < 1 or not 1 <= self.factors <= FACTORS_MAX:
            raise ConfigError("epochs and batch_size are 1 or more, factors 1 to 1024")
        optimizer = self.optimizer or SPARSE_MODELS[self.model]
        object.__setattr__(self, "optimizer", optimizer)
        if optimizer not in ("ftrl", "adagrad") or (self.model, optimizer) == ("fm", "ftrl"):
            raise ConfigError(
                f"optimizer {shown(optimizer)} for {self.model}; logistic takes ftrl or adagrad, "
                "fm adagrad"
            )
        if optimizer != "ftrl" and (self.l1 is not None or self.l2 is not None):
            raise ConfigError("l1 and l2 are only for ftrl")
        self.make_optimizer()
        consistency_from(self.consistency)

    def make_model(self) -> SparseModel:
        """Return the model."""
        if self.model == "logistic":
            return Logistic()
        return FactorizationMachine(self.factors, self.seed)

    def make_optimizer(self) -> Optimizer:
        """Return the optimizer of the servers."""
        if self.optimizer == "ftrl":
            return FTRL(lr=self.lr or 0.1, l1=self.l1 or 0.0, l2=self.l2 or 0.0)
        return Adagrad(lr=self.lr or 0.05)
