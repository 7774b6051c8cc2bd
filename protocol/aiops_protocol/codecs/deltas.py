"""DELTAS: what a replica is to add, one step for each version, each in a form of its own."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from aiops_protocol.codecs.form import Wire, need
from aiops_protocol.frames import Codec
from aiops_protocol.payload import Buffer

__all__ = ["STEP_HEADER_BYTES", "join_deltas", "split_deltas"]

HEADER: Final = struct.Struct("<BBHII")
STEP_HEADER_BYTES: Final = HEADER.size


def join_deltas(steps: Iterable[Wire]) -> bytes:
    """Return the payload of these steps, in their order."""
    parts: list[Buffer] = []
    for codec, parameter, payload in steps:
        parts += (HEADER.pack(codec, 0, 0, parameter, len(payload)), payload)
        parts.append(bytes(-len(payload) % 4))
    return b"".join(parts)


def split_deltas(payload: Buffer) -> list[Wire]:
    """Return the steps of a DELTAS payload; what is in each is for `decode_values`.

    Raises
    ------
    MalformedFrame
        Lengths that contradict each other, or a form that a step cannot have.
    """
    view = memoryview(payload)
    steps: list[Wire] = []
    at = 0
    while at < len(view):
        need(len(view) - at >= HEADER.size, "DELTAS end within a header")
        codec, zero, zeros, parameter, size = HEADER.unpack_from(view, at)
        at += HEADER.size
        padded = size + -size % 4
        need(zero == zeros == 0 and len(view) - at >= padded, "DELTAS end within a step")
        need(codec < Codec.DELTAS, f"codec {codec} in a step of DELTAS")
        steps.append(Wire(Codec(codec), parameter, view[at : at + size]))
        at += padded
    return steps
