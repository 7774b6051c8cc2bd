"""ReceiveBuffer: bytes in, whole frames out.

It hands out the memory to receive into. Small frames are parsed many at a time from one
staging buffer, and their payloads are views of it that hold until the next `get_buffer`.
The payload of a large frame is received straight into the memory that `destination` names
(the caller's array, a pooled segment), so user space copies at most what was already staged.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

import numpy as np

from aiops_protocol.checksum import crc32c, joined
from aiops_protocol.codec import MAGIC, Prefix, announce, decode_body, decode_prefix
from aiops_protocol.errors import BadMagic, ChecksumMismatch, LocalProtocolError
from aiops_protocol.frames import Frame
from aiops_protocol.limits import PREFIX_BYTES, STAGING_BYTES

__all__ = ["NEED_DATA", "Destination", "NeedData", "ReceiveBuffer"]


class NeedData(Enum):
    """The type of `NEED_DATA`, so that type checkers can narrow it."""

    NEED_DATA = "need data"


NEED_DATA: Final = NeedData.NEED_DATA
"""No whole frame yet: the commonest outcome of parsing, so a value and not an exception."""

Destination: TypeAlias = Callable[[Frame, int], memoryview | None]
"""Called with a frame whose payload is still on its way and its size in bytes; returns the
writable memory of exactly that size to receive it into, or `None` for fresh memory.

