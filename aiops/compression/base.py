"""What a codec is, and the book in which they are found by name.

What lives here: the abstract `Codec`, its spelling (`top-k:0.01`), and helpers for blocks. What
does not: the codecs (one file each), the bytes they become (`aiops_protocol.codecs`), and what a
table keeps between two pushes (`compressor.py`). Nothing here knows a frame, a server or a clock.

A codec is a frozen record of settings. `encode` takes a whole vector and the state that this
codec left behind last time; the result is cut into payloads afterwards, so that nothing about it
depends on how many servers there are.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiops.errors import ConfigError
from aiops.optim.settings import whole
from aiops_protocol.codecs import BLOCK_ELEMENTS_MAX, Encoded
from aiops_protocol.payload import Float32Array

__all__ = [
    "CODECS",
    "PIECE_ELEMENTS",
    "Blockwise",
    "Codec",
    "Feedback",
    "State",
    "keep_block",
    "per_block",
    "register",
]

State: TypeAlias = dict[str, NDArray[Any]]
"""What a codec keeps from one push to the next, by name; changed in place by `encode`."""

Feedback: TypeAlias = Literal["none", "needed", "own"]


class Codec(ABC):
    """A way to represent a vector of float32 in fewer bytes.

    Subclass it as a frozen dataclass whose fields are the settings.
    """

    __slots__ = ()

    name: ClassVar[str]
    """The word that stands for it in a spelling."""

    argument: ClassVar[str] = ""
    """The field that a spelling gives without its name: `top-k:0.01`."""

    # What holds for all of a class, it gives as `ClassVar`; a codec around others asks them.

    @property
    def lossless(self) -> bool:
        """Whether every bit arrives."""
        return False

    @property
    def feedback(self) -> Feedback:
        """What is to be done about what is lost.

        `needed`: it has a direction, so that it must be added to the next vector
        (`ErrorFeedback` does that). `none`: it averages out, or nothing is lost. `own`: the codec
        keeps what it has not sent in its state.
        """
        return "needed"

    @property
    def elementwise(self) -> tuple[str, ...]:
        """Names of arrays in the state that have one float32 for each element of the table."""
        return ()

    @property
    def piece_elements(self) -> int:
        """Of how many values a long vector may be encoded at a time, a multiple of a block; or 0.

        The state must not matter then, nor the seed, and the form be `Joinable`.
        """
        return 0

    @abstractmethod
    def encode(self, x: Float32Array, state: State, seed: int) -> Encoded:
        """Encode a vector.

        Parameters
        ----------
        x : ndarray of float32, shape (n,)
            Finite; it is not changed.
        state
            What the last call left there; changed in place, unless this raises.
        seed
            Of the random numbers; another one for each call.

        Returns
        -------
        encoded : Encoded
            To be cut into payloads; `dense()` is exactly what a receiver will have.
        """

    def wrap(self, encoded: Encoded) -> Encoded:
        """Apply this codec to what another one has made; see `Chain`.

        Raises
        ------
        ConfigError
            It cannot follow that one.
        """
        raise ConfigError(
            f"{self.spelling()} cannot follow another codec: fp16 and bf16 may follow one that "
            "sends few values, lz4 any"
        )

    def for_shape(self, shape: tuple[int, ...]) -> Codec:
        """Return the codec as it is for a table of this shape; most do not care."""
        return self

    def warnings(self) -> list[str]:
        """Say what is known to go wrong with these settings."""
        return []

    def settings(self) -> dict[str, Any]:
        """Return the settings that are not those by default, by name."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        return {
            field.name: getattr(self, field.name)
            for field in fields
            if field.name == self.argument or getattr(self, field.name) != field.default
        }

    def spelling(self) -> str:
        """Return the codec as text, from which `codec_from` makes it again."""
        words = [self.name]
        for name, value in self.settings().items():
            words.append(_spelled(value) if name == self.argument else f"{name}={_spelled(value)}")
        return ":".join(words)

    def __str__(self) -> str:
        return self.spelling()


def _spelled(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("x".join(map(str, item)) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


PIECE_ELEMENTS: Final = 65_536
"""256 KiB of float32: a piece and what is made of it stay in the cache."""

CODECS: Final[dict[str, type[Codec]]] = {}
"""Every codec by the word of its spelling."""

AnyCodec = TypeVar("AnyCodec", bound=type[Codec])


def register(cls: AnyCodec) -> AnyCodec:
    """Make a codec known under its name."""
    CODECS[cls.name] = cls
    return cls


class _WithBlock(Protocol):
    """A codec that has blocks."""

    @property
    def block(self) -> object:
        """How many elements a block has, as the user has given it."""
        ...


def keep_block(codec: _WithBlock, *, at_least: int = 16) -> None:
    """Check the field `block`, the length of a block: a power of two.

    Raises
    ------
    ConfigError
        It is something else.
    """
    title = type(codec).__name__
    block = whole(title, "block", codec.block, at_least=at_least, at_most=BLOCK_ELEMENTS_MAX)
    if block & (block - 1):
        raise ConfigError(f"{title}: block is {block}; it must be a power of two")
    object.__setattr__(codec, "block", block)


class Blockwise(Codec):
    """A codec that looks at nothing but blocks of its own length, the same for each.

    Long vectors can be encoded in pieces of whole blocks.
    """

    __slots__ = ()

    argument: ClassVar[str] = "block"
    block: int

    def __post_init__(self) -> None:
        """Check the length of a block."""
        keep_block(self)

    @property
    def piece_elements(self) -> int:
        """Whole blocks."""
        return max(PIECE_ELEMENTS, self.block)


def per_block(
    x: Float32Array, block: int, reduce: Callable[..., Any], **settings: Any
) -> Float32Array:
    """Reduce each block of a vector to one number; the last block may be shorter.

    Parameters
    ----------
    reduce
        Such as `np.max`, called with `axis=1` and the settings.
    """
    whole_blocks = x.size // block
    out = np.empty(-(-x.size // block), np.float32)
    if whole_blocks:
        blocks = x[: whole_blocks * block].reshape(whole_blocks, block)
        out[:whole_blocks] = reduce(blocks, axis=1, **settings)
    if whole_blocks < out.size:
        out[-1] = reduce(x[None, whole_blocks * block :], axis=1, **settings)[0]
    return out
