"""Which frames may carry which codec; what a codec means is in `aiops_protocol.codecs`."""

from __future__ import annotations

from typing import Final

from aiops_protocol.errors import LocalProtocolError, MalformedFrame
from aiops_protocol.frames import (
    Assign,
    Codec,
    Flag,
    Push,
    PushPull,
    Reply,
    Request,
    Value,
)

__all__ = ["check_codec", "check_own_codec"]

_CODECS: Final = frozenset(map(int, Codec))
_PARAMETERS: Final = int(Flag.CODEC_PARAMETERS)


def check_codec(codec: int, flags: int, cls: type[Request] | type[Reply]) -> None:
    """Check the codec, other than RAW, of a frame that came in.

    Raises
    ------
    MalformedFrame
        The number is not known, the frame has no values, or a request lacks the parameters.
    """
    if codec not in _CODECS:
        raise MalformedFrame(f"codec {codec} is not known to this version")
    if issubclass(cls, Request):
        if cls not in (Push, PushPull, Assign) or codec == Codec.DELTAS:
            raise MalformedFrame(f"codec {codec} in a {cls.__name__}")
        if not flags & _PARAMETERS:
            raise MalformedFrame(f"codec {codec} without its parameters")
    elif cls is not Value or codec != Codec.DELTAS:
        raise MalformedFrame(f"codec {codec} in a {cls.__name__}")


def check_own_codec(frame: Request | Reply) -> None:
    """Check the codec, other than RAW, of a frame that is to go out.

    Raises
    ------
    LocalProtocolError
        As above.
    """
    try:
        check_codec(frame.codec, frame.flags, type(frame))
    except MalformedFrame as error:
        raise LocalProtocolError(f"{frame}: {error}") from None
