"""Plain stochastic gradient descent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.optim.base import Optimizer, Steps, check_common, clip_and_decay, register
from aiops.optim.schedules import Schedule, rate_now
from aiops_protocol.payload import Float32Array


@register
@dataclass(frozen=True, slots=True)
class SGD(Optimizer):
    """Step against the gradient: `w -= lr * g`.

    Without weight decay and clipping the result has exactly the bits of numpy's
    `w - np.float32(lr) * g`.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`.
    weight_decay
        L2 factor: `weight_decay * w` is added to the gradient.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.
    """

    name: ClassVar[str] = "sgd"
    uses_step: ClassVar[bool] = False

    lr: float | Schedule
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)

    @property
    def zero_is_nothing(self) -> bool:
        """Without weight decay."""
        return self.weight_decay == 0.0

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
        np.multiply(gradient, np.float32(rate_now(self.lr)), out=gradient)
        np.subtract(values, gradient, out=values)
