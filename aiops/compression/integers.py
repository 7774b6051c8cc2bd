"""Whole numbers with a step for each block: int8 and int4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.compression.base import (
    Blockwise,
    Feedback,
    State,
    per_block,
    register,
)
from aiops.compression.scaling import divide_blocks, rounded
from aiops.optim.settings import flag
from aiops_protocol.codecs import Encoded, Levels, to_bfloat16_above
from aiops_protocol.payload import Float32Array

__all__ = ["Int4", "Int8"]


class _Integers(Blockwise):
    """Whole numbers of some bits, the largest of a block being the largest that there is."""

    __slots__ = ()

    bits: ClassVar[int]
    half_steps: ClassVar[bool]

    stochastic: bool

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        stochastic = flag(type(self).__name__, "stochastic", self.stochastic)
        object.__setattr__(self, "stochastic", stochastic)

    @property
    def feedback(self) -> Feedback:
        """Rounding by chance averages out."""
        return "none" if self.stochastic else "needed"

    @property
    def piece_elements(self) -> int:
        """Whole blocks; chance looks at the place in the whole vector."""
        return 0 if self.stochastic else super().piece_elements

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Round each value to a step of its block; see `Codec.encode`."""
        most = 2 ** (self.bits - 1) - 1
        steps = per_block(np.abs(x), self.block, np.max)
        steps /= np.float32(most)
        if self.half_steps:
            steps = to_bfloat16_above(steps)
        # At the very end of float32 the largest number would be infinite where a step went up.
        less = to_bfloat16_above(steps * np.float32(1 - 2**-7))
        steps = np.where(np.isfinite(steps * np.float32(most)), steps, less)
        scaled = divide_blocks(x, steps, self.block)
        numbers = rounded(scaled, most, seed if self.stochastic else None)
        return Levels(numbers, steps, self.block, self.bits, self.half_steps)


@register
@dataclass(frozen=True, slots=True)
class Int8(_Integers):
    """One byte for each value: a whole number from -127 to 127 times a step for each block.

    No value is off by more than half of a step.

    Parameters
    ----------
    block
        Values with one step; a power of two.
    stochastic
        Round up or down by chance, so that the mean is right, and without error feedback.
    """

    name: ClassVar[str] = "int8"
    bits: ClassVar[int] = 8
    half_steps: ClassVar[bool] = False

    block: int = 256
    stochastic: bool = False


@register
@dataclass(frozen=True, slots=True)
class Int4(_Integers):
    """Half a byte for each value: a whole number from -7 to 7 times a step for each block.

    Steps are bfloat16, rounded up so that the largest value of a block is within seven of them.

    Parameters
    ----------
    block
        Values with one step; a power of two.
    stochastic
        Round up or down by chance, so that the mean is right, and without error feedback.
    """

    name: ClassVar[str] = "int4"
    bits: ClassVar[int] = 4
    half_steps: ClassVar[bool] = True

    block: int = 64
    stochastic: bool = False
