"""Codecs for the way back: what may compress the values that servers publish.

A server has only its part of a table, and what it sends must not depend on where parts begin. So a
codec for pulls works within blocks, parts begin at whole blocks, and nothing is drawn by chance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aiops.compression.base import Codec
from aiops.compression.float8 import Float8
from aiops.compression.halves import BFloat16, Float16
from aiops.compression.integers import Int4, Int8
from aiops.compression.lossless import Lz4
from aiops.compression.one_bit import OneBit
from aiops.compression.spelling import AUTO, codec_from
from aiops.compression.top_k import TopK
from aiops.compression.wrappers import Chain
from aiops.errors import ConfigError

__all__ = [
    "BLOCK_ELEMENTS",
    "PULL_CANDIDATES",
    "WISH_SHIFT",
    "pull_codec",
    "pull_codecs",
    "unit_elements",
]

BLOCK_ELEMENTS: Final = 4096
"""Block in which top-k chooses, and the least number of elements at which a part may begin."""

PULL_CANDIDATES: Final = ("dense", "bf16", "int8", "one-bit", "top-k:0.04:compact=true")
"""What the values of a table with `pull_compression="auto"` may come as; workers name them by their
places here, so that the order is part of the protocol."""

WISH_SHIFT: Final = 56
"""A PULL of a replica tells its version in so many bits, and above them what the worker wishes."""

_ALLOWED: Final = (TopK, OneBit, Int8, Int4, Float8, Float16, BFloat16, Lz4)


def pull_codec(codec: Codec) -> Codec:
    """Return the codec as it is for pulls.

    Raises
    ------
    ConfigError
        It draws by chance, needs the whole table, or feeds back: the replica is the feedback.
    """
    if isinstance(codec, Chain):
        first, *rest = codec.codecs
        return Chain(pull_codec(first), *rest)
    if isinstance(codec, TopK) and codec.sampled:
        raise ConfigError(
            f"pull_compression cannot be {codec.spelling()}: no server has the whole table to draw "
            "a sample from; leave sampled out"
        )
    by_chance = codec.feedback == "none" and not codec.lossless
    if not isinstance(codec, _ALLOWED) or by_chance:
        raise ConfigError(
            f"pull_compression cannot be {codec.spelling()}: it takes top-k, one-bit, int8, int4, "
            "fp8, fp16, bf16, lz4 and chains of them, without chance and without feedback(...)"
        )
    if isinstance(codec, TopK) and not codec.block:
        return replace(codec, block=BLOCK_ELEMENTS)
    return codec


def pull_codecs(spelling: str) -> tuple[Codec | None, ...]:
    """Return what may compress the values of a table with this setting; `None` for nothing.

    Raises
    ------
    ConfigError
        As `pull_codec`.
    """
    if spelling != AUTO:
        return (pull_codec(codec_from(spelling)),)
    return (None, *(pull_codec(codec_from(name)) for name in PULL_CANDIDATES[1:]))


def unit_elements(codec: Codec) -> int:
    """Return at multiples of how many elements the parts of a table must begin."""
    if isinstance(codec, Chain):
        codec = codec.codecs[0]
    return max(BLOCK_ELEMENTS, getattr(codec, "block", 0))
