"""A few levels for each value, by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from aiops.compression.base import Codec, Feedback, State, keep_block, per_block, register
from aiops.compression.scaling import divide_blocks, rounded, shortest_levels
from aiops.optim.settings import whole
from aiops_protocol.codecs import LEVEL_BITS, Encoded, to_bfloat16_above
from aiops_protocol.payload import Float32Array

__all__ = ["QSGD"]

NORM_MAX: Final = float(np.finfo(np.float32).max) * (1 - 2**-7)
"""So that the highest level is still a float32, though its step is rounded up."""


@register
@dataclass(frozen=True, slots=True)
class QSGD(Codec):
    """Whole numbers up to `levels`, in units of the norm of the block divided by `levels`.

    QSGD (Alistarh et al., NeurIPS 2017). Rounding is by chance and the mean is right, so there is
    no error feedback. Most values become zero, and only the others are written, with their places
    (in place of the paper's Elias code, one that whole arrays read and write); where that is no
    shorter, values take 2 bits with one level, 4 bits with up to 7, else 8.

    Parameters
    ----------
    levels
        Levels above zero, 1 to 127.
    block
        Values with one norm; a power of two.
    """

    name: ClassVar[str] = "qsgd"
    argument: ClassVar[str] = "levels"
    feedback: ClassVar[Feedback] = "none"

    levels: int = 4
    block: int = 512

    def __post_init__(self) -> None:
        """Check the settings."""
        levels = whole("QSGD", "levels", self.levels, at_least=1, at_most=127)
        object.__setattr__(self, "levels", levels)
        keep_block(self)

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Draw a level for each value; see `Codec.encode`."""
        # Divided by the largest first: squares of large or small values do not fit a float32.
        largest = per_block(np.abs(x), self.block, np.max)
        scaled = divide_blocks(x, largest, self.block)
        norms = np.sqrt(per_block(np.square(scaled), self.block, np.sum, dtype=np.float64))
        # Where all values are close to the largest float32, their norm is beyond it.
        norms = np.minimum(largest.astype(np.float64) * norms, NORM_MAX)
        steps = to_bfloat16_above((norms / self.levels).astype(np.float32))
        bits = next(bits for bits in LEVEL_BITS if self.levels < 2 ** (bits - 1))
        numbers = rounded(divide_blocks(x, steps, self.block), self.levels, seed)
        return shortest_levels(numbers, steps, self.block, bits)
