"""One byte of floating point for each value: fp8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.compression.base import Blockwise, State, per_block, register
from aiops.compression.scaling import divide_blocks
from aiops_protocol.codecs import FLOAT8_MAX, Encoded, to_float8
from aiops_protocol.codecs import Float8 as Float8Form
from aiops_protocol.payload import Float32Array

__all__ = ["Float8"]


@register
@dataclass(frozen=True, slots=True)
class Float8(Blockwise):
    """Four bits of exponent and three of mantissa (e4m3), and a scale for each block.

    Small values of a block keep a relative precision of 1/16, which `Int8` does not give them.
    After "FP8 formats for deep learning" (Micikevicius et al., 2022).

    Parameters
    ----------
    block
        Values with one scale; a power of two.
    """

    name: ClassVar[str] = "fp8"

    block: int = 256

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Scale each block to the largest number there is, and round; see `Codec.encode`."""
        scales = per_block(np.abs(x), self.block, np.max)
        scales /= np.float32(FLOAT8_MAX)
        return Float8Form(to_float8(divide_blocks(x, scales, self.block)), scales, self.block)
