"""What a CALL asks for: the payload, as a name and settings.

The length of the message as `u32`, the message (msgpack), and zero bytes up to a multiple of
four. Only plain values travel; which functions there are, the server knows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from aiops_protocol.errors import MalformedFrame
from aiops_protocol.message import Settings, Word
from aiops_protocol.payload import Buffer

__all__ = ["FunctionCall", "call_payload", "called"]

_LENGTH: Final = struct.Struct("<I")


class FunctionCall(msgspec.Struct, frozen=True):
    """The function to run on each shard, and what it is given besides the shard."""

    function: Word
    settings: Settings


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(FunctionCall)


def call_payload(function: str, settings: Mapping[str, float | int | bool | str | None]) -> bytes:
    """Return the payload of a CALL.

    Raises
    ------
    MalformedFrame
        The other side would refuse it.
    """
    try:
        message = _encoder.encode(FunctionCall(function, dict(settings)))
    except (TypeError, OverflowError) as error:
        raise MalformedFrame(f"call of {function}: {error}") from None
    payload = _LENGTH.pack(len(message)) + message + bytes(-len(message) % 4)
    called(payload)
    return payload


def called(payload: Buffer) -> FunctionCall:
    """Return what the payload of a CALL asks for.

    Raises
    ------
    MalformedFrame
        It asks for nothing that makes sense.
    """
    raw = bytes(payload)
    if len(raw) < _LENGTH.size:
        raise MalformedFrame("a Call without a function")
    (length,) = _LENGTH.unpack_from(raw)
    if len(raw) != _LENGTH.size + length + -length % 4 or any(raw[_LENGTH.size + length :]):
        raise MalformedFrame(f"a Call of {length} bytes in a payload of {len(raw)}")
    try:
        return _decoder.decode(raw[_LENGTH.size : _LENGTH.size + length])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"a Call that says nothing: {error}") from None
