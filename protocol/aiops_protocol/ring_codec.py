"""The frames of rings <-> bytes; `codec.py` calls this for their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiops_protocol.errors import LocalProtocolError, MalformedFrame
from aiops_protocol.frames import Codec, Kind, RingBegin, RingConfirm, RingFrame, RingPiece
from aiops_protocol.layout import RING
from aiops_protocol.limits import PAYLOAD_BYTES_MAX
from aiops_protocol.payload import Buffer

__all__ = ["RING_FRAMES", "decode_ring", "encode_ring"]

RING_FRAMES: Final[Mapping[int, type[RingBegin] | type[RingPiece] | type[RingConfirm]]] = {
    Kind.RING_BEGIN: RingBegin,
    Kind.RING_PIECE: RingPiece,
    Kind.RING_CONFIRM: RingConfirm,
}

_CODECS: Final = frozenset(Codec)
_RING_BYTES: Final = RING.size
_pack, _unpack = RING.pack, RING.unpack_from


def decode_ring(
    kind: int, meta: Buffer, meta_bytes: int, payload: Buffer, payload_bytes: int
) -> RingBegin | RingPiece | RingConfirm:
    """Read one frame; the payload may be empty here if it is still on its way.

    Parameters
    ----------
    meta_bytes
        Size of the metadata without the words of optional flags.

    Raises
    ------
    MalformedFrame
        The lengths contradict each other.
    """
    cls = RING_FRAMES[kind]
    if meta_bytes != _RING_BYTES:
        raise MalformedFrame(f"{meta_bytes} bytes of metadata in a {cls.__name__}")
    operation, begin, ring, generation, message, count, codec, status, parameter = _unpack(meta)
    if cls is RingPiece and not _fits(codec, count, payload_bytes):
        raise MalformedFrame(
            f"{payload_bytes} bytes of payload by codec {codec} in a RingPiece of {count} values"
        )
    return cls(
        operation=operation,
        ring=ring,
        generation=generation,
        begin=begin,
        message=message,
        count=count,
        codec=codec,
        status=status,
        parameter=parameter,
        payload=payload,
    )


def encode_ring(frame: RingFrame) -> bytes:
    """Return the metadata of a frame.

    Raises
    ------
    LocalProtocolError
        A piece whose payload is not its values, or is empty.
    """
    if isinstance(frame, RingPiece) and not _fits(frame.codec, frame.count, len(frame.payload)):
        raise LocalProtocolError(f"{frame}: not {frame.count} values by codec {frame.codec}")
    return _pack(
        frame.operation,
        frame.begin,
        frame.ring,
        frame.generation,
        frame.message,
        frame.count,
        frame.codec,
        frame.status,
        frame.parameter,
    )


def _fits(codec: int, count: int, payload_bytes: int) -> bool:
    """Whether a payload may be so many values; those of a codec are looked at when decoded."""
    if codec == Codec.RAW:
        return 0 < payload_bytes == 4 * count
    return codec in _CODECS and 0 < count <= PAYLOAD_BYTES_MAX // 4 and payload_bytes > 0
