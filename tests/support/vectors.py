"""The golden vectors in `protocol/vectors/`: read, made into frames, described, filled in.

Run as a program it computes the bytes of every vector that has none yet (see the README there):

    PYTHONPATH=protocol python tests/support/vectors.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from aiops_protocol import greeting
from aiops_protocol.codec import encode
from aiops_protocol.control import ControlMessage
from aiops_protocol.frames import (
    Control,
    Flag,
    Frame,
    Goodbye,
    Ping,
    Pong,
    Reply,
    Request,
    RingFrame,
)

FOLDER = Path(__file__).resolve().parents[2] / "protocol" / "vectors"
FILES = ("frames.json", "control.json", "handshake.json", "malformed.json")

KINDS: dict[str, Any] = {cls.kind.name: cls for cls in Frame.__args__}
HANDSHAKE: dict[str, tuple[type[msgspec.Struct], Callable[[Any], bytes], Callable[..., Any]]] = {
    "GREETING": (greeting.Greeting, greeting.encode_greeting, greeting.decode_greeting),
    "HELLO": (greeting.Hello, greeting.encode_hello, greeting.decode_hello),
    "WELCOME": (greeting.Welcome, greeting.encode_welcome, greeting.decode_welcome),
}
_WORDS = {"CODEC_PARAMETERS": "codec_parameters", "DEADLINE": "deadline_ms"} | {
    "BASE_VERSION": "base_version"
}
_ARRAYS = {"float32": "<f4", "uint32": "<u4"}

Vector = dict[str, Any]


def load(name: str) -> list[Vector]:
    """All vectors of a file."""
    vectors: list[Vector] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return vectors


def save(name: str, vectors: list[Vector]) -> None:
    """Write a file: one line for each part of a vector, so that a diff can be read."""
    blocks = []
    for vector in vectors:
        lines = [f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in vector.items()]
        blocks.append("  {\n" + ",\n".join(lines) + "\n  }")
    text = "[\n" + ",\n".join(blocks) + "\n]\n"
    (FOLDER / name).write_text(text, encoding="utf-8")


def _payload(described: dict[str, Any] | None) -> bytes:
    match described:
        case None:
            return b""
        case {"text": str(text)}:
            return text.encode()
        case {"hex": str(digits)}:
            return bytes.fromhex(digits)
        case _:
            ((name, values),) = described.items()
            return np.array(values, _ARRAYS[name]).tobytes()


def _unwritten(value: Any) -> Any:
    # JSON has no bytes: in a control message they are written as {"bytes": their text}.
    return value["bytes"].encode() if isinstance(value, dict) and set(value) == {"bytes"} else value


def frame_of(vector: Vector) -> Frame:
    """The frame that a vector describes."""
    cls = KINDS[vector["kind"]]
    fields = dict(vector["fields"])
    if cls is Control:
        packed = msgspec.msgpack.encode({name: _unwritten(value) for name, value in fields.items()})
        return Control(msgspec.msgpack.decode(packed, type=ControlMessage, strict=False))
    if cls in (Ping, Pong, Goodbye):
        return cls(**fields)  # type: ignore[no-any-return]
    fields["payload"] = _payload(fields.pop("payload", None))
    if issubclass(cls, Request):
        fields["flags"] = sum(int(Flag[name]) for name in fields["flags"])
        fields["keys"] = np.array(fields.pop("keys", []), "<u8").tobytes()
        fields["signature"] = bytes.fromhex(fields.pop("signature", ""))
        pairs = fields.pop("ranges")
        if pairs:
            fields["begin"], fields["end"] = pairs[0][0], pairs[-1][1]
        fields["ranges"] = np.array(pairs, "<u8").tobytes() if len(pairs) > 1 else b""
    return cls(**fields)  # type: ignore[no-any-return]


def described(frame: Frame, like: Vector) -> dict[str, Any]:
    """The fields of a frame in the form of the vectors; the payload as `like` writes it."""
    if isinstance(frame, Control):
        message = msgspec.msgpack.decode(msgspec.msgpack.encode(frame.message), strict=False)
        text = json.dumps(message, default=lambda value: {"bytes": value.decode()})
        return json.loads(text)  # type: ignore[no-any-return]
    fields = msgspec.structs.asdict(frame)
    if isinstance(frame, Request | Reply | RingFrame):
        fields["payload"] = _described_payload(bytes(frame.payload), like["fields"]["payload"])
    if isinstance(frame, Reply):
        del fields["flags"]
    if isinstance(frame, Request):
        pairs = np.frombuffer(frame.ranges, "<u8").reshape(-1, 2).tolist()
        begin, end = fields.pop("begin"), fields.pop("end")
        fields["ranges"] = pairs or ([[begin, end]] if begin < end else [])
        fields["keys"] = np.frombuffer(frame.keys, "<u8").tolist()
        signature = fields.pop("signature").hex()
        if signature:
            fields["signature"] = signature
        fields["flags"] = [flag.name for flag in Flag if frame.flags & flag]
        for flag, name in _WORDS.items():
            if flag not in fields["flags"]:
                del fields[name]
    return fields


def _described_payload(payload: bytes, like: dict[str, Any]) -> dict[str, Any]:
    (name,) = like
    if name == "text":
        return {"text": payload.decode()}
    if name == "hex":
        return {"hex": payload.hex()}
    return {name: np.frombuffer(payload, _ARRAYS[name]).tolist()}


def message_of(vector: Vector) -> msgspec.Struct:
    """The handshake message that a vector describes: bytes are written as hex."""
    cls, _, _ = HANDSHAKE[vector["message"]]
    fields = {
        name: bytes.fromhex(value) if isinstance(value, str) else value
        for name, value in vector["fields"].items()
    }
    return cls(**fields)


def bytes_of(vector: Vector) -> bytes:
    """The bytes that a vector's fields make."""
    if "message" in vector:
        _, encode_message, _ = HANDSHAKE[vector["message"]]
        return encode_message(message_of(vector))
    return b"".join(bytes(part) for part in encode(frame_of(vector)))


def fill_in() -> None:
    """Compute the bytes of each vector that has none; what is there is never changed."""
    for name in FILES:
        vectors = load(name)
        for vector in vectors:
            if "fields" in vector and not vector.get("hex"):
                vector["hex"] = bytes_of(vector).hex()
        save(name, vectors)


if __name__ == "__main__":
    fill_in()
