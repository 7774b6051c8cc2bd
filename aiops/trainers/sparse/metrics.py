"""How well probabilities of clicks are predicted: area under the curve, and log-loss."""

from __future__ import annotations

import numpy as np

from aiops_protocol.payload import Float32Array

__all__ = ["area_under_curve", "log_loss"]


def area_under_curve(labels: Float32Array, scores: Float32Array) -> float:
    """Return the chance that a click scores higher than what is none; ties count half.

    0.5 if there are only clicks, or none.
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[inverse.reshape(-1)]
    clicks = labels > 0
    hits, misses = int(clicks.sum()), int((~clicks).sum())
    if not hits or not misses:
        return 0.5
    return float((ranks[clicks].sum() - hits * (hits + 1) / 2) / (hits * misses))


def log_loss(labels: Float32Array, scores: Float32Array) -> float:
    """Return the mean of `-log` of the probability that the scores gave to what has happened."""
    signs = np.where(labels > 0, -1.0, 1.0)
    return float(np.logaddexp(0.0, signs * scores.astype(np.float64)).mean())
