"""Nothing lost: values as they are, and lz4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aiops.compression.base import Codec, Feedback, State, register
from aiops_protocol.codecs import Encoded, IndexKind, Lz4Block, Raw, SparseValues
from aiops_protocol.payload import Float32Array

__all__ = ["Dense", "Lz4"]


@register
@dataclass(frozen=True, slots=True)
class Dense(Codec):
    """Values as they are; what a table without compression does."""

    name: ClassVar[str] = "dense"
    lossless: ClassVar[bool] = True
    feedback: ClassVar[Feedback] = "none"

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Take the values as they are; see `Codec.encode`."""
        return Raw(x)


@register
@dataclass(frozen=True, slots=True)
class Lz4(Codec):
    """LZ4 where a sample shrinks by more than 15 %, else values as they are.

    Dense gradients do not shrink; those with many zeros do, and places and values of a codec
    before it may. By itself it loses nothing.
    """

    name: ClassVar[str] = "lz4"
    lossless: ClassVar[bool] = True
    feedback: ClassVar[Feedback] = "none"

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Compress the values where it pays; see `Codec.encode`."""
        return Lz4Block(Raw(x))

    def wrap(self, encoded: Encoded) -> Encoded:
        """Compress the payloads of any other codec where it pays; see `Codec.wrap`."""
        numbers = isinstance(encoded, SparseValues) and encoded.index_kind is IndexKind.NUMBERS
        return Lz4Block(encoded, width=4 if numbers else 1)
