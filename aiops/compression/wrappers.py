"""Codecs around codecs: error feedback, none of it, and one after the other.

What elsewhere is a constant of a class (`feedback`, `lossless`, `elementwise`) depends on the
codecs inside here.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar

import numpy as np

from aiops.compression.base import Codec, Feedback, State
from aiops.compression.checks import finite
from aiops.errors import ConfigError
from aiops.wording import shown
from aiops_protocol.codecs import Encoded, Joinable
from aiops_protocol.payload import Float32Array

__all__ = ["Chain", "ErrorFeedback", "NoFeedback", "with_feedback"]


class _Wrapper(Codec):
    """A codec around another one."""

    __slots__ = ("codec",)

    def __init__(self, codec: Codec) -> None:
        given: object = codec  # callers without a type checker pass anything
        if not isinstance(given, Codec) or isinstance(given, _Wrapper):
            raise ConfigError(
                f"{type(self).__name__} takes a codec such as TopK(0.01): {shown(codec)}"
            )
        self.codec = codec

    @property
    def lossless(self) -> bool:
        """Whether every bit arrives."""
        return self.codec.lossless

    @property
    def elementwise(self) -> tuple[str, ...]:
        """Names of arrays in the state with a number for each element."""
        return self.codec.elementwise

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Encode by the other codec; see `Codec.encode`."""
        return self.codec.encode(x, state, seed)

    def for_shape(self, shape: tuple[int, ...]) -> Codec:
        """Return the same around the other codec as it is for a table of this shape."""
        return type(self)(self.codec.for_shape(shape))

    def warnings(self) -> list[str]:
        """Say what is known of the other codec."""
        return self.codec.warnings()

    def settings(self) -> dict[str, Any]:
        """Return those of the other codec."""
        return self.codec.settings()

    def spelling(self) -> str:
        """Return the name around the spelling of the other codec."""
        return f"{self.name}({self.codec.spelling()})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.codec!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.spelling() == str(other)

    def __hash__(self) -> int:
        return hash(self.spelling())


class ErrorFeedback(_Wrapper):
    """Add to each vector what the last ones lost, so that nothing is lost for good.

    With g the vector and e what was lost before, `g + e` is encoded, and e becomes the difference
    to what a receiver has. The sum of all that arrived and of e is the sum of all vectors (Seide
    et al., 2014; Karimireddy et al., ICML 2019). A table does this by itself for every codec that
    needs it.

    Parameters
    ----------
    codec
        The codec to feed.
    """

    __slots__ = ()
    name = "feedback"
    feedback: ClassVar[Feedback] = "own"

    @property
    def elementwise(self) -> tuple[str, ...]:
        """Names of arrays in the state with a number for each element."""
        return ("residual", *self.codec.elementwise)

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        if codec.feedback == "own":
            raise ConfigError(f"{codec.spelling()} feeds back by itself")

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Encode the sum with what was lost, and keep what is lost now; see `Codec.encode`."""
        residual = state["residual"]
        if 0 < self.codec.piece_elements < x.size and _moderate(x) and _moderate(residual):
            return self._by_pieces(x, residual)
        total = residual + x
        finite(total, self.codec)
        encoded = self.codec.encode(total, state, seed)
        if self.lossless:  # it may have borrowed the sum
            residual[:] = 0.0
            return encoded
        encoded.take_from(total)
        finite(total, self.codec)
        residual[:] = total
        return encoded

    def _by_pieces(self, x: Float32Array, residual: Float32Array) -> Encoded:
        """Do the same in pieces that stay in the cache; the bits are the same."""
        length = self.codec.piece_elements
        parts: list[Joinable] = []
        for start in range(0, x.size, length):
            part = residual[start : start + length]
            part += x[start : start + length]
            encoded = self.codec.encode(part, {}, 0)
            assert isinstance(encoded, Joinable)
            encoded.take_from(part)
            parts.append(encoded)
        return type(parts[0]).joined(parts)


def _moderate(values: Float32Array) -> bool:
    """Whether no value is NaN or above 2e19: so far from the end that nothing can go wrong."""
    return isfinite(np.vdot(values, values))


class NoFeedback(_Wrapper):
    """Leave a codec without error feedback, which a table would add by itself.

    Parameters
    ----------
    codec
        Any codec that does not feed back by itself.
    """

    __slots__ = ()
    name = "no-feedback"
    feedback: ClassVar[Feedback] = "none"

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        if codec.feedback == "own":
            raise ConfigError(f"{codec.spelling()} feeds back by itself, which cannot be left out")


class Chain(Codec):
    """One codec after the other: `Chain(TopK(0.01), Float16(), Lz4())`.

    The first one may be any; `Float16` and `BFloat16` may follow one that sends few values, and
    `Lz4` any.

    Parameters
    ----------
    codecs
        Two or more.
    """

    __slots__ = ("codecs",)
    name = "chain"

    def __init__(self, *codecs: Codec) -> None:
        if len(codecs) < 2 or not all(isinstance(codec, Codec) for codec in codecs):
            raise ConfigError(f"Chain takes two or more codecs, not {shown(codecs)}")
        first, *rest = codecs
        if any(isinstance(codec, _Wrapper | Chain) for codec in codecs):
            raise ConfigError("Chain takes plain codecs; put ErrorFeedback or NoFeedback around it")
        if first.feedback == "own" and not all(codec.lossless for codec in rest):
            raise ConfigError(
                f"{first.spelling()} feeds back by itself, so only lz4 may follow: what another "
                "codec loses would be lost for good"
            )
        self.codecs = codecs
        probe = {name: np.zeros(4, np.float32) for name in first.elementwise}
        self.encode(np.arange(4, dtype=np.float32), probe, 0)  # a wrong order is told now

    @property
    def feedback(self) -> Feedback:
        """Whether any of them loses what does not average out."""
        kinds = {codec.feedback for codec in self.codecs}
        return "own" if "own" in kinds else "needed" if "needed" in kinds else "none"

    @property
    def lossless(self) -> bool:
        """Whether every bit arrives."""
        return all(codec.lossless for codec in self.codecs)

    @property
    def elementwise(self) -> tuple[str, ...]:
        """Names of arrays in the state with a number for each element."""
        return self.codecs[0].elementwise

    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Encode by the first, then by each on what came before; see `Codec.encode`."""
        first, *rest = self.codecs
        encoded = first.encode(x, state, seed)
        for codec in rest:
            encoded = codec.wrap(encoded)
        return encoded

    def for_shape(self, shape: tuple[int, ...]) -> Codec:
        """Return the chain as it is for a table of this shape."""
        return Chain(*(codec.for_shape(shape) for codec in self.codecs))

    def warnings(self) -> list[str]:
        """Say what is known of its parts."""
        return [text for codec in self.codecs for text in codec.warnings()]

    def settings(self) -> dict[str, Any]:
        """Return nothing: its parts have settings."""
        return {}

    def spelling(self) -> str:
        """Return the spellings of its parts, joined by `+`."""
        return "+".join(codec.spelling() for codec in self.codecs)

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.codecs))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and self.codecs == other.codecs

    def __hash__(self) -> int:
        return hash(self.codecs)


def with_feedback(codec: Codec) -> Codec:
    """Return the codec with error feedback around it, if it needs that.

    Raises
    ------
    ConfigError
        It is no codec.
    """
    given: object = codec  # callers without a type checker pass anything
    if not isinstance(given, Codec):
        raise ConfigError(f"with_feedback: {shown(given)} is no codec such as TopK(0.01)")
    return ErrorFeedback(codec) if codec.feedback == "needed" else codec
