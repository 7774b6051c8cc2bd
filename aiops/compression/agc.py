"""Adaptive gradient compression: how much is sent follows from the values themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from aiops.compression.base import Codec, Feedback, State, register
from aiops.compression.checks import finite
from aiops.optim.settings import flag, whole
from aiops_protocol.codecs import Encoded, IndexKind, SparseSigns, SparseValues, ValueKind
from aiops_protocol.payload import Float32Array

__all__ = ["AGC"]

BIN_MAX: Final = 1 << 20
BUDGET_STEP: Final = 1.1
"""How much longer or shorter bins get after a push beyond or below the budget."""


@register
@dataclass(frozen=True, slots=True)
class AGC(Codec):
    """A value is sent when it would pass the largest of its bin if it came once more.

    After AdaComp (Chen et al., AAAI 2018). With r the sum of what was held back and the gradient
    g, the values are sent for which `|r + g|` reaches the largest `|r|` of their bin: many while
    the gradient is active, few when it is not. Each is sent as a sign times the mean of the
    largest of all bins. No sorting. It feeds back by itself.

    Parameters
    ----------
    bin
        Values in a bin; longer bins send less. 50 to 500 is usual.
    exact
        Send the values themselves, as fp16.
    budget
        Bytes of a push to aim at, by changing the length of bins; 0 leaves it as it is.
    """

    name: ClassVar[str] = "agc"
    argument: ClassVar[str] = "bin"
    feedback: ClassVar[Feedback] = "own"
    elementwise: ClassVar[tuple[str, ...]] = ("residual",)

    bin: int = 200
    exact: bool = False
    budget: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        length = whole("AGC", "bin", self.bin, at_least=2, at_most=BIN_MAX)
        object.__setattr__(self, "bin", length)
        object.__setattr__(self, "exact", flag("AGC", "exact", self.exact))
        object.__setattr__(self, "budget", whole("AGC", "budget", self.budget))

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Send what would pass the largest of its bin; see `Codec.encode`."""
        length = float(state.get("bin", np.full(1, self.bin, np.float32))[0])
        residual = state["residual"] + x
        ahead = residual + x
        finite(ahead, self)
        places, largest = _passing(np.abs(residual), np.abs(ahead), round(length))
        encoded: Encoded
        if self.exact:
            kind = ValueKind.FLOAT16
            encoded = SparseValues(x.size, places, residual[places], IndexKind.GAPS, kind)
        else:
            scale = np.float32(np.mean(largest, dtype=np.float64)) if largest.size else np.float32()
            encoded = SparseSigns(x.size, places, np.signbit(residual[places]), scale)
        encoded.take_from(residual)
        finite(residual, self)
        state["residual"][:] = residual
        if self.budget:
            over = len(encoded.whole().payload) > self.budget
            length = min(max(length * BUDGET_STEP if over else length / BUDGET_STEP, 2.0), BIN_MAX)
            state["bin"] = np.full(1, length, np.float32)
        return encoded


def _passing(
    magnitude: Float32Array, ahead: Float32Array, length: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Float32Array]:
    """Return the places that reach the largest of their bin, and the largest of each bin."""
    whole_bins = magnitude.size // length
    at = whole_bins * length
    largest = magnitude[:at].reshape(whole_bins, length).max(axis=1)
    passing = ahead[:at].reshape(whole_bins, length) >= largest[:, None]
    passing &= largest[:, None] > 0
    places = np.flatnonzero(passing)
    if at < magnitude.size:
        last = magnitude[at:].max()
        largest = np.append(largest, last)
        if last > 0:
            places = np.append(places, np.flatnonzero(ahead[at:] >= last) + at)
    return places, largest
