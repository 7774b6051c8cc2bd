"""Adam and AdamW: steps scaled by running averages of the gradient and of its square."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aiops.optim.base import Optimizer, Steps, check_common, clip_and_decay, keep_number, register
from aiops.optim.schedules import Schedule, rate_now
from aiops_protocol.payload import Float32Array


@register
@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Divide a running mean of the gradient by the root of a running mean of its square.

    Both means start at zero and are corrected for it, so that the first steps are not too short.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`: about the largest move of one element in one step.
    beta1, beta2
        Shares of the two means that are kept from one step to the next, in [0, 1).
    eps
        Added to the root, above 0, so that an element without gradient divides by something.
    weight_decay
        L2 factor: `weight_decay * w` is added to the gradient before the means are taken.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.

    Notes
    -----
    Every setting is first rounded to float32. What follows from the settings alone (such as
    `1 - beta2 ** step`) is computed from those in double precision and rounded once: the means
    and their correction then use the same beta, and the correction does not lose its digits.
    `step` is that of the element: one that is seldom pushed has its own correction.

    References
    ----------
    .. [1] D. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
    """

    name: ClassVar[str] = "adam"
    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    lr: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        _check_means(self)

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
        _move(self, values, gradient, state, step, scratch)


@register
@dataclass(frozen=True, slots=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay: `w -= lr * weight_decay * w`, then Adam's step.

    Unlike in `Adam` the decay is not divided by the root of the squares, so that it acts on all
    elements alike.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`; it scales the decay too.
    beta1, beta2, eps, clip_value, clip_row
        As in `Adam`.
    weight_decay
        Share by which the values shrink in a step, per unit of the learning rate; at least 0.

    References
    ----------
    .. [1] I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", ICLR 2019; the
       decay is scaled by `lr`, as in PyTorch.
    """

    name: ClassVar[str] = "adamw"
    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    lr: float | Schedule = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 1e-2
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        _check_means(self)

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        """Move `values` by one step, in place; see `Optimizer.update`."""
        clip_and_decay(values, gradient, scratch, self.clip_value, 0.0)
        shrink = np.float32(rate_now(self.lr)) * np.float32(self.weight_decay)
        if shrink:
            decay = scratch[: values.size]
            np.multiply(values, shrink, out=decay)
            np.subtract(values, decay, out=values)
        _move(self, values, gradient, state, step, scratch)


def _check_means(optimizer: Adam | AdamW) -> None:
    keep_number(optimizer, "beta1", at_least=0.0, below=1.0)
    keep_number(optimizer, "beta2", at_least=0.0, below=1.0)
    keep_number(optimizer, "eps", above=0.0)


def _by_step(step: Steps, formula: Callable[[NDArray[np.float64]], Any]) -> Float32Array:
    """Return what follows from step numbers, computed once for each number, rounded once.

    `formula` works on arrays, also for a single number, so that each has the same bits however
    many there are.
    """
    if not isinstance(step, np.ndarray):
        return np.asarray(formula(np.array([step], np.float64)), np.float32)
    if not step.size:
        return np.empty(0, np.float32)
    low, high = int(step.min()), int(step.max())
    if high - low >= step.size:
        return np.asarray(formula(step.astype(np.float64)), np.float32)
    table = np.asarray(formula(np.arange(low, high + 1, dtype=np.float64)), np.float32)
    found: Float32Array = np.take(table, step - np.uint32(low), mode="clip")
    return found


def _move(
    self: Adam | AdamW,
    values: Float32Array,
    gradient: Float32Array,
    state: Mapping[str, Float32Array],
    step: Steps,
    scratch: Float32Array,
) -> None:
    """Adam's step along a gradient that is ready to use, which is used up."""
    mean, square = state["mean"], state["square"]
    move = scratch[: values.size]
    beta1, beta2 = float(np.float32(self.beta1)), float(np.float32(self.beta2))
    lr = float(np.float32(rate_now(self.lr)))
    rate = _by_step(step, lambda counts: lr / (1.0 - np.power(beta1, counts)))
    root_correction = _by_step(step, lambda counts: np.sqrt(1.0 - np.power(beta2, counts)))

    np.multiply(mean, np.float32(beta1), out=mean)
    np.multiply(gradient, np.float32(1.0 - beta1), out=move)
    np.add(mean, move, out=mean)

    np.multiply(square, np.float32(beta2), out=square)
    np.multiply(gradient, gradient, out=gradient)
    np.multiply(gradient, np.float32(1.0 - beta2), out=gradient)
    np.add(square, gradient, out=square)

    # move = rate * mean / (sqrt(square) / root_correction + eps); the gradient is used up,
    # so its array serves for the denominator.
    np.sqrt(square, out=gradient)
    np.divide(gradient, root_correction, out=gradient)
    np.add(gradient, np.float32(self.eps), out=gradient)
    np.multiply(mean, rate, out=move)
    np.divide(move, gradient, out=move)
    np.subtract(values, move, out=values)
