"""A push as bytes: this project's frame against pickle, JSON, npz and msgpack.

Run it with ``python benchmarks/serialisation.py``. Every format carries the same facts (table, key
range, clock, sequence number and float32 values), in the same run, in turns; the times are medians
of the rounds, from the object to buffers ready for a socket and back to a float32 array. The frame
also computes and checks two CRC-32C; the others check nothing.

The figures in docs/decisions/0003-serialisation.md come from here.
"""

from __future__ import annotations

import io
import json
import pickle  # for comparison only: decoding it runs whatever code the peer put in
import statistics
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from aiops_protocol.checksum import crc32c
from aiops_protocol.codec import decode_body, decode_prefix, encode
from aiops_protocol.frames import Push
from aiops_protocol.limits import PREFIX_BYTES
from aiops_protocol.payload import Float32Array, as_bytes, as_float32

ROUNDS = 15
SECONDS_PER_ROUND = 0.02
SIZES = {"100 B": 100, "1 MB": 1 << 20}
FACTS = {"table": 7, "begin": 4096, "clock": 120, "seq": 31}

Buffers = Sequence[bytes | bytearray | memoryview]


@dataclass(frozen=True, slots=True)
class Format:
    """One way to turn a push into buffers and back."""

    name: str
    encode: Callable[[Float32Array], Buffers]
    decode: Callable[[Buffers], Float32Array]


def frame_encode(values: Float32Array) -> Buffers:
    return encode(
        Push(
            request_id=31,
            seq=FACTS["seq"],
            clock=FACTS["clock"],
            table=FACTS["table"],
            begin=FACTS["begin"],
            end=FACTS["begin"] + values.size,
            payload=as_bytes(values),
        )
    )


def frame_decode(buffers: Buffers) -> Float32Array:
    head, payload = buffers
    prefix = decode_prefix(head)
    meta = memoryview(head)[PREFIX_BYTES:]
    if crc32c(payload, crc32c(meta)) != prefix.body_crc:
        raise ValueError("checksum")
    push = decode_body(prefix, meta, payload)
    assert isinstance(push, Push)
    return as_float32(push.payload)


def pickle_encode(values: Float32Array) -> Buffers:
    return [pickle.dumps({**FACTS, "values": values}, protocol=5)]


def pickle_decode(buffers: Buffers) -> Float32Array:
    return _values(pickle.loads(buffers[0]))


def pickle_apart_encode(values: Float32Array) -> Buffers:
    apart: list[pickle.PickleBuffer] = []
    head = pickle.dumps({**FACTS, "values": values}, protocol=5, buffer_callback=apart.append)
    return [head, *(buffer.raw() for buffer in apart)]


def pickle_apart_decode(buffers: Buffers) -> Float32Array:
    return _values(pickle.loads(buffers[0], buffers=buffers[1:]))


def json_encode(values: Float32Array) -> Buffers:
    return [json.dumps({**FACTS, "values": values.tolist()}).encode()]


def json_decode(buffers: Buffers) -> Float32Array:
    return np.array(json.loads(bytes(buffers[0]))["values"], np.float32)


def npz_encode(values: Float32Array) -> Buffers:
    file = io.BytesIO()
    np.savez(file, values=values, facts=np.array(list(FACTS.values()), np.uint64))
    return [file.getbuffer()]


def npz_decode(buffers: Buffers) -> Float32Array:
    with np.load(io.BytesIO(buffers[0]), allow_pickle=False) as arrays:
        arrays["facts"]
        return _values(arrays)


def msgpack_encode(values: Float32Array) -> Buffers:
    return [msgspec.msgpack.encode({**FACTS, "values": as_bytes(values)})]


def msgpack_decode(buffers: Buffers) -> Float32Array:
    return as_float32(msgspec.msgpack.decode(buffers[0])["values"])


def _values(message: Any) -> Float32Array:
    values: Float32Array = message["values"]
    return values


FORMATS = (
    Format("aiops frame", frame_encode, frame_decode),
    Format("pickle 5", pickle_encode, pickle_decode),
    Format("pickle 5, values apart", pickle_apart_encode, pickle_apart_decode),
    Format("JSON", json_encode, json_decode),
    Format("npz", npz_encode, npz_decode),
    Format("msgpack, values as bytes", msgpack_encode, msgpack_decode),
)


def size_of(buffers: Buffers) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def seconds_each(action: Callable[[], object]) -> float:
    timer = timeit.Timer(action)
    loops, seconds = 1, timer.timeit(1)
    while seconds < SECONDS_PER_ROUND:
        loops *= 2
        seconds = timer.timeit(loops)
    return seconds / loops


def compare(size: int) -> list[tuple[str, float, float, int]]:
    """Return name, median encode and decode seconds, and bytes, of each format."""
    values = np.random.default_rng(0).standard_normal(size // 4).astype(np.float32)
    encoded = [form.encode(values) for form in FORMATS]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in FORMATS]
    for form, buffers in zip(FORMATS, encoded, strict=True):
        assert form.decode(buffers).tobytes() == values.tobytes(), form.name
    for _ in range(ROUNDS):
        for form, buffers, (encoding, decoding) in zip(FORMATS, encoded, times, strict=True):
            encoding.append(seconds_each(partial(form.encode, values)))
            decoding.append(seconds_each(partial(form.decode, buffers)))
    return [
        (form.name, statistics.median(encoding), statistics.median(decoding), size_of(buffers))
        for form, buffers, (encoding, decoding) in zip(FORMATS, encoded, times, strict=True)
    ]


def main() -> None:
    for title, size in SIZES.items():
        rows = compare(size)
        ours = rows[0][1] + rows[0][2]
        print(f"\n{title} of float32; time is encode + decode, relative to the frame")
        print(f"{'format':26} {'time':>8} {'encode us':>10} {'decode us':>10} {'overhead':>20}")
        for name, encoding, decoding, total in rows:
            extra = total - size
            print(
                f"{name:26} {(encoding + decoding) / ours:8.2f} {encoding * 1e6:10.1f} "
                f"{decoding * 1e6:10.1f} {extra:12} B {extra / size:6.2%}"
            )
        check = seconds_each(partial(crc32c, bytes(size)))
        print(f"the frame's CRC-32C of the payload takes {check * 1e6:.1f} us on each side of that")


if __name__ == "__main__":
    main()
