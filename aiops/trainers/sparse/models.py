"""Sparse models: what rows of weights predict for a batch, and the gradient of the log-loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops.init import Constant, Initializer, Normal
from aiops.optim.settings import whole
from aiops.trainers.sparse.stream import Batch
from aiops_protocol.payload import Float32Array

__all__ = ["FactorizationMachine", "Logistic", "SparseModel"]


FACTORS_MAX: Final = 1024
"""Longer vectors are more than a row of a sparse table has."""


class SparseModel(ABC):
    """A model with one row of weights for each feature; `width` values, begun by `init`."""

    width: int
    init: Initializer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} width={self.width}>"

    @abstractmethod
    def scores(self, weights: Float32Array, batch: Batch) -> Float32Array:
        """Return the log-odds of a click for each row; `weights` belong to the batch's keys."""

    @abstractmethod
    def gradient(self, weights: Float32Array, batch: Batch, slopes: Float32Array) -> Float32Array:
        """Return the gradient of the weights; `slopes` are those of the loss by each score."""

    def learn(self, weights: Float32Array, batch: Batch) -> tuple[Float32Array, Float32Array]:
        """Return the scores, and the gradient of the mean log-loss."""
        scores = self.scores(weights, batch)
        chances = 1 / (1 + np.exp(-np.clip(scores, -60, 60)))
        slopes = ((chances - batch.labels) / len(batch.labels)).astype(np.float32)
        return scores, self.gradient(weights, batch, slopes)


class Logistic(SparseModel):
    """Logistic regression: a weight for each feature."""

    width = 1
    init = Constant(0.0)

    def scores(self, weights: Float32Array, batch: Batch) -> Float32Array:
        """Return the log-odds of a click for each row."""
        terms = weights[batch.places, 0] * batch.values
        return np.bincount(batch.rows, terms, len(batch.labels)).astype(np.float32)

    def gradient(self, weights: Float32Array, batch: Batch, slopes: Float32Array) -> Float32Array:
        """Return the gradient of the weights."""
        terms = slopes[batch.rows] * batch.values
        return _by_key(terms[:, None], batch)


class FactorizationMachine(SparseModel):
    """A weight for each feature, and for each pair the product of two short vectors [1]_.

    Parameters
    ----------
    factors
        Length of the vectors.
    seed
        Of their beginnings.

    References
    ----------
    .. [1] S. Rendle, "Factorization Machines", ICDM 2010.
    """

    def __init__(self, factors: int = 8, seed: int = 0) -> None:
        self.width = 1 + whole("fm", "factors", factors, at_least=1, at_most=FACTORS_MAX)
        self.init = Normal(std=0.01, seed=seed)

    def scores(self, weights: Float32Array, batch: Batch) -> Float32Array:
        """Return the log-odds of a click for each row."""
        linear, terms, sums = self._parts(weights, batch)
        squares = _by_row((terms * terms).sum(axis=1), batch)
        pairs: Float32Array = (sums * sums).sum(axis=1) - squares
        scores: Float32Array = linear + np.float32(0.5) * pairs
        return scores

    def _parts(
        self, weights: Float32Array, batch: Batch
    ) -> tuple[Float32Array, Float32Array, Float32Array]:
        used = weights[batch.places]
        linear = _by_row(used[:, 0] * batch.values, batch)
        terms = used[:, 1:] * batch.values[:, None]
        starts = np.searchsorted(batch.rows, np.arange(len(batch.labels)))
        sums: Float32Array = np.add.reduceat(terms, starts, axis=0)
        return linear, terms, sums

    def gradient(self, weights: Float32Array, batch: Batch, slopes: Float32Array) -> Float32Array:
        """Return the gradient of the weights."""
        _, terms, sums = self._parts(weights, batch)
        shares = slopes[batch.rows] * batch.values
        pairs = (sums[batch.rows] - terms) * shares[:, None]
        return _by_key(np.concatenate([shares[:, None], pairs], axis=1), batch)


def _by_row(terms: NDArray[np.floating], batch: Batch) -> Float32Array:
    return np.bincount(batch.rows, terms, len(batch.labels)).astype(np.float32)


def _by_key(terms: Float32Array, batch: Batch) -> Float32Array:
    columns = [np.bincount(batch.places, column, batch.keys.size) for column in terms.T]
    return np.stack(columns, axis=1).astype(np.float32)
