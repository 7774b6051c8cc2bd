"""Gradient descent with momentum, plain or Nesterov's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.errors import ConfigError
from aiops.optim.base import Optimizer, Steps, check_common, clip_and_decay, keep_number, register
from aiops.optim.schedules import Schedule, rate_now
from aiops.optim.settings import flag
from aiops_protocol.payload import Float32Array


@register
@dataclass(frozen=True, slots=True)
class Momentum(Optimizer):
    """Step along a decaying sum of gradients: `v = momentum * v + g`, `w -= lr * v`.

    Nesterov's form steps along `g + momentum * v` instead. The learning rate stands outside the
    sum, as in PyTorch, so that changing it acts at once.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`.
    momentum
        Share of the velocity that is kept from one step to the next, in [0, 1).
    nesterov
        Look ahead along the velocity; needs a momentum above 0.
    weight_decay
        L2 factor: `weight_decay * w` is added to the gradient.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.

    References
    ----------
    .. [1] I. Sutskever et al., "On the importance of initialization and momentum in deep
       learning", ICML 2013.
    """

    name: ClassVar[str] = "momentum"
    uses_step: ClassVar[bool] = False
    slots: ClassVar[tuple[str, ...]] = ("velocity",)

    lr: float | Schedule
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        keep_number(self, "momentum", at_least=0.0, below=1.0)
        object.__setattr__(self, "nesterov", flag("Momentum", "nesterov", self.nesterov))
        if self.nesterov and self.momentum == 0.0:
            raise ConfigError(
                "Momentum: nesterov is True but momentum is 0, which leaves nothing to look "
                "ahead along; give a momentum above 0, for example 0.9, or nesterov=False"
            )

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
        velocity = state["velocity"]
        momentum = np.float32(self.momentum)
        move = scratch[: values.size]
        np.multiply(velocity, momentum, out=velocity)
        np.add(velocity, gradient, out=velocity)
        if self.nesterov:
            np.multiply(velocity, momentum, out=move)
            np.add(move, gradient, out=move)
            np.multiply(move, np.float32(rate_now(self.lr)), out=move)
        else:
            np.multiply(velocity, np.float32(rate_now(self.lr)), out=move)
        np.subtract(values, move, out=values)
