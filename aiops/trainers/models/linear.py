"""Linear regression by least squares."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aiops.optim.settings import number, whole
from aiops.trainers.models.base import WIDTH_MAX, Model
from aiops_protocol.payload import Float32Array


class Linear(Model):
    """Predict a number as a weighted sum of the features and a bias.

    The loss is the mean squared error. On a standardised target it is the part of the variance
    that stays unexplained; `rmse` is its root in units of the source.

    Parameters
    ----------
    features
        How many inputs there are.
    target_scale
        One unit of the target that is trained on, in units of the source (`Dataset`).
    """

    name: ClassVar[str] = "linear"

    def __init__(self, features: int, target_scale: float = 1.0) -> None:
        self.features = whole(self.name, "features", features, at_least=1, at_most=WIDTH_MAX)
        self.target_scale = number(self.name, "target_scale", target_scale, above=0.0)

    @property
    def size(self) -> int:
        """One weight per feature, and the bias."""
        return self.features + 1

    def initial(self, seed: int) -> Float32Array:
        """Return zeros: the loss has one minimum, so that the start does not matter."""
        return np.zeros(self.size, np.float32)

    def loss_and_gradient(
        self, w: Float32Array, x: Float32Array, y: NDArray[Any], out: Float32Array | None = None
    ) -> tuple[float, Float32Array]:
        """Return the mean squared error over a batch and its gradient."""
        gradient = np.empty_like(w) if out is None else out
        weights, bias = self._parts(gradient)
        error = self._errors(w, x, y)
        loss = float(error @ error) / len(error)
        error *= 2.0 / len(error)
        np.matmul(error, x, out=weights)
        bias[0] = error.sum()
        return loss, gradient

    def _errors(self, w: Float32Array, x: Float32Array, y: NDArray[Any]) -> Float32Array:
        weights, bias = self._parts(w)
        errors: Float32Array = x @ weights
        errors += bias
        errors -= y
        return errors

    def _parts(self, vector: Float32Array) -> list[Float32Array]:
        return self._views(vector, [(self.features,), (1,)])

    def _totals(self, w: Float32Array, x: Float32Array, y: NDArray[Any]) -> tuple[float, float]:
        errors = self._errors(w, x, y)
        return float(errors @ errors), 0.0

    def _named(self, loss: float, other: float) -> dict[str, float]:
        return {"loss": loss, "rmse": loss**0.5 * self.target_scale}
