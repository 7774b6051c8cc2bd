"""Every optimizer with some settings, and its textbook formula in plain numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aiops.optim import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Add,
    Assign,
    Momentum,
    Optimizer,
    ProximalSGD,
    RMSProp,
)
from aiops_protocol.payload import Float32Array

F = np.float32

ALL = [
    SGD(lr=0.1),
    SGD(lr=0.1, weight_decay=0.01, clip_value=0.5),
    Momentum(lr=0.05),
    Momentum(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01, clip_value=1.0),
    Momentum(lr=0.05, momentum=0.0),
    Adam(),
    Adam(lr=0.01, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.01, clip_value=1.0),
    AdamW(),
    AdamW(lr=0.02, weight_decay=0.1, clip_value=1.0),
    AdamW(weight_decay=0.0),
    Adagrad(),
    Adagrad(lr=0.1, initial=0.1, eps=1e-6, weight_decay=0.01, clip_value=1.0),
    RMSProp(),
    RMSProp(lr=0.001, decay=0.9, eps=1e-6, weight_decay=0.01, clip_value=1.0),
    FTRL(),
    FTRL(lr=0.5, beta=0.0, l1=2.0, l2=0.1, clip_value=1.0),
    ProximalSGD(lr=0.05),
    ProximalSGD(lr=0.05, l1=0.3, l2=0.1, clip_value=1.0),
    Add(),
    Assign(),
]


def reference(
    optimizer: Optimizer,
    start: np.ndarray[Any, Any],
    gradients: Sequence[Float32Array],
    dtype: type,
) -> np.ndarray[Any, Any]:
    """The textbook formulas, one new array per operation, in the given precision."""
    s = {name: dtype(F(v)) for name, v in optimizer.settings().items() if isinstance(v, float)}
    w: np.ndarray[Any, Any] = start.astype(dtype)
    first = np.zeros_like(w)
    second = np.zeros_like(w)
    for step, gradient in enumerate(gradients, start=1):
        g: np.ndarray[Any, Any] = gradient.astype(dtype)
        if "clip_value" in s:
            g = np.minimum(np.maximum(g, -s["clip_value"]), s["clip_value"])
        if s.get("weight_decay") and not isinstance(optimizer, AdamW):
            g = g + s["weight_decay"] * w
        match optimizer:
            case SGD():
                w = w - s["lr"] * g
            case Momentum():
                first = s["momentum"] * first + g
                move = g + s["momentum"] * first if optimizer.nesterov else first
                w = w - s["lr"] * move
            case Adam() | AdamW():
                one = dtype(1)
                if isinstance(optimizer, AdamW):
                    w = w - s["lr"] * s["weight_decay"] * w
                first = s["beta1"] * first + (one - s["beta1"]) * g
                second = s["beta2"] * second + (one - s["beta2"]) * g * g
                mean = first / (one - s["beta1"] ** step)
                square = second / (one - s["beta2"] ** step)
                w = w - s["lr"] * mean / (np.sqrt(square) + s["eps"])
            case Adagrad():
                first = first + g * g
                w = w - s["lr"] * g / (np.sqrt(first + s["initial"]) + s["eps"])
            case RMSProp():
                first = s["decay"] * first + (dtype(1) - s["decay"]) * (g * g)
                w = w - s["lr"] * g / (np.sqrt(first) + s["eps"])
            case FTRL():
                sigma = (np.sqrt(second + g * g) - np.sqrt(second)) / s["lr"]
                first = first + g - sigma * w
                second = second + g * g
                over = first - np.sign(first) * s["l1"]
                rate = (s["beta"] + np.sqrt(second)) / s["lr"] + s["l2"]
                w = np.where(np.abs(first) <= s["l1"], dtype(0), -over / rate)
            case ProximalSGD():
                w = w - s["lr"] * g
                left = np.maximum(np.abs(w) - s["lr"] * s["l1"], dtype(0))
                w = np.sign(w) * left / (dtype(1) + s["lr"] * s["l2"])
            case Add():
                w = w + g
            case Assign():
                w = g
            case _:
                raise AssertionError(optimizer)
    return w
