"""Damaged payloads of every codec: values or the documented error, and no more memory than due.

`AIOPS_FUZZ_PAYLOADS` sets how many for each decoder; `make fuzz` takes a million.
"""

from __future__ import annotations

import os
import random
import resource
import tracemalloc

import numpy as np
import pytest

import vectors
from aiops_protocol.codecs import Sparse, decode_values, split_deltas
from aiops_protocol.errors import MalformedFrame
from aiops_protocol.frames import Codec

COUNT = int(os.environ.get("AIOPS_FUZZ_PAYLOADS", "2500"))
SEED = int(os.environ.get("AIOPS_FUZZ_SEED", "20"))
VECTORS = [*vectors.load("codecs.json"), *vectors.load("malformed_codecs.json")]
MEMORY_MAX = 64 * 1024 * 1024
"""Far above what a million float32 and their places need, far below what a length could ask for."""


TRACED = 5000
"""So many are traced, which takes three times as long; the rest shows in the process's size."""


def traced_peak() -> int:
    """Stop tracing; the most memory that was in use."""
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def resident_bytes() -> int:
    """The most memory that this process has had (Linux: in KiB)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def mutated(payload: bytes, chance: random.Random) -> bytes:
    """The payload with a few bytes changed, cut off, added or repeated."""
    data = bytearray(payload)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                del data[at : at + chance.randrange(1, 9)]
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                data[at : at + 4] = chance.choice(
                    (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\xc0\x7f")
                )
            case _:
                data[at:at] = data[at : at + 8]
    return bytes(data)


def mutated_number(number: int, most: int, chance: random.Random) -> int:
    if chance.random() < 0.7:
        return number
    drawn = chance.choice((number + chance.randrange(-2, 3), number ^ 1 << chance.randrange(32)))
    return min(abs(drawn), most)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.DELTAS])
def test_fuzz_damaged_payloads(codec: Codec) -> None:
    chance = random.Random(f"{SEED} {codec}")
    mine = [vector for vector in VECTORS if vector["codec"] == codec.name]
    good = refused = peak = 0
    before = resident_bytes()
    tracemalloc.start()
    with np.errstate(all="ignore"):  # scales may be anything
        for number in range(COUNT):
            if number == TRACED:
                peak = traced_peak()
            vector = chance.choice(mine)
            payload = mutated(bytes.fromhex(vector["payload"]), chance)
            count = mutated_number(vector["count"], 2**21, chance)
            parameter = mutated_number(vector["parameter"], 2**33, chance)
            try:
                decoded = decode_values(codec, payload, count, parameter)
            except MalformedFrame:
                refused += 1
                continue
            good += 1
            if isinstance(decoded, Sparse):
                assert decoded.size == count
                assert decoded.indices.size == decoded.values.size <= count
                if count and decoded.indices.size:
                    assert 0 <= decoded.indices[0] <= decoded.indices[-1] < count
                    assert (np.diff(decoded.indices) > 0).all()
                decoded = decoded.values
            else:
                assert decoded.size == count
            assert decoded.dtype == np.float32
    peak = traced_peak() if COUNT <= TRACED else peak
    assert peak < MEMORY_MAX
    assert resident_bytes() < before + 4 * MEMORY_MAX
    assert refused > COUNT // 4
    assert good > 0


def test_fuzz_damaged_deltas() -> None:
    chance = random.Random(SEED)
    (golden,) = [bytes.fromhex(vector["payload"]) for vector in VECTORS if "steps" in vector]
    good = refused = 0
    for _ in range(COUNT):
        try:
            steps = split_deltas(mutated(golden, chance))
        except MalformedFrame:
            refused += 1
            continue
        good += 1
        assert all(step.codec is not Codec.DELTAS for step in steps)
    assert good > COUNT // 50
    assert refused > COUNT // 50
