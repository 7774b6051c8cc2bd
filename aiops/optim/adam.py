"""Adam: steps scaled by running averages of the gradient and of its square."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.optim.base import Optimizer, check_common, clip_and_decay, keep_number, register
from aiops_protocol.payload import Float32Array


@register
@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Divide a running mean of the gradient by the root of a running mean of its square.

    Both means start at zero and are corrected for it, so that the first steps are not too short.

    Parameters
    ----------
    lr
        Learning rate, above 0: about the largest move of one element in one step.
    beta1, beta2
        Shares of the two means that are kept from one step to the next, in [0, 1).
    eps
        Added to the root, above 0, so that an element without gradient divides by something.
    weight_decay
        L2 factor: `weight_decay * w` is added to the gradient before the means are taken.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].

    Notes
    -----
    Every setting is first rounded to float32. What follows from the settings alone (such as
    `1 - beta2 ** step`) is computed from those in double precision and rounded once: the means
    and their correction then use the same beta, and the correction does not lose its digits.

    References
    ----------
    .. [1] D. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
    """

    name: ClassVar[str] = "adam"
    slots: ClassVar[tuple[str, ...]] = ("mean", "square")

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_value: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        keep_number(self, "beta1", at_least=0.0, below=1.0)
        keep_number(self, "beta2", at_least=0.0, below=1.0)
        keep_number(self, "eps", above=0.0)

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: int,
        scratch: Float32Array,
    ) -> None:
        """Move `values` by one step, in place; see `Optimizer.update`."""
        clip_and_decay(values, gradient, scratch, self.clip_value, self.weight_decay)
        mean, square = state["mean"], state["square"]
        move = scratch[: values.size]
        beta1, beta2 = float(np.float32(self.beta1)), float(np.float32(self.beta2))
        rate = np.float32(float(np.float32(self.lr)) / (1.0 - beta1**step))
        root_correction = np.float32((1.0 - beta2**step) ** 0.5)

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
