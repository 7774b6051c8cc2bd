"""Optimizers that make exact zeros: FTRL-proximal and proximal gradient descent (L1 and L2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from aiops.errors import ConfigError
from aiops.optim.base import Optimizer, Steps, check_common, clip_and_decay, keep_number, register
from aiops.optim.schedules import Schedule, rate_now
from aiops_protocol.payload import Float32Array

_TINY: Final = np.finfo(np.float32).tiny


@register
@dataclass(frozen=True, slots=True)
class FTRL(Optimizer):
    """Follow the (proximally) regularised leader: Adagrad's rates, and exact zeros by L1.

    Per element, `n` being the sum of squares and `z` the adjusted sum of gradients::

        sigma = (sqrt(n + g*g) - sqrt(n)) / lr
        z += g - sigma * w
        n += g*g
        w = 0 if |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2)

    Parameters
    ----------
    lr
        The paper's alpha, above 0. No schedule: each element has its own falling rate, and `z`
        is a sum over steps of all rates.
    beta
        The rate of an element is at most `lr / beta`; at least 0.
    l1
        An element is 0 as long as its `z` is at most this; at least 0.
    l2
        Pulls every element towards 0; at least 0.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.

    Notes
    -----
    The values follow from `z` and `n`, which start at zero: initial values other than 0 are
    forgotten, by and by, once an element has been stepped.

    References
    ----------
    .. [1] H. B. McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013,
       algorithm 1.
    """

    name: ClassVar[str] = "ftrl"
    slots: ClassVar[tuple[str, ...]] = ("z", "n")
    uses_step: ClassVar[bool] = False

    lr: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        if isinstance(self.lr, Schedule):
            raise ConfigError(
                "FTRL: lr is a schedule; each element has its own falling rate already, so pass "
                "a number"
            )
        check_common(self)
        for field in ("beta", "l1", "l2"):
            keep_number(self, field, at_least=0.0)

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
        z, n = state["z"], state["n"]
        work = scratch[: values.size]
        lr = np.float32(self.lr)
        # z += g - sigma * w, with sigma from the roots before and after.
        np.add(z, gradient, out=z)
        np.sqrt(n, out=work)
        np.multiply(gradient, gradient, out=gradient)
        np.add(n, gradient, out=n)
        np.sqrt(n, out=gradient)
        np.subtract(gradient, work, out=work)
        np.divide(work, lr, out=work)
        np.multiply(work, values, out=work)
        np.subtract(z, work, out=z)
        # The gradient's array now holds sqrt(n), which the denominator is made of.
        np.add(gradient, np.float32(self.beta), out=gradient)
        np.divide(gradient, lr, out=gradient)
        np.add(gradient, np.float32(self.l2), out=gradient)
        # sign(z) * max(|z| - l1, 0) is z minus its cut to [-l1, l1]: 0 inside, exactly.
        limit = np.float32(self.l1)
        np.clip(z, -limit, limit, out=work)
        np.subtract(work, z, out=work)
        # beta, l2 and n may all be 0; then nothing has come yet, and the value is 0.
        np.maximum(gradient, _TINY, out=gradient)
        np.divide(work, gradient, out=values)


@register
@dataclass(frozen=True, slots=True)
class ProximalSGD(Optimizer):
    """Step against the gradient, then towards 0: L1 and L2 by their proximal operator.

    `u = w - lr * g`, then `w = sign(u) * max(|u| - lr * l1, 0) / (1 + lr * l2)`. Unlike the
    gradient of a penalty this gives exact zeros, and no `l2` is too large.

    Parameters
    ----------
    lr
        Learning rate, above 0, or a `Schedule`.
    l1
        Factor of the sum of absolute values in the objective; at least 0.
    l2
        Factor of half the sum of squares in the objective; at least 0.
    clip_value
        Each element of the gradient is first cut to [-clip_value, clip_value].
    clip_row
        Before that, each row of the gradient is scaled down to this norm; only in sparse tables.

    References
    ----------
    .. [1] J. Duchi and Y. Singer, "Efficient Online and Batch Learning Using Forward Backward
       Splitting", JMLR 2009.
    """

    name: ClassVar[str] = "proximal-sgd"
    uses_step: ClassVar[bool] = False

    lr: float | Schedule
    l1: float = 0.0
    l2: float = 0.0
    clip_value: float | None = None
    clip_row: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        check_common(self)
        keep_number(self, "l1", at_least=0.0)
        keep_number(self, "l2", at_least=0.0)

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
        lr = np.float32(rate_now(self.lr))
        np.multiply(gradient, lr, out=gradient)
        np.subtract(values, gradient, out=values)
        if self.l1:
            cut = scratch[: values.size]
            limit = lr * np.float32(self.l1)
            np.clip(values, -limit, limit, out=cut)
            np.subtract(values, cut, out=values)
        if self.l2:
            shrink = np.float32(1.0) + lr * np.float32(self.l2)
            np.divide(values, shrink, out=values)
