"""Helpers for numeric tests: run an optimizer as a shard would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from aiops.optim import Optimizer
from aiops_protocol.payload import Float32Array

Run = Callable[[Optimizer, Float32Array, Sequence[Float32Array]], Float32Array]


@pytest.fixture
def run_optimizer() -> Run:
    """Apply one optimizer step per gradient and return the final values."""

    def run(
        optimizer: Optimizer, start: Float32Array, gradients: Sequence[Float32Array]
    ) -> Float32Array:
        values = start.copy()
        state = {slot: np.zeros_like(values) for slot in type(optimizer).slots}
        scratch = np.full(values.size + 3, np.nan, np.float32)
        for step, gradient in enumerate(gradients, start=1):
            optimizer.update(values, gradient.copy(), state, step, scratch)
        return values

    return run
