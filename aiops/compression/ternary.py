"""Two bits for each value: minus, zero or plus, by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.compression.base import Codec, Feedback, State, keep_block, per_block, register
from aiops.compression.scaling import divide_blocks, rounded, shortest_levels
from aiops.optim.settings import number
from aiops_protocol.codecs import Encoded, to_bfloat16_above
from aiops_protocol.payload import Float32Array

__all__ = ["Ternary"]


@register
@dataclass(frozen=True, slots=True)
class Ternary(Codec):
    """TernGrad (Wen et al., NeurIPS 2017): -1, 0 or 1 times the largest value of the block.

    Each value becomes its sign with a probability in proportion to its size, so that the mean is
    right (of the values as they are after clipping).

    Parameters
    ----------
    clip
        Standard deviations of the block beyond which a value is cut off; 0 cuts nothing.
    block
        Values with one scale; a power of two.
    """

    name: ClassVar[str] = "ternary"
    argument: ClassVar[str] = "clip"
    feedback: ClassVar[Feedback] = "none"

    clip: float = 2.5
    block: int = 16_384

    def __post_init__(self) -> None:
        """Check the settings."""
        object.__setattr__(self, "clip", number("Ternary", "clip", self.clip, at_least=0.0))
        keep_block(self)

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Draw -1, 0 or 1 for each value; see `Codec.encode`."""
        scales = per_block(np.abs(x), self.block, np.max)
        if self.clip:
            limits = per_block(x, self.block, np.std, dtype=np.float64) * np.float32(self.clip)
            # A block of equal values has no deviation, and nothing to clip.
            scales = np.where(limits > 0, np.minimum(scales, limits), scales)
        scales = to_bfloat16_above(scales)
        scaled = np.clip(divide_blocks(x, scales, self.block), -1, 1)
        return shortest_levels(rounded(scaled, 1, seed), scales, self.block, 2)
