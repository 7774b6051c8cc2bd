"""The largest values alone: top-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from aiops.compression.base import Codec, State, keep_block, register
from aiops.compression.selection import (
    largest,
    largest_by_sample,
    largest_of_blocks,
    wanted_of,
)
from aiops.errors import ConfigError
from aiops.optim.settings import flag, number, whole
from aiops_protocol.codecs import Encoded, IndexKind, SparseValues, ValueKind
from aiops_protocol.payload import Float32Array

__all__ = ["TopK"]


@register
@dataclass(frozen=True, slots=True)
class TopK(Codec):
    """The largest values of the whole vector, and where they are.

    Sparsified SGD with memory (Stich et al., NeurIPS 2018). Without error feedback there are
    problems on which it runs away exponentially.

    Parameters
    ----------
    ratio
        Which part of the values is sent, above 0 and up to 1.
    sampled
        Find the threshold from a sample: five times faster, and the number sent varies.
    compact
        About three bytes for each value sent in place of eight: values as fp16, places in bits.
    block
        Choose in each block of so many values, not in the whole vector; 0 is the whole. For the
        way back (`pull_compression`), where no server has the whole, it is 4096 by itself.
    """

    name: ClassVar[str] = "top-k"
    argument: ClassVar[str] = "ratio"

    ratio: float = 0.01
    sampled: bool = False
    compact: bool = False
    block: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        ratio = number("TopK", "ratio", self.ratio, above=0.0, at_most=1.0)
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "sampled", flag("TopK", "sampled", self.sampled))
        object.__setattr__(self, "compact", flag("TopK", "compact", self.compact))
        if whole("TopK", "block", self.block):
            keep_block(self)
            if self.sampled:
                raise ConfigError("TopK: sampled and block do not go together; choose one")

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Keep the largest values; see `Codec.encode`."""
        magnitude = np.abs(x)
        if self.block:
            places = largest_of_blocks(magnitude, self.ratio, self.block)
        elif self.sampled:
            places = largest_by_sample(magnitude, wanted_of(x.size, self.ratio), seed)
        else:
            places = largest(magnitude, wanted_of(x.size, self.ratio))
        index = IndexKind.PACKED if self.compact else IndexKind.NUMBERS
        kind = ValueKind.FLOAT16 if self.compact else ValueKind.FLOAT32
        return SparseValues(x.size, places, x[places], index, kind)