The metadata is checked but its CRC is not known yet, so what the frame says may be believed
only as far as writing into that memory goes: the frame itself follows from `next_frame`, or an
error does. A payload that arrived whole with its header is not asked about."""

LOOKAHEAD_BYTES: Final = 16 * 1024
"""How much to read after a large payload: the next header, and little of its payload, which
would have to be copied out of the staging buffer. Also the least that is offered to read into,
as long as frames are taken."""


class ReceiveBuffer:
    """Turn a stream of bytes into frames.

    Parameters
    ----------
    destination
        Where large payloads go; called once per frame whose payload is not yet whole.

    Notes
    -----
    Drive it with three things: receive into `get_buffer()`, say how much arrived with
    `received(n)`, then take frames with `next_frame()` until it returns `NEED_DATA`. After
    an exception the stream has lost its framing and the object must not be used further.
    """

    __slots__ = (
        "_checked",
        "_destination",
        "_filled",
        "_frame_prefix",
        "_meta",
        "_payload",
        "_read",
        "_staging",
        "_streaming",
        "_write",
    )

    def __init__(self, destination: Destination | None = None) -> None:
        self._destination = destination
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._read = 0  # first byte not yet parsed
        self._write = 0  # first free byte
        self._streaming = False  # the frame before this one was large: expect another
        self._payload: memoryview | None = None  # memory of a large payload being received
        self._filled = 0
        self._frame_prefix: Prefix | None = None
        self._checked = (0, 0, 0)  # of the newest large frame: metadata, all of it, payload bytes
        self._meta = b""

    @property
    def mid_frame(self) -> bool:
        """Whether an end of stream now would cut a frame in two."""
        return self._payload is not None or self._read != self._write

    def get_buffer(self) -> memoryview:
        """Return memory for the next bytes; never empty. Views of earlier frames end here."""
        if self._payload is not None and self._filled < len(self._payload):
            return self._payload[self._filled :]
        if self._read == self._write:
            self._read = self._write = 0
        elif self._write > STAGING_BYTES - LOOKAHEAD_BYTES:  # too little room to read well
            rest = self._write - self._read
            if rest == STAGING_BYTES:
                raise LocalProtocolError("frames must be taken before more bytes are received")
            self._staging[:rest] = self._staging[self._read : self._write].tobytes()
            self._read, self._write = 0, rest
        if self._streaming:
            return self._staging[self._write : self._write + LOOKAHEAD_BYTES]
        return self._staging[self._write :]

    def payload_checksum(self) -> int | None:
        """Return the CRC-32C of the payload of the newest frame; `None` if that was a small one."""
        return joined(*self._checked) if self._streaming else None

    def abandon(self, memory: memoryview) -> None:
        """Never write to this memory again: the caller wants it back.

        A payload that is being received into it, or into a part of it, goes on in fresh memory
        and its frame is delivered as if nothing had happened. Costs a copy of what has arrived;
        without effect if no payload is on its way there. Not between `get_buffer` and
        `received`, while the bytes are being put into the memory.
        """
        payload = self._payload
        if payload is not None and memory.nbytes and np.may_share_memory(memory, payload):
            fresh = _fresh_memory(len(payload))
            fresh[: self._filled] = payload[: self._filled]
            self._payload = fresh

    def received(self, count: int) -> None:
        """Note that `count` bytes were put into what `get_buffer` returned."""
        if self._payload is not None and self._filled < len(self._payload):
            self._filled += count
        else:
            self._write += count

    def next_frame(self) -> Frame | NeedData:
        """Return the next whole frame, or `NEED_DATA`.

        Raises
        ------
        RemoteProtocolError
            The bytes are not what a correct peer sends; the class says in which way.
        """
        if self._payload is not None:
            return self._finish_large()
        while True:
            staged = self._write - self._read
            if staged < PREFIX_BYTES:
                if staged:
                    self._check_magic(staged)
                return NEED_DATA
            prefix = decode_prefix(self._staging, self._read)
            body = prefix.meta_bytes + prefix.payload_bytes
            start = self._read + PREFIX_BYTES
            if staged - PREFIX_BYTES >= body:
                self._read = start + body
                whole = self._staging[start : self._read]
                if crc32c(whole) != prefix.body_crc:
                    raise ChecksumMismatch(f"the CRC-32C of a frame of kind {prefix.kind} is wrong")
                if not prefix.known:
                    continue
                self._streaming = False
                return decode_body(prefix, whole[: prefix.meta_bytes], whole[prefix.meta_bytes :])
            if staged - PREFIX_BYTES < prefix.meta_bytes or self._fits_staging(body):
                return NEED_DATA
            self._begin_large(prefix, start)
            return NEED_DATA

    def _check_magic(self, staged: int) -> None:
        # Refuse a stranger at its first bytes: it may never send a whole prefix.
        head = bytes(self._staging[self._read : self._read + min(staged, len(MAGIC))])
        if not MAGIC.startswith(head):
            raise BadMagic(f"the peer sent {head.hex()}, not the start of an aiops frame")

    def _fits_staging(self, body: int) -> bool:
        # A frame that is small against the staging buffer is cheaper to await than to route.
        return PREFIX_BYTES + body <= STAGING_BYTES // 4

    def _begin_large(self, prefix: Prefix, start: int) -> None:
        meta_end = start + prefix.meta_bytes
        self._meta = bytes(self._staging[start:meta_end])
        memory = None
        announced = announce(prefix, self._meta)  # also checks: no memory for nonsense
        if announced is not None and self._destination is not None:
            memory = self._destination(announced, prefix.payload_bytes)
        if memory is None:
            memory = _fresh_memory(prefix.payload_bytes)
        elif memory.readonly or memory.itemsize != 1 or memory.shape != (prefix.payload_bytes,):
            raise LocalProtocolError(
                f"{announced}: the memory for its payload is not {prefix.payload_bytes} bytes"
            )
        staged = self._staging[meta_end : self._write]
        memory[: len(staged)] = staged
        self._payload = memory
        self._filled = len(staged)
        self._frame_prefix = prefix
        self._read = self._write = 0

    def _finish_large(self) -> Frame | NeedData:
        payload, prefix = self._payload, self._frame_prefix
        assert payload is not None
        assert prefix is not None
        if self._filled < len(payload):
            return NEED_DATA
        self._payload = self._frame_prefix = None
        self._streaming = True
        before = crc32c(self._meta)
        if crc32c(payload, before) != prefix.body_crc:
            raise ChecksumMismatch(f"the CRC-32C of a frame of kind {prefix.kind} is wrong")
        self._checked = (before, prefix.body_crc, len(payload))
        if not prefix.known:
            return self.next_frame()
        return decode_body(prefix, self._meta, payload)


def _fresh_memory(size: int) -> memoryview:
    # Not zeroed: the kernel gives pages only as bytes arrive, so a length alone costs nothing.
    return np.empty(size, np.uint8).data
