"""Bytes of frames for tests: made by hand, cut, damaged and sealed again."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Iterable, Iterator

import msgspec
from crc32c import crc32c

from aiops_protocol.buffer import NEED_DATA, Destination, ReceiveBuffer
from aiops_protocol.codec import decode_body, decode_prefix, encode
from aiops_protocol.frames import Frame, Reply, Request, RingFrame

PREFIX_BYTES = 24


def wire(*frames: Frame) -> bytes:
    """The bytes of frames, one after the other."""
    return b"".join(bytes(part) for frame in frames for part in encode(frame))


def owned(frame: Frame) -> Frame:
    """The frame with memory of its own, so that it can be kept and compared."""
    if isinstance(frame, Request):
        copies = {name: bytes(getattr(frame, name)) for name in ("ranges", "keys", "payload")}
        return msgspec.structs.replace(frame, **copies)
    if isinstance(frame, Reply | RingFrame):
        return msgspec.structs.replace(frame, payload=bytes(frame.payload))
    return frame


def decode(data: bytes) -> Frame:
    """Decode exactly one whole frame, as the plainest receiver would."""
    prefix = decode_prefix(data)
    meta_end = PREFIX_BYTES + prefix.meta_bytes
    assert len(data) == meta_end + prefix.payload_bytes
    assert crc32c(data[PREFIX_BYTES:]) == prefix.body_crc
    return owned(decode_body(prefix, data[PREFIX_BYTES:meta_end], data[meta_end:]))


def handmade(
    kind: int,
    meta: bytes = b"",
    payload: bytes = b"",
    *,
    flags: int = 0,
    version: int = 1,
    magic: bytes = b"\x8bAPS",
    meta_bytes: int | None = None,
    payload_bytes: int | None = None,
    damage_prefix: int = 0,
    damage_body: int = 0,
) -> bytes:
    """A frame of any content whose checksums are right, unless they are to be damaged."""
    prefix = struct.pack(
        "<4sBBHIII",
        magic,
        version,
        kind,
        flags,
        len(meta) if meta_bytes is None else meta_bytes,
        len(payload) if payload_bytes is None else payload_bytes,
        crc32c(meta + payload) ^ damage_body,
    )
    return prefix + struct.pack("<I", crc32c(prefix) ^ damage_prefix) + meta + payload


def resealed(data: bytes, *, fit: bool = False) -> bytes:
    """The same bytes with right checksums, so that the checks behind them are reached.

    With `fit`, the payload's length is made what is there, so that the frame is whole again.
    """
    if len(data) < PREFIX_BYTES:
        return data
    (meta_bytes, payload_bytes) = struct.unpack_from("<II", data, 8)
    if fit:
        payload_bytes = max(len(data) - PREFIX_BYTES - meta_bytes, 0) % 2**32
    body = data[PREFIX_BYTES : PREFIX_BYTES + meta_bytes + payload_bytes]
    prefix = data[:12] + struct.pack("<II", payload_bytes, crc32c(body))
    return prefix + struct.pack("<I", crc32c(prefix)) + data[PREFIX_BYTES:]


def sealed(message: bytes) -> bytes:
    """A handshake message of any content with a right checksum in its last four bytes."""
    return message[:-4] + struct.pack("<I", crc32c(message[:-4]))


def receive(buffer: ReceiveBuffer, chunks: Iterable[bytes]) -> Iterator[Frame]:
    """Let chunks arrive one by one and take every frame as soon as it is whole."""
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            memory = buffer.get_buffer()
            count = min(len(memory), len(rest))
            assert count, "get_buffer returned empty memory"
            memory[:count] = rest[:count]
            rest = rest[count:]
            buffer.received(count)
            while (frame := buffer.next_frame()) is not NEED_DATA:
                yield owned(frame)


def received(chunks: Iterable[bytes], destination: Destination | None = None) -> list[Frame]:
    """The frames that these chunks make."""
    return list(receive(ReceiveBuffer(destination), chunks))


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Cut bytes at these places."""
    marks = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[low:high] for low, high in itertools.pairwise(marks)]


INTERESTING = (0, 1, 7, 8, 127, 128, 255, 2**15, 2**16 - 1, 2**20, 2**31, 2**32 - 1, 2**64 - 1)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to three small damages of the kinds that find bugs."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        # Mostly behind the prefix, where damage is not seen at once.
        start = min(PREFIX_BYTES, len(damaged)) if chance.random() < 0.9 else 0
        place = chance.randrange(start, len(damaged) + 1)
        match chance.randrange(8):
            case 0 | 1 if damaged:
                damaged[place % len(damaged)] ^= 1 << chance.randrange(8)
            case 2 | 3 if damaged:
                damaged[place % len(damaged)] = chance.randrange(256)
            case 4:  # a field takes an extreme value
                width = chance.choice((1, 2, 4, 8))
                at = chance.choice((5, 6, 8, 12, *[place - place % width] * 12))
                value = chance.choice(INTERESTING) % (1 << 8 * width)
                damaged[at : at + width] = value.to_bytes(width, "little")
            case 5:
                damaged[place:place] = chance.randbytes(chance.randint(1, 9))
            case 6:  # a piece is written twice
                damaged[place:place] = damaged[place : place + chance.randint(1, 40)]
            case _:
                del damaged[place : place + chance.choice((1, 4, 8, 16, len(damaged)))]
    return bytes(damaged)
