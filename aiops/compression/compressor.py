"""What one worker keeps of one table's compression between two pushes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.compression.base import Codec, State
from aiops.compression.wrappers import with_feedback
from aiops.errors import ConfigError
from aiops_protocol.codecs import Encoded, mix
from aiops_protocol.payload import Float32Array

__all__ = ["Compressor", "Where"]

Where = slice | NDArray[np.int64]
"""Which elements of a table a push names: a slice, or places in ascending order."""

_PUSHES: Final = "pushes"
_CODEC: Final = "codec"

ELEMENTWISE: Final = frozenset({"residual", "velocity"})
"""Arrays of a state that have a number for each element of the table."""


class Compressor:
    """A codec with its state, for the pushes of one worker to one table.

    Parameters
    ----------
    codec
        As the user gave it; error feedback is added if it needs that.
    shape
        Of the table.
    seed
        Of all random numbers, for example made of the table's name and the worker's rank.

    Attributes
    ----------
    codec
        With error feedback, if that was added.
    pushes
        How many vectors were encoded.
    bytes_given, bytes_sent
        Their bytes, and those of the payloads that they became; the latter counts who sends them.
    """

    def __init__(self, codec: Codec, shape: tuple[int, ...], seed: int) -> None:
        self.codec = with_feedback(codec.for_shape(shape))
        self.pushes = 0
        self.bytes_given = 0
        self.bytes_sent = 0
        self._size = prod(shape)
        self._seed = seed
        self._state: State = {}

    def encode(self, x: Float32Array, where: Where | None = None) -> Encoded:
        """Encode the vector of one push.

        Parameters
        ----------
        x : ndarray of float32, shape (n,)
            Not changed.
        where
            Which elements of the table it is for; all if not given.

        Raises
        ------
        UsageError
            NaN or infinity, given or as a sum with what was held back. Nothing has changed.
        """
        with np.errstate(all="ignore"):  # what does not fit a float32 is found and named
            encoded = self._encode(x, where)
        self.pushes += 1
        self.bytes_given += x.nbytes
        return encoded

    def _encode(self, x: Float32Array, where: Where | None) -> Encoded:
        names = self.codec.elementwise
        for name in names:
            if name not in self._state:
                self._state[name] = np.zeros(self._size, np.float32)
        seed = mix(self._seed, self.pushes)
        if where is None:
            encoded = self.codec.encode(x, self._state, seed)
        else:
            part: State = {**self._state, **{name: self._state[name][where] for name in names}}
            encoded = self.codec.encode(x, part, seed)
            for name, array in part.items():
                if name not in names:
                    self._state[name] = array
                elif not isinstance(where, slice):  # of a slice it was a view
                    self._state[name][where] = array
        return encoded

    def passes(self, x: Float32Array) -> bool:
        """Whether a vector need not be encoded; it is counted then."""
        return False

    @property
    def spelling(self) -> str:
        """Of the codec, as a saved state names it."""
        return self.codec.spelling()

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what is held back; 0 where nothing is."""
        residual = self._state.get("residual")
        if residual is None:
            return 0.0
        return float(np.sqrt(np.sum(np.square(residual, dtype=np.float64))))

    def stats(self) -> dict[str, Any]:
        """Return codec, pushes, bytes and the norm of what is held back."""
        return {
            "codec": self.spelling,
            "pushes": self.pushes,
            "bytes_given": self.bytes_given,
            "bytes_sent": self.bytes_sent,
            "residual_norm": self.residual_norm,
        }

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that the next push depends on, as arrays of one's own to keep."""
        state = {name: array.copy() for name, array in self._state.items()}
        state[_PUSHES] = np.array(self.pushes, np.int64)
        state[_CODEC] = np.array(self.spelling)
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where `state_dict` was taken.

        Raises
        ------
        ConfigError
            It is of another codec or of a table of another size, or no such state.
        """
        given = dict(state)
        spelling = str(given.pop(_CODEC, ""))
        if spelling != self.spelling:
            raise ConfigError(
                f"the saved compression state is of {spelling or 'no codec'}, the table's "
                f"compression is {self.spelling}"
            )
        pushes = given.pop(_PUSHES, None)
        if pushes is None or np.ndim(pushes):
            raise ConfigError("the saved compression state does not say how many pushes there were")
        for name, array in given.items():
            if name not in ELEMENTWISE:
                continue
            if array.shape != (self._size,) or array.dtype != np.float32:
                raise ConfigError(
                    f"the saved compression state has a {name} of {array.dtype} and shape "
                    f"{array.shape}, the table has {self._size} elements of float32"
                )
            if not np.isfinite(array).all():
                raise ConfigError(f"the saved compression state has NaN or infinity in {name}")
        self.pushes = int(pushes)
        self._state = {name: np.array(array) for name, array in given.items()}
