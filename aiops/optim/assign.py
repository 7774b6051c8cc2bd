"""Updaters without a learning rate: what is pushed is added, or taken as the new value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.optim.base import Optimizer, Steps, register
from aiops_protocol.payload import Float32Array


@register
@dataclass(frozen=True, slots=True)
class Add(Optimizer):
    """Add what is pushed: `w += g`. For counters, sums and deltas computed by the workers."""

    name: ClassVar[str] = "add"
    uses_step: ClassVar[bool] = False
    zero_is_nothing: ClassVar[bool] = True

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        """Add `gradient` to `values`, in place; see `Optimizer.update`."""
        np.add(values, gradient, out=values)


@register
@dataclass(frozen=True, slots=True)
class Assign(Optimizer):
    """Take what is pushed as the new value: `w = g`. The last one to be applied stays."""

    name: ClassVar[str] = "assign"
    uses_step: ClassVar[bool] = False

    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        """Copy `gradient` over `values`; see `Optimizer.update`."""
        np.copyto(values, gradient)
