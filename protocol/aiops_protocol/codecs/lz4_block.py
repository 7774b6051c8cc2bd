"""LZ4: the payload of another form, compressed without loss."""

from __future__ import annotations

import struct
from typing import Final

import lz4.block
import numpy as np

from aiops_protocol.codecs.form import Decoded, Encoded, Wire, need
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer

__all__ = ["Lz4Block", "compress", "decompress", "worth_compressing"]

HEADER: Final = struct.Struct("<BBHI")
WIDTHS: Final = (1, 2, 4, 8)

SAMPLE_BYTES: Final = 64 * 1024
WORTH_RATIO: Final = 1.15
"""A sample that shrinks less is not worth the time of both sides."""


def _shuffled(data: Buffer, width: int) -> Buffer:
    """Bring bytes of the same place in each number together; a rest stays at the end."""
    if width == 1:
        return data
    raw = np.frombuffer(data, np.uint8)
    whole = raw.size - raw.size % width
    return b"".join((raw[:whole].reshape(-1, width).T.tobytes(), raw[whole:].tobytes()))


def _in_order(data: bytes, width: int) -> bytes:
    if width == 1:
        return data
    raw = np.frombuffer(data, np.uint8)
    whole = raw.size - raw.size % width
    return b"".join((raw[:whole].reshape(width, -1).T.tobytes(), raw[whole:].tobytes()))


def worth_compressing(data: Buffer, width: int = 1) -> bool:
    """Whether a sample from the middle of the data shrinks enough."""
    view = memoryview(data)
    if not len(view):
        return False
    start = max(0, (len(view) - SAMPLE_BYTES) // 2) // 8 * 8
    sample = _shuffled(view[start : start + SAMPLE_BYTES], width)
    return len(sample) > WORTH_RATIO * len(lz4.block.compress(sample, store_size=False))


def compress(codec: Codec, data: Buffer, width: int = 1) -> bytes:
    """Return the payload of LZ4 around the payload of another form.

    Parameters
    ----------
    codec
        The other form.
    data
        Its payload.
    width
        Bytes of the numbers in it if bytes of the same place are to be brought together (which
        pays for keys, not for values), else 1.
    """
    block: bytes = lz4.block.compress(_shuffled(data, width), store_size=False)
    return HEADER.pack(codec, width, 0, len(data)) + block


def decompress(payload: Buffer, bytes_max: int) -> bytes:
    """Return the payload inside, of at most `bytes_max` bytes.

    Raises
    ------
    MalformedFrame
        It is no LZ4, or of another length than it says, or longer; nothing was allocated then.
    """
    need(len(payload) >= HEADER.size, f"{len(payload)} bytes of LZ4")
    _, width, zero, size = HEADER.unpack_from(payload)
    need(width in WIDTHS and zero == 0, f"LZ4 with numbers of {width} bytes")
    need(size <= bytes_max, f"LZ4 of {size} bytes, at most {bytes_max} are possible here")
    try:
        data = lz4.block.decompress(memoryview(payload)[HEADER.size :], uncompressed_size=size)
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise MalformedFrame(f"no block of LZ4: {error}") from None
    need(len(data) == size, f"LZ4 of {len(data)} bytes that says {size}")
    return _in_order(data, width)


class Lz4Block(Encoded):
    """Another form whose payloads are compressed where that makes them shorter.

    Parameters
    ----------
    inner
        The other form.
    width
        As for `compress`.
    """

    def __init__(self, inner: Encoded, width: int = 1) -> None:
        self.size = inner.size
        self._inner = inner
        self._width = width

    def cut(self, start: int, stop: int) -> Wire:
        """Return the payload for the elements [start, stop)."""
        wire = self._inner.cut(start, stop)
        if worth_compressing(wire.payload, self._width):
            payload = compress(wire.codec, wire.payload, self._width)
            if len(payload) < len(wire.payload):
                return Wire(Codec.LZ4, wire.parameter, payload)
        return wire

    def decoded(self) -> Decoded:
        """Return what the other form means."""
        return self._inner.decoded()
