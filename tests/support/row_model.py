"""A sparse table as a dictionary: one key at a time, in plain numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aiops.init import Constant, Initializer
from aiops.optim import Optimizer
from aiops_protocol.key_list import mix
from aiops_protocol.payload import Float32Array

F = np.float32


class RowModel:
    """Rows by key; each with its values, its state and the count of its steps."""

    def __init__(self, width: int, optimizer: Optimizer, init: Initializer | None = None) -> None:
        self.width = width
        self.optimizer = optimizer
        self.init = init or Constant(0.0)
        self.rows: dict[int, tuple[Float32Array, dict[str, Float32Array], int]] = {}

    def initial(self, key: int) -> Float32Array:
        (row,) = self.init.fill_rows(mix(np.array([key], np.uint64)), self.width)
        initial: Float32Array = row
        return initial

    def _row(self, key: int) -> tuple[Float32Array, dict[str, Float32Array], int]:
        state = {slot: np.zeros(self.width, F) for slot in self.optimizer.slots}
        return self.rows.get(key, (self.initial(key), state, 0))

    def step(self, key: int, gradient: Float32Array, clock: int = 0) -> None:
        values, state, count = self._row(key)
        count += 1
        scratch = np.empty(self.width, F)
        with np.errstate(all="ignore"):
            self.optimizer.at(clock).update(values, gradient.copy(), state, count, scratch)
        self.rows[key] = (values, state, count)

    def push(self, keys: Sequence[int], gradients: Float32Array) -> None:
        """One push of one worker: repeated keys are added up."""
        for key, gradient in summed(keys, gradients).items():
            self.step(key, gradient)

    def assign(self, keys: Iterable[int], values: Float32Array) -> None:
        for key, row in zip(keys, values, strict=True):
            _, state, count = self._row(int(key))
            self.rows[int(key)] = (row.copy(), state, count)

    def pull(self, keys: Iterable[int]) -> Float32Array:
        found = [self._row(int(key))[0] for key in keys]
        return np.array(found, F).reshape(-1, self.width)


def summed(keys: Iterable[Any], gradients: Float32Array) -> dict[int, Float32Array]:
    """The sum for each key, in the order given."""
    sums: dict[int, Float32Array] = {}
    for key, gradient in zip(keys, gradients, strict=True):
        known = sums.get(int(key))
        sums[int(key)] = gradient.copy() if known is None else known + gradient
    return sums
