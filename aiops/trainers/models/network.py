"""Classification with softmax and cross-entropy: directly, or through layers of ReLU units.

Softmax regression is the network without hidden layers, so there is one implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aiops.errors import ConfigError
from aiops.optim.settings import whole
from aiops.trainers.models.base import WIDTH_MAX, Model
from aiops.wording import shown
from aiops_protocol.payload import Float32Array


class Mlp(Model):
    """A network of fully connected layers with ReLU units between them.

    Parameters
    ----------
    features
        How many inputs there are.
    classes
        How many outputs there are.
    hidden
        Units in each hidden layer.
    """

    name: ClassVar[str] = "mlp"

    def __init__(self, features: int, classes: int, hidden: Sequence[int] = (256, 128)) -> None:
        units: object = hidden
        if not isinstance(units, tuple | list):
            raise ConfigError(f"{self.name}: hidden is {shown(hidden)}; pass a tuple such as (64,)")
        given = {"features": (features,), "hidden": units, "classes": (classes,)}
        self.widths = tuple(
            whole(self.name, name, width, at_least=1, at_most=WIDTH_MAX)
            for name, widths in given.items()
            for width in widths
        )
        self._shapes: list[tuple[int, ...]] = []
        for fan_in, fan_out in pairwise(self.widths):
            self._shapes += [(fan_in, fan_out), (fan_out,)]

    @property
    def size(self) -> int:
        """All weights and biases, layer after layer."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self.widths))

    def initial(self, seed: int) -> Float32Array:
        """Return normal weights of variance 2 / fan-in and zero biases.

        The variance keeps the size of the activations from layer to layer (K. He et al.,
        "Delving Deep into Rectifiers", ICCV 2015).
        """
        rng = np.random.default_rng(seed)
        w = np.zeros(self.size, np.float32)
        for weights in self._views(w, self._shapes)[::2]:
            weights[:] = rng.standard_normal(weights.shape) * (2.0 / len(weights)) ** 0.5
        return w

    def loss_and_gradient(
        self, w: Float32Array, x: Float32Array, y: NDArray[Any], out: Float32Array | None = None
    ) -> tuple[float, Float32Array]:
        """Return the mean cross-entropy over a batch and its gradient."""
        gradient = np.empty_like(w) if out is None else out
        weights, slopes = self._views(w, self._shapes), self._views(gradient, self._shapes)
        activations = self._activations(weights, x)
        losses, delta = _cross_entropy(activations.pop(), y)
        # The slope of the mean loss along each score is (probability - truth) / rows.
        delta[np.arange(len(y)), y] -= 1.0
        delta /= len(y)
        for layer in reversed(range(len(activations))):
            inputs = activations[layer]
            np.matmul(inputs.T, delta, out=slopes[2 * layer])
            np.sum(delta, axis=0, out=slopes[2 * layer + 1])
            if layer:
                delta = delta @ weights[2 * layer].T
                delta *= inputs > 0.0
        return float(losses.mean()), gradient

    def scores(self, w: Float32Array, x: Float32Array) -> Float32Array:
        """Return one score per row and class; the highest is the prediction."""
        return self._activations(self._views(w, self._shapes), x)[-1]

    def _activations(self, weights: Sequence[Float32Array], x: Float32Array) -> list[Float32Array]:
        """Return the inputs of each layer, and the scores."""
        activations = [x]
        for matrix, bias in zip(weights[::2], weights[1::2], strict=True):
            if len(activations) > 1:
                np.maximum(activations[-1], 0.0, out=activations[-1])
            activations.append(activations[-1] @ matrix + bias)
        return activations

    def _totals(self, w: Float32Array, x: Float32Array, y: NDArray[Any]) -> tuple[float, float]:
        scores = self.scores(w, x)
        hits = int((scores.argmax(axis=1) == y).sum())
        losses, _ = _cross_entropy(scores, y)
        return float(losses.sum(dtype=np.float64)), hits

    def _named(self, loss: float, other: float) -> dict[str, float]:
        return {"loss": loss, "accuracy": other}


class Softmax(Mlp):
    """Logistic regression for any number of classes: the network without hidden layers.

    Parameters
    ----------
    features
        How many inputs there are.
    classes
        How many outputs there are.
    """

    name: ClassVar[str] = "softmax"

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes, hidden=())

    def initial(self, seed: int) -> Float32Array:
        """Return zeros: the loss has one minimum, so that the start does not matter."""
        return np.zeros(self.size, np.float32)


def _cross_entropy(scores: Float32Array, y: NDArray[Any]) -> tuple[Float32Array, Float32Array]:
    """Turn scores into probabilities, in place, and return (loss of each row, probabilities)."""
    scores -= scores.max(axis=1, keepdims=True)  # exp() of what is left cannot overflow
    picked = scores[np.arange(len(y)), y]
    np.exp(scores, out=scores)
    sums = scores.sum(axis=1, keepdims=True)
    scores /= sums
    return np.log(sums[:, 0]) - picked, scores
