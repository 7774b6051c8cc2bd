"""Codecs from text: `top-k:0.01`, `int8:256:stochastic=true`, `top-k:0.01+fp16+lz4`."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Final

from aiops.compression.base import CODECS, Codec
from aiops.compression.wrappers import Chain, ErrorFeedback, NoFeedback
from aiops.errors import ConfigError
from aiops.wording import shown

__all__ = ["AUTO", "as_codec", "codec_from", "codec_names"]

AUTO: Final = "auto"
"""The spelling of "as the gate chooses"."""

_WRAPPERS: dict[str, type[ErrorFeedback] | type[NoFeedback]] = {
    "feedback": ErrorFeedback,
    "no-feedback": NoFeedback,
}


def codec_names() -> tuple[str, ...]:
    """Return the first words of all spellings, sorted."""
    return tuple(sorted(CODECS))


def as_codec(given: object, what: str) -> Codec:
    """Return a codec that was given itself, or by its spelling.

    Parameters
    ----------
    what
        What errors begin with, up to the value: ``"table w: compression"``.

    Raises
    ------
    ConfigError
        It is neither, or a spelling that there is not.
    """
    codec: object = codec_from(given) if isinstance(given, str) else given
    if not isinstance(codec, Codec):
        raise ConfigError(
            f"{what} is {shown(given)}; pass a codec of aiops.compression such as TopK(0.01), or "
            "its "
            'spelling "top-k:0.01"'
        )
    return codec


def codec_from(text: str) -> Codec:
    """Make a codec from its spelling.

    A name, then settings: the main one by itself, others as `name=value`, with colons between.
    `+` puts one codec after the other, `no-feedback(...)` and `feedback(...)` go around.

    Raises
    ------
    ConfigError
        An unknown name or setting, or a bad value; the message says what there is.
    """
    given: object = text
    if not isinstance(given, str):
        raise ConfigError(
            f"compression is {shown(given)}; pass a codec of aiops.compression such as "
            'TopK(0.01), or its spelling "top-k:0.01"'
        )
    text = text.strip()
    name, bracket, rest = text.partition("(")
    if bracket:
        if name not in _WRAPPERS or not rest.endswith(")"):
            raise ConfigError(
                f"compression {shown(text)}: only feedback(...) and no-feedback(...) have brackets"
            )
        return _WRAPPERS[name](codec_from(rest[:-1]))
    parts = text.split("+")
    if len(parts) > 1:
        return Chain(*(_plain(part.strip()) for part in parts))
    return _plain(text)


def _plain(text: str) -> Codec:
    name, *words = text.split(":")
    cls = CODECS.get(name)
    if cls is None:
        raise ConfigError(
            f"compression {shown(text)}: no codec {shown(name)}; there are "
            f"{', '.join(codec_names())}"
        )
    kinds = typing.get_type_hints(cls)
    fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]  # registered codecs are dataclasses
    settings: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            key, value = cls.argument, word
        if key not in fields or key in settings:
            known = ", ".join(sorted(fields)) or "nothing"
            raise ConfigError(
                f"compression {shown(text)}: {shown(word)} is not understood; it has {known}"
            )
        settings[key] = _value(text, key, value, kinds[key])
    return cls(**settings)


def _value(text: str, key: str, value: str, kind: object) -> object:
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        if kind is int:
            return int(value)
        if kind is float:
            return float(value)
        return tuple(tuple(map(int, item.split("x"))) for item in value.split(","))
    except (KeyError, ValueError):
        raise ConfigError(f"compression {shown(text)}: {key} cannot be {shown(value)}") from None
