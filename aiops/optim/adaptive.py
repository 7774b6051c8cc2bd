"""Adagrad and RMSProp: each element's step is scaled by the squares of its own gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.optim.base import Optimizer, Steps, check_common, clip_and_decay, keep_number, register
from aiops.optim.schedules import Schedule, rate_now
from aiops_protocol.payload import Float32Array


@register
@dataclass(frozen=True, slots=True)
class Adagrad(Optimizer):
    """Divide by the root of the sum of all squared gradients: `w -= lr * g / (sqrt(s) + eps)`.

    What is rare moves far when it comes; the steps of what is frequent become short. Usual for
    sparse models.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`.
    initial
        What the sum of squares starts from, at least 0; above 0 the first steps are shorter.
    eps
        Added to the root, above 0.
    weight_decay
        L2 factor: `weight_decay * w` is added to the gradient before it is squared.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.

    References
    ----------
    .. [1] J. Duchi, E. Hazan and Y. Singer, "Adaptive Subgradient Methods for Online Learning and
       Stochastic Optimization", JMLR 2011; the diagonal form, `eps` outside the root.
    """

    name: ClassVar[str] = "adagrad"
    slots: ClassVar[tuple[str, ...]] = ("squares",)
    uses_step: ClassVar[bool] = False

    lr: float | Schedule = 0.01
    initial: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        keep_number(self, "initial", at_least=0.0)
        keep_number(self, "eps", above=0.0)

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        """Move `values` by one step, in place; see `Optimizer.update`."""
        clip_and_decay(values, gradient, scratch, self.clip_value, self.weight_decay)
        squares = state["squares"]
        work = scratch[: values.size]
        np.multiply(gradient, gradient, out=work)
        np.add(squares, work, out=squares)
        if self.initial:
            np.add(squares, np.float32(self.initial), out=work)
            np.sqrt(work, out=work)
        else:
            np.sqrt(squares, out=work)
        np.add(work, np.float32(self.eps), out=work)
        np.multiply(gradient, np.float32(rate_now(self.lr)), out=gradient)
        np.divide(gradient, work, out=gradient)
        np.subtract(values, gradient, out=values)


@register
@dataclass(frozen=True, slots=True)
class RMSProp(Optimizer):
    """Divide by the root of a running mean of squared gradients.

    `s = decay * s + (1 - decay) * g * g`, then `w -= lr * g / (sqrt(s) + eps)`. The mean starts
    at zero and is not corrected for it, so the first steps are long; warm up.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`.
    decay
        Share of the mean that is kept from one step to the next, in [0, 1).
    eps
        Added to the root, above 0.
    weight_decay
        L2 factor: `weight_decay * w` is added to the gradient before it is squared.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.

    References
    ----------
    .. [1] T. Tieleman and G. Hinton, "Lecture 6.5: RMSProp", Neural Networks for Machine
       Learning, 2012; `eps` outside the root, as in PyTorch.
    """

    name: ClassVar[str] = "rmsprop"
    slots: ClassVar[tuple[str, ...]] = ("square",)
    uses_step: ClassVar[bool] = False

    lr: float | Schedule = 0.01
    decay: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        keep_number(self, "decay", at_least=0.0, below=1.0)
        keep_number(self, "eps", above=0.0)

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        """Move `values` by one step, in place; see `Optimizer.update`."""
        clip_and_decay(values, gradient, scratch, self.clip_value, self.weight_decay)
        square = state["square"]
        work = scratch[: values.size]
        decay = float(np.float32(self.decay))
        np.multiply(square, np.float32(decay), out=square)
        np.multiply(gradient, gradient, out=work)
        np.multiply(work, np.float32(1.0 - decay), out=work)
        np.add(square, work, out=square)
        np.sqrt(square, out=work)
        np.add(work, np.float32(self.eps), out=work)
        np.multiply(gradient, np.float32(rate_now(self.lr)), out=gradient)
        np.divide(gradient, work, out=gradient)
        np.subtract(values, gradient, out=values)
