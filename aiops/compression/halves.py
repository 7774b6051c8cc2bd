"""Two bytes for each value: fp16 and bf16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aiops.compression.base import PIECE_ELEMENTS, Codec, State, register
from aiops_protocol import frames
from aiops_protocol.codecs import Encoded, Halves, SparseValues, ValueKind, to_bfloat16, to_float16
from aiops_protocol.payload import Float32Array

__all__ = ["BFloat16", "Float16"]


@register
@dataclass(frozen=True, slots=True)
class Float16(Codec):
    """IEEE half precision: eleven bits of precision, up to 65,504.

    What is larger is sent as 65,504, and the rest follows with the next pushes (error feedback).
    After a codec that sends few values, those are halved.
    """

    name: ClassVar[str] = "fp16"

    @property
    def piece_elements(self) -> int:
        """Any length will do."""
        return PIECE_ELEMENTS

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Round each value to the nearest; see `Codec.encode`."""
        return Halves(frames.Codec.FLOAT16, to_float16(x))

    def wrap(self, encoded: Encoded) -> Encoded:
        """Halve the values of a codec that sends few; see `Codec.wrap`."""
        if isinstance(encoded, SparseValues):
            return encoded.with_values(ValueKind.FLOAT16)
        return Codec.wrap(self, encoded)


@register
@dataclass(frozen=True, slots=True)
class BFloat16(Codec):
    """The upper half of a float32: eight bits of precision, and the range of float32.

    Six times faster to make than `Float16`.
    """

    name: ClassVar[str] = "bf16"

    @property
    def piece_elements(self) -> int:
        """Any length will do."""
        return PIECE_ELEMENTS

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Round each value to the nearest; see `Codec.encode`."""
        return Halves(frames.Codec.BFLOAT16, to_bfloat16(x))

    def wrap(self, encoded: Encoded) -> Encoded:
        """Halve the values of a codec that sends few; see `Codec.wrap`."""
        if isinstance(encoded, SparseValues):
            return encoded.with_values(ValueKind.BFLOAT16)
        return Codec.wrap(self, encoded)
