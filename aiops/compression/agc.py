"""Adaptive gradient compression: how much is sent follows from the values themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from aiops.compression.base import Codec, Feedback, State, keep_block, per_block, register
from aiops.compression.checks import finite
from aiops.errors import ConfigError
from aiops.optim.settings import flag, whole
from aiops_protocol.codecs import Encoded, IndexKind, SparseLevels, SparseValues, ValueKind
from aiops_protocol.payload import Float32Array

__all__ = ["AGC"]

BLOCK_MIN: Final = 1024
BUDGET_STEP: Final = 1.1
"""How much longer or shorter bins get after a push beyond or below the budget."""


@register
@dataclass(frozen=True, slots=True)
class AGC(Codec):
    """A value is sent when it would pass the largest of its bin if it came once more.

    After AdaComp (Chen et al., AAAI 2018). With r the sum of what was held back and the gradient
    g, the values are sent for which `|r + g|` reaches the largest `|r|` of their bin: many while
    the gradient is active, few when it is not. Each is sent as a sign times the mean of the
    largest of all bins of its block: layers of a flat table have gradients of very different
    sizes. No sorting. It feeds back by itself.

    Parameters
    ----------
    bin
        Values in a bin, up to those in a block; longer bins send less. 50 to 500 is usual.
    exact
        Send the values themselves, as fp16.
    budget
        Bytes of a push to aim at, by changing the length of bins; 0 leaves it as it is.
    block
        Values with one size, and with bins of their own; a power of two.
    """

    name: ClassVar[str] = "agc"
    argument: ClassVar[str] = "bin"
    feedback: ClassVar[Feedback] = "own"
    elementwise: ClassVar[tuple[str, ...]] = ("residual",)

    bin: int = 200
    exact: bool = False
    budget: int = 0
    block: int = 16_384

    def __post_init__(self) -> None:
        """Check the settings."""
        keep_block(self, at_least=BLOCK_MIN)
        length = whole("AGC", "bin", self.bin, at_least=2)
        if length > self.block:
            raise ConfigError(
                f"AGC: bin is {length}, and a block has {self.block}; choose a shorter bin, or "
                "longer blocks"
            )
        object.__setattr__(self, "bin", length)
        object.__setattr__(self, "exact", flag("AGC", "exact", self.exact))
        object.__setattr__(self, "budget", whole("AGC", "budget", self.budget))

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Send what would pass the largest of its bin; see `Codec.encode`."""
        length = float(state.get("bin", np.full(1, self.bin, np.float32))[0])
        residual = state["residual"] + x
        finite(residual, self)
        ahead = np.abs(residual + x)  # where this is infinite it passes, as it should
        places, sizes = self._passing(np.abs(residual), ahead, round(length))
        encoded: Encoded
        if self.exact:
            kind = ValueKind.FLOAT16
            encoded = SparseValues(x.size, places, residual[places], IndexKind.PACKED, kind)
        else:
            signs = np.where(np.signbit(residual[places]), np.int8(-1), np.int8(1))
            encoded = SparseLevels(x.size, places, signs, sizes, self.block)
        encoded.take_from(residual)
        finite(residual, self)
        state["residual"][:] = residual
        if self.budget:
            over = len(encoded.whole().payload) > self.budget
            length = length * BUDGET_STEP if over else length / BUDGET_STEP
            state["bin"] = np.full(1, min(max(length, 2.0), float(self.block)), np.float32)
        return encoded

    def _passing(
        self, magnitude: Float32Array, ahead: Float32Array, length: int
    ) -> tuple[NDArray[np.int64], Float32Array]:
        """Return the places that reach the largest of their bin, and each block's mean of those."""
        size, block = magnitude.size, self.block
        sizes = np.empty(-(-size // block), np.float32)
        parts: list[NDArray[np.int64]] = []
        for at, begin in enumerate(range(0, size, block)):
            largest = per_block(magnitude[begin : begin + block], length, np.max)
            sizes[at] = np.mean(largest, dtype=np.float64)
            part = ahead[begin : begin + block]
            # Where all of a bin is zero, nothing passes.
            limits = np.where(largest > 0, largest, np.float32(np.inf))
            passing = part >= np.repeat(limits, length)[: part.size]
            parts.append(np.flatnonzero(passing) + begin)
        return np.concatenate(parts) if parts else np.empty(0, np.int64), sizes
