"""What a table's `compression` may be, and how it is named to the others."""

from __future__ import annotations

from aiops.compression import Codec, codec_from
from aiops.compression.pulls import pull_codec
from aiops.errors import ConfigError

__all__ = ["compression_spelling"]


def compression_spelling(
    compression: Codec | str | None,
    shape: tuple[int, ...],
    what: str,
    *,
    allow_nonfinite: bool,
    pulls: bool = False,
) -> str:
    """Check the codec of a table's pushes, or pulls; return its spelling, empty for none.

    Raises
    ------
    ConfigError
        No codec; one that does not fit the shape; or one that loses something, in a table that
        lets NaN and infinity pass, which would stay in what is held back for ever.
    """
    if compression is None:
        return ""
    given: object = compression
    setting = "pull_compression" if pulls else "compression"
    if isinstance(given, str):
        codec = codec_from(given)
    elif isinstance(given, Codec):
        codec = given
    else:
        raise ConfigError(
            f"{what}: {setting} is {given!r}; pass a codec of aiops.compression such as "
            'TopK(0.01), or its spelling "top-k:0.01"'
        )
    if pulls:
        pull_codec(codec)
    codec.for_shape(shape)
    if allow_nonfinite and not codec.lossless:
        raise ConfigError(
            f"{what}: {setting} {codec.spelling()} with allow_nonfinite=True: NaN or infinity "
            "would stay in what is held back; use a table without one of them"
        )
    return codec.spelling()
