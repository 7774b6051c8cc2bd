"""When to end a training run before its last step. Pure: losses in, a reason or nothing out."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class StopRules:
    """Watch the loss from check to check.

    Parameters
    ----------
    target_loss
        A loss that is low enough, or `None`.
    patience
        How many checks in a row may bring no lower loss, or `None`.
    """

    target_loss: float | None = None
    patience: int | None = None
    best: float = inf
    fruitless: int = 0

    @property
    def watching(self) -> bool:
        """Whether there is any rule, so that a loss has to be computed."""
        return self.target_loss is not None or self.patience is not None

    def verdict(self, loss: float) -> str | None:
        """Return why to stop after a check that found this loss, or `None` to go on."""
        if loss < self.best:
            self.best, self.fruitless = loss, 0
        else:
            self.fruitless += 1
        if self.target_loss is not None and loss <= self.target_loss:
            return f"the train loss {loss:.4g} reached the target {self.target_loss:g}"
        if self.patience is not None and self.fruitless >= self.patience:
            return f"no train loss below {self.best:.4g} in {self.fruitless} checks"
        return None
