"""Filters on the worker: which keys of a sparse problem are worth reading and pushing.

They look at arrays and know nothing of tables: ask one which places of your keys to pull and which
of your gradient to push, and pass those on.

    KktFilter           for L1 problems: leaves out weights that are zero and will stay zero
    SignificanceFilter  leaves out small changes and keeps them for later

References
----------
.. [1] M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014,
   sections 3.5 and 5.1.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.checks import check_count, check_flag, is_number
from aiops.errors import ConfigError, UsageError
from aiops.optim.settings import FLOAT32_MAX
from aiops.wording import shown
from aiops_protocol.payload import Float32Array

__all__ = ["KktFilter", "SignificanceFilter"]

Places = NDArray[np.int64]
"""Places in the arrays of a worker's own, one for each of its keys; sorted."""

KEYS_MAX: Final = 2**40
"""More do not fit in memory."""


class KktFilter:
    """Choose keys by the optimality (Karush-Kuhn-Tucker) conditions of an L1 problem [1]_.

    A weight that is zero stays zero as long as its gradient is at most `l1`: nothing is to be
    gained from pushing that gradient, nor from reading the weight again soon. Of a worker's keys
    only the others are active; now and then it reads all, because another worker may have moved
    one.

    Parameters
    ----------
    size
        How many keys the worker has.
    l1
        The factor of the L1 norm in the objective, above 0, that the optimizer on the servers
        has (`ProximalSGD(l1=...)`), for the gradients that are pushed.
    slack
        Part of `l1` by which a gradient of this worker may differ from that of all: what is
        above `(1 - slack) * l1` is pushed. In [0, 1): 0 filters most, 1 would filter nothing.
    read_all_every
        Every so many rounds all keys are read, the first time at once; 1 reads all always.

    Attributes
    ----------
    passed, seen
        How many gradients were pushed, of how many.

    Examples
    --------
    ::

        chosen = KktFilter(keys.size, l1=2e-3)
        weights = np.zeros(keys.size, np.float32)
        async for step in worker.steps(120):
            wanted = chosen.to_pull()
            weights[wanted] = (await table.pull(keys[wanted]))[:, 0]
            gradient = gradient_of(weights)
            active = chosen.to_push(weights, gradient)
            await table.push(keys[active], gradient[active, None])
    """

    def __init__(
        self, size: int, l1: float, *, slack: float = 0.1, read_all_every: int = 20
    ) -> None:
        self.size = check_count(size, "KktFilter: size")
        if self.size > KEYS_MAX:
            raise UsageError(f"KktFilter: size is {shown(size)}; at most {KEYS_MAX}")
        if not is_number(l1) or not 0 < l1 <= FLOAT32_MAX:
            raise ConfigError(f"KktFilter: l1 is {shown(l1)}; it must be a number above 0")
        if not is_number(slack) or not 0 <= slack < 1:
            raise ConfigError(f"KktFilter: slack is {shown(slack)}; it must be in [0, 1)")
        self.read_all_every = check_count(read_all_every, "KktFilter: read_all_every")
        if not self.read_all_every:
            raise ConfigError("KktFilter: read_all_every is 0; 1 reads all keys in every round")
        self._limit = np.float32(l1) * np.float32(1 - slack)
        self._active: Places = np.arange(self.size)
        self._round = 0
        self.passed = 0
        self.seen = 0

    def __repr__(self) -> str:
        return f"<KktFilter size={self.size} passed={self.passed} of {self.seen}>"

    @property
    def filtered(self) -> float:
        """The part of the gradients that was not pushed, from 0 to 1."""
        return 1 - self.passed / self.seen if self.seen else 0.0

    def to_pull(self) -> Places:
        """Return which keys to read in this round; the weights of the others are as known."""
        number = self._round
        self._round += 1
        if number % self.read_all_every == 0:
            return np.arange(self.size)
        return self._active

    def to_push(self, weights: Float32Array, gradient: Float32Array) -> Places:
        """Return which gradients to push: of all weights that are not zero, or will not stay so.

        Parameters
        ----------
        weights, gradient : ndarray of float32, shape (size,)
            As they are known to the worker.

        Raises
        ------
        UsageError
            Another shape.
        """
        for name, array in (("weights", weights), ("gradient", gradient)):
            _check_shape(array, (self.size,), f"KktFilter.to_push: {name}")
        self._active = np.flatnonzero((weights != 0) | ~(np.abs(gradient) <= self._limit))
        self.passed += self._active.size
        self.seen += self.size
        return self._active


class SignificanceFilter:
    """Hold small changes back until they have added up to one that counts [1]_.

    Nothing is lost: what is not pushed is added to what comes next, so that the sum of what was
    pushed and what is held back is at all times the sum of what was given.

    Parameters
    ----------
    shape
        Of the rows of a worker's keys: `(size,)` or `(size, width)`.
    threshold
        A row is pushed when one of its numbers is above this; at least 0.
    shrinks
        Divide the threshold by the root of the number of the round, so that what is held back
        fades as the training converges.

    Attributes
    ----------
    held
        What is held back, of the shape given.
    passed, seen
        How many rows were pushed, of how many.
    """

    def __init__(
        self, shape: int | tuple[int, ...], threshold: float, *, shrinks: bool = False
    ) -> None:
        if not is_number(threshold) or not 0 <= threshold <= FLOAT32_MAX:
            raise ConfigError(
                f"SignificanceFilter: threshold is {shown(threshold)}; it must be a number, 0 or "
                "more"
            )
        self.held: Float32Array = np.zeros(_sizes(shape), np.float32)
        if not self.held.ndim:
            raise ConfigError("SignificanceFilter: shape is (); it needs one row for each key")
        self.threshold = float(threshold)
        self.shrinks = check_flag(shrinks, "SignificanceFilter: shrinks")
        self._round = 0
        self.passed = 0
        self.seen = 0

    def __repr__(self) -> str:
        return f"<SignificanceFilter shape={self.held.shape} passed={self.passed} of {self.seen}>"

    @property
    def filtered(self) -> float:
        """The part of the rows that was not pushed at once, from 0 to 1."""
        return 1 - self.passed / self.seen if self.seen else 0.0

    def to_push(self, change: Float32Array) -> tuple[Places, Float32Array]:
        """Add a change to what is held back; return which rows to push now, and these rows.

        Raises
        ------
        UsageError
            Another shape.
        """
        _check_shape(change, self.held.shape, "SignificanceFilter.to_push: change")
        self._round += 1
        limit = self.threshold / (self._round**0.5 if self.shrinks else 1.0)
        self.held += change
        above = ~(np.abs(self.held) <= np.float32(limit))
        places = np.flatnonzero(above.reshape(len(above), -1).any(axis=1))
        rows = self.held[places]
        self.held[places] = 0
        self.passed += places.size
        self.seen += len(above)
        return places, rows

    def flush(self) -> tuple[Places, Float32Array]:
        """Return all that is held back, to be pushed at the end; nothing is held afterwards."""
        places = np.flatnonzero(self.held.reshape(len(self.held), -1).any(axis=1))
        rows = self.held[places]
        self.held[places] = 0
        return places, rows


def _sizes(shape: object) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    whole = tuple(check_count(size, "SignificanceFilter: shape: a size") for size in sizes)
    if prod(whole) > KEYS_MAX:
        raise ConfigError(f"SignificanceFilter: shape is {shown(shape)}; at most {KEYS_MAX} values")
    return whole


def _check_shape(array: Any, shape: tuple[int, ...], what: str) -> None:
    if np.shape(array) != shape:
        raise UsageError(f"{what} has shape {np.shape(array)}, expected {shape}")
