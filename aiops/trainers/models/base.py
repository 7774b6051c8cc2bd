"""What a built-in model is: parameters in one flat float32 vector, a loss and its gradient.

What lives here: the abstract `Model` and evaluation in slices. What does not: models (one file
each), and anything about workers, tables or steps: a model is plain numpy and works alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from aiops.errors import UsageError
from aiops_protocol.payload import Float32Array

# Rows looked at together in an evaluation: bounds the memory for activations (4 MiB for 256
# hidden units) whatever the size of the data.
EVALUATION_ROWS: Final = 4096

WIDTH_MAX: Final = 2**31
"""Units of a layer; two such layers have more weights than any memory holds."""


class Model(ABC):
    """A model to train.

    The parameters `w` are always one vector of shape (size,); how it is cut into weights and
    biases is the model's own business. Everything works in the precision of `w` and `x`.
    """

    name: ClassVar[str]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} size={self.size}>"

    @property
    @abstractmethod
    def size(self) -> int:
        """How many parameters there are."""

    @abstractmethod
    def initial(self, seed: int) -> Float32Array:
        """Return parameters to start from, the same for the same seed."""

    @abstractmethod
    def loss_and_gradient(
        self, w: Float32Array, x: Float32Array, y: NDArray[Any], out: Float32Array | None = None
    ) -> tuple[float, Float32Array]:
        """Return the mean loss over a batch and its gradient.

        Parameters
        ----------
        w : ndarray, shape (size,)
            Parameters.
        x : ndarray, shape (rows, features)
            Inputs.
        y : ndarray, shape (rows,)
            Classes or numbers to predict.
        out : ndarray, shape (size,), optional
            Where to put the gradient.

        Returns
        -------
        loss, gradient
            `gradient` is `out` if that was given.

        Raises
        ------
        UsageError
            `w` or `out` does not have shape (size,).
        """

    def loss(self, w: Float32Array, x: Float32Array, y: NDArray[Any]) -> float:
        """Return the mean loss over all rows, computed in slices."""
        return self.metrics(w, x, y)["loss"]

    def metrics(self, w: Float32Array, x: Float32Array, y: NDArray[Any]) -> dict[str, float]:
        """Return `loss` and what else this model reports, over all rows, computed in slices."""
        if not len(x):
            raise UsageError(f"{self.name}: no rows to evaluate")
        means = np.zeros(2)
        for low in range(0, len(x), EVALUATION_ROWS):
            part = slice(low, low + EVALUATION_ROWS)
            means += np.array(self._totals(w, x[part], y[part])) / len(x)
        return self._named(float(means[0]), float(means[1]))

    @abstractmethod
    def _totals(self, w: Float32Array, x: Float32Array, y: NDArray[Any]) -> tuple[float, float]:
        """Return two sums over rows; the first is that of the loss."""

    @abstractmethod
    def _named(self, loss: float, other: float) -> dict[str, float]:
        """Name the metrics that follow from the means of the two sums."""

    def _views(self, vector: Float32Array, shapes: Sequence[tuple[int, ...]]) -> list[Float32Array]:
        """Cut a parameter or gradient vector into arrays that share its memory."""
        if vector.shape != (self.size,):
            raise UsageError(
                f"{self.name}: a vector of shape {vector.shape} was given where the parameters "
                f"have shape ({self.size},)"
            )
        views, low = [], 0
        for shape in shapes:
            high = low + prod(shape)
            views.append(vector[low:high].reshape(shape))
            low = high
        return views
