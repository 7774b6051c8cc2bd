"""Whole numbers with a scale for each block: int8 and int4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.compression.base import (
    PIECE_ELEMENTS,
    Codec,
    Feedback,
    State,
    keep_block,
    per_block,
    register,
)
from aiops.compression.scaling import divide_blocks, rounded
from aiops.optim.settings import flag
from aiops_protocol.codecs import Encoded, Levels
from aiops_protocol.payload import Float32Array

__all__ = ["Int4", "Int8"]


def _encode(x: Float32Array, block: int, bits: int, seed: int | None) -> Encoded:
    most = 2 ** (bits - 1) - 1
    steps = per_block(np.abs(x), block, np.max)
    steps /= np.float32(most)
    return Levels(rounded(divide_blocks(x, steps, block), most, seed), steps, block, bits)


@register
@dataclass(frozen=True, slots=True)
class Int8(Codec):
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
    argument: ClassVar[str] = "block"

    block: int = 256
    stochastic: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        keep_block(self)
        object.__setattr__(self, "stochastic", flag("Int8", "stochastic", self.stochastic))

    @property
    def feedback(self) -> Feedback:  # type: ignore[override]  # chance makes it unbiased
        """Rounding by chance averages out."""
        return "none" if self.stochastic else "needed"

    @property
    def piece_elements(self) -> int:
        """Whole blocks; chance looks at the place in the whole vector."""
        return 0 if self.stochastic else max(PIECE_ELEMENTS, self.block)

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Round each value to a step of its block; see `Codec.encode`."""
        return _encode(x, self.block, 8, seed if self.stochastic else None)


@register
@dataclass(frozen=True, slots=True)
class Int4(Codec):
    """Half a byte for each value: a whole number from -7 to 7 times a step for each block.

    Parameters
    ----------
    block
        Values with one step; a power of two.
    stochastic
        Round up or down by chance, so that the mean is right, and without error feedback.
    """

    name: ClassVar[str] = "int4"
    argument: ClassVar[str] = "block"

    block: int = 128
    stochastic: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        keep_block(self)
        object.__setattr__(self, "stochastic", flag("Int4", "stochastic", self.stochastic))

    @property
    def feedback(self) -> Feedback:  # type: ignore[override]  # chance makes it unbiased
        """Rounding by chance averages out."""
        return "none" if self.stochastic else "needed"

    @property
    def piece_elements(self) -> int:
        """Whole blocks; chance looks at the place in the whole vector."""
        return 0 if self.stochastic else max(PIECE_ELEMENTS, self.block)

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Round each value to a step of its block; see `Codec.encode`."""
        return _encode(x, self.block, 4, seed if self.stochastic else None)
