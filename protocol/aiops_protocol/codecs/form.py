"""What all wire forms of values share: an encoded vector that can be cut, and what comes out of it.

A form is made once for a whole vector (`Encoded`) and then cut into the payloads of frames, so
that the bits of what arrives do not depend on where servers and segments begin. Each form has a
file with its class and its decoder; which decoder belongs to which number is `decoding.py`. How
the numbers in a form are chosen (which are the largest, how they are rounded) is not the
protocol's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer, Float32Array

__all__ = [
    "BLOCK_ELEMENTS_MAX",
    "Decoded",
    "Encoded",
    "InBlocks",
    "Joinable",
    "Sparse",
    "Wire",
    "block_counts",
    "block_parameter",
    "blocks_of",
    "need",
    "pack",
    "read_block_parameter",
    "scale_blocks",
    "word_of",
]

BLOCK_ELEMENTS_MAX: Final = 1 << 20
"""Longest block with one scale: what a frame can hold, and 20 bits of a parameter."""


class Wire(NamedTuple):
    """A payload as it travels: the codec's number, its parameter and the bytes."""

    codec: Codec
    parameter: int
    payload: Buffer


class Sparse(NamedTuple):
    """Values at some places of a vector that is zero elsewhere; indices ascend, none twice."""

    size: int
    indices: NDArray[np.int64]
    values: Float32Array

    def dense(self) -> Float32Array:
        """Return the whole vector."""
        out = np.zeros(self.size, np.float32)
        out[self.indices] = self.values
        return out


Decoded: TypeAlias = "Float32Array | Sparse"
"""What a payload means: all values, or those that are not zero."""


class Encoded(ABC):
    """A vector in the form in which it travels.

    Attributes
    ----------
    size
        Elements of the vector.
    """

    size: int

    @abstractmethod
    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""

    @abstractmethod
    def decoded(self) -> Decoded:
        """Return exactly what a receiver of all payloads will have."""

    def whole(self) -> Wire:
        """Return the one payload of the whole vector."""
        return self.cut(0, self.size)

    def dense(self) -> Float32Array:
        """Return exactly what a receiver will have, as a whole vector."""
        decoded = self.decoded()
        return decoded.dense() if isinstance(decoded, Sparse) else decoded

    def take_from(self, values: Float32Array) -> None:
        """Subtract what a receiver will have from `values`, in place."""
        decoded = self.decoded()
        if isinstance(decoded, Sparse):
            values[decoded.indices] -= decoded.values
        else:
            np.subtract(values, decoded, out=values)


class Joinable(Encoded):
    """A form with something for every value: long vectors are made piece by piece, in the cache."""

    @classmethod
    @abstractmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the form of the parts' vectors one after the other.

        All but the last have whole blocks.
        """


def word_of(count: int, parameter: int) -> int:
    """Return the word of CODEC_PARAMETERS: the number of values, and the codec's parameter."""
    return count | parameter << 32


def pack(*parts: bytes | NDArray[Any]) -> bytes:
    """Return the bytes of headers and contiguous arrays, one after the other."""
    return b"".join(part if isinstance(part, bytes) else part.data for part in parts)


def need(condition: bool, text: str) -> None:
    """Raise `MalformedFrame` unless the condition holds."""
    if not condition:
        raise MalformedFrame(text)


# --- blocks with a scale of their own ---------------------------------------------------------


def block_parameter(block: int, phase: int, extra: int = 0) -> int:
    """Return the parameter of a form with blocks.

    Parameters
    ----------
    block
        Elements of a block, a power of two.
    phase
        Place of the first element in its block.
    extra
        Up to seven bits of the form's own.
    """
    return phase | (block.bit_length() - 1) << 20 | extra << 25


def read_block_parameter(parameter: int) -> tuple[int, int, int]:
    """Return block, phase and extra bits.

    Raises
    ------
    MalformedFrame
        A block longer than allowed, or a place outside of it.
    """
    block = 1 << (parameter >> 20 & 31)
    phase = parameter & 0xFFFFF
    need(block <= BLOCK_ELEMENTS_MAX, f"blocks of {block} values, at most {BLOCK_ELEMENTS_MAX}")
    need(phase < block, f"place {phase} in a block of {block} values")
    return block, phase, parameter >> 25


def block_counts(count: int, block: int, phase: int) -> int:
    """Return how many blocks `count` elements touch that begin at `phase` of the first."""
    return -(-(phase + count) // block) if count else 0


def blocks_of(start: int, stop: int, block: int) -> slice:
    """Return which blocks the elements [start, stop) touch."""
    first = start // block
    return slice(first, -(-stop // block) if start < stop else first)


def scale_blocks(out: Float32Array, steps: Float32Array, block: int, phase: int) -> None:
    """Multiply each element by the scale of its block, in place."""
    head = min(-phase % block, out.size)
    at = 0
    if head:
        out[:head] *= steps[0]
        at = 1
    whole = (out.size - head) // block
    if whole:
        middle = out[head : head + whole * block].reshape(whole, block)
        np.multiply(middle, steps[at : at + whole, None], out=middle)
    tail = out[head + whole * block :]
    if tail.size:
        tail *= steps[-1]


class InBlocks(Joinable):
    """A code for each value and a scale for each block; cut anywhere, joined at whole blocks.

    Parameters
    ----------
    codes
        One for each value.
    scales
        One for each block.
    block
        Elements of a block, a power of two.
    """

    codec: ClassVar[Codec]
    extra: int = 0
    """Seven bits of the parameter that are the form's own."""

    def __init__(self, codes: NDArray[Any], scales: Float32Array, block: int) -> None:
        self.size = codes.size
        self._codes = codes
        self._scales = scales
        self._block = block

    @abstractmethod
    def packed(self, codes: NDArray[Any]) -> NDArray[Any]:
        """Return codes as they are written."""

    def written(self, scales: Float32Array) -> NDArray[Any]:
        """Return scales as they are written."""
        return scales

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the form of several vectors one after the other."""
        whole = copy(parts[0])
        whole._codes = np.concatenate([part._codes for part in parts])
        whole._scales = np.concatenate([part._scales for part in parts])
        whole.size = whole._codes.size
        return whole

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        block = self._block
        scales = self.written(self._scales[blocks_of(start, stop, block)])
        payload = pack(scales, self.packed(self._codes[start:stop]))
        return Wire(self.codec, block_parameter(block, start % block, self.extra), payload)
