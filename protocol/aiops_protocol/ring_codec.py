"""The frames of rings <-> bytes; `codec.py` calls this for their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiops_protocol.errors import LocalProtocolError, MalformedFrame
from aiops_protocol.frames import Codec, Kind, RingBegin, RingConfirm, RingFrame, RingPiece
from aiops_protocol.layout import RING
from aiops_protocol.payload import Buffer

__all__ = ["RING_FRAMES", "decode_ring", "encode_ring"]

RING_FRAMES: Final[Mapping[int, type[RingBegin] | type[RingPiece] | type[RingConfirm]]] = {
    Kind.RING_BEGIN: RingBegin,
    Kind.RING_PIECE: RingPiece,
    Kind.RING_CONFIRM: RingConfirm,
}

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
    operation, begin, ring, generation, message, count, codec, status = _unpack(meta)
    if codec != Codec.RAW:
        raise MalformedFrame(f"codec {codec} is not known to this version")
    if cls is RingPiece and not 0 < payload_bytes == 4 * count:
        raise MalformedFrame(f"{payload_bytes} bytes of payload in a RingPiece of {count} values")
    return cls(
        operation=operation,
        ring=ring,
        generation=generation,
        begin=begin,
        message=message,
        count=count,
        codec=codec,
        status=status,
        payload=payload,
    )


def encode_ring(frame: RingFrame) -> bytes:
    """Return the metadata of a frame.

    Raises
    ------
    LocalProtocolError
        A piece whose payload is not its values, or is empty.
    """
    if frame.codec or (
        isinstance(frame, RingPiece) and not 0 < len(frame.payload) == 4 * frame.count
    ):
        raise LocalProtocolError(f"{frame}: not {frame.count} values, or codec {frame.codec}")
    return _pack(
        frame.operation,
        frame.begin,
        frame.ring,
        frame.generation,
        frame.message,
        frame.count,
        frame.codec,
        frame.status,
    )
