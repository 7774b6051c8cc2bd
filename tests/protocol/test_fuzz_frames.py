"""Damaged frames by the ten thousand: a frame or a documented error comes out, nothing else.

`AIOPS_FUZZ_FRAMES` sets how many, `AIOPS_FUZZ_SEED` which; `make fuzz` takes a million.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import vectors
from aiops_protocol.buffer import Destination
from aiops_protocol.connection import Connection, State
from aiops_protocol.control import NodeReport
from aiops_protocol.errors import ChecksumMismatch, ErrorCode, RemoteProtocolError
from aiops_protocol.frames import Control, Flag, Frame, Goodbye, Kind, Pull, Push, Value
from aiops_protocol.greeting import Purpose, Role
from aiops_protocol.handshake import ClientHandshake, ServerHandshake
from aiops_protocol.limits import PAYLOAD_BYTES_MAX
from handshakes import JOB, arrive
from wire_bytes import cut, mutated, received, resealed, sealed, wire

COUNT = int(os.environ.get("AIOPS_FUZZ_FRAMES", "60000"))
SEED = int(os.environ.get("AIOPS_FUZZ_SEED", "20"))
SHARES = 6  # tests, so that a failure is found soon and named by few numbers

ALLOWED = {code for code in ErrorCode if 0 < code < 16}


def larger_frames() -> list[Frame]:
    """Frames that take the ways of large ones: split receiving, long metadata, long lists."""
    keys = np.arange(0, 4000, 2, dtype="<u8").tobytes()
    marks = np.arange(0, 3000, dtype="<u8").tobytes()
    return [
        Push(request_id=1, seq=1, begin=0, end=5000, payload=bytes(20_000)),
        Push(request_id=1, keys=keys, flags=int(Flag.KEY_LIST), payload=bytes(8000)),
        Push(
            request_id=1,
            keys=keys,
            signature=bytes(16),
            flags=int(Flag.KEY_LIST | Flag.KEY_SIGNATURE),
            payload=bytes(8000),
        ),
        Pull(request_id=1, ranges=marks, end=2999),
        Pull(request_id=1, keys=keys, flags=int(Flag.KEY_LIST)),
        Value(request_id=1, payload=bytes(17_000)),
        Control(NodeReport(spans=[("pull", i, 1, i) for i in range(900)])),
    ]


def small_frames(*names: str) -> list[bytes]:
    """The golden vectors of these files, without the few long ones."""
    found = [bytes.fromhex(vector["hex"]) for name in names for vector in vectors.load(name)]
    return [data for data in found if len(data) < 1000]


GOOD = small_frames("frames.json", "control.json")
BAD = small_frames("malformed.json")
LARGE = [wire(frame) for frame in larger_frames()]


class Pool:
    """A destination as servers have one: memory that is used again and again."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(PAYLOAD_BYTES_MAX))

    def __call__(self, frame: Frame, size: int) -> memoryview | None:
        assert size <= PAYLOAD_BYTES_MAX
        assert frame.kind in Kind
        return self.memory[:size] if frame.kind is Kind.PUSH else None


def damaged(chance: random.Random) -> bytes:
    """One or two frames with damage; half of them with checksums that are right again."""
    (base,) = chance.choices((GOOD, BAD, LARGE), (90, 7, 3))
    data = mutated(chance.choice(base), chance)
    if chance.random() < 0.5:
        data = resealed(data, fit=chance.random() < 0.7)
    return data if chance.random() < 0.9 else data + chance.choice(GOOD)


def take(chunks: list[bytes], destination: Destination | None = None) -> list[Frame] | None:
    """The frames that the bytes make; `None` after an error of a documented kind."""
    try:
        return received(chunks, destination)
    except RemoteProtocolError as error:
        return None if error.code in ALLOWED else [Goodbye(-1, f"undocumented {error!r}")]


@pytest.mark.parametrize("share", range(SHARES))
def test_fuzz_damaged_frames(share: int) -> None:
    chance = random.Random(f"{SEED} {share}")
    pool = Pool()
    frames = refused = 0
    for number in range(COUNT // SHARES):
        data = damaged(chance)
        chunks = cut(data, [chance.randrange(len(data) + 1)]) if number % 4 else [data]
        try:
            decoded = take(chunks, pool)
            refused += decoded is None
            for frame in decoded or ():
                frames += 1
                again = wire(frame)  # what is accepted can be said again
                if not isinstance(frame, Control | Goodbye):  # NaN, and bytes that were no UTF-8
                    assert received([again]) == [frame]
        except Exception as error:
            error.add_note(f"seed {SEED} share {share} frame {number}: {data.hex()}")
            raise
    # Both ways are taken often, or the damage is too mild or too wild to test anything.
    assert frames > COUNT // SHARES // 20
    assert refused > COUNT // SHARES // 4


def test_fuzz_noise() -> None:
    """Bytes that never were a frame, and noise behind a good prefix."""
    chance = random.Random(SEED)
    for _ in range(COUNT // 30):
        noise = chance.randbytes(chance.randrange(200))
        for data in (noise, b"\x8bAPS" + noise, resealed(b"\x8bAPS\x01" + noise, fit=True)):
            assert all(frame.kind in Kind for frame in take([data]) or ())


def test_fuzz_handshakes() -> None:
    """Damaged greetings, hellos and welcomes: accepted, refused or an error, and no crash."""
    chance = random.Random(SEED)
    hellos = [bytes.fromhex(vector["hex"]) for vector in vectors.load("handshake.json")]
    damaged = 0
    for number in range(COUNT // 6):
        data = mutated(chance.choice(hellos), chance)
        if number % 2:  # so that the checks behind the checksum are reached
            data = sealed(data[:128] if len(data) > 48 else data.ljust(48, b"\0"))
        server = ServerHandshake(Role.SERVER, bytes(range(32)), JOB)
        client = ClientHandshake(Role.WORKER, Purpose.DATA, bytes(32), expects=Role.SERVER)
        for connection in (Connection(server), Connection(client)):
            try:
                arrive(connection, data)
                assert connection.state is not State.FAILED
            except ChecksumMismatch:
                damaged += 1
                assert connection.take_replies() == []
            except RemoteProtocolError:
                pass
    assert damaged > COUNT // 20
