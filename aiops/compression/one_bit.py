"""One bit for each value: its sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.compression.base import Blockwise, State, per_block, register
from aiops_protocol.codecs import Encoded, Signs
from aiops_protocol.payload import Float32Array

__all__ = ["OneBit"]


@register
@dataclass(frozen=True, slots=True)
class OneBit(Blockwise):
    """The sign of each value, times the mean absolute value of its block.

    1-bit SGD (Seide et al., Interspeech 2014) with the scale of EF-SGD (Karimireddy et al., ICML
    2019). Without error feedback there are simple problems on which it stands still.

    Parameters
    ----------
    block
        Values with one scale; a power of two.
    """

    name: ClassVar[str] = "one-bit"

    block: int = 16_384

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Keep signs, and a mean for each block; see `Codec.encode`."""
        # The sum of large values may not fit a float32, their mean always does.
        scales = per_block(np.abs(x), self.block, np.mean, dtype=np.float64)
        return Signs(np.signbit(x), scales, self.block)
