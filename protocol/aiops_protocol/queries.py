"""What a QUERY asks and what a KNOWN tells: the payloads of the two, as values.

A sender that does not know what has become of its requests asks before it repeats them: an entry
takes 16 bytes, a repeated push up to a mebibyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from aiops_protocol.errors import MalformedFrame
from aiops_protocol.payload import Buffer

__all__ = [
    "OWN_CONNECTION",
    "UNKNOWN",
    "WAITS",
    "Asked",
    "Told",
    "ask",
    "asked",
    "mark",
    "tell",
    "told",
]

OWN_CONNECTION: Final = 0
"""In place of the mark of another connection: the one that carries the QUERY."""

UNKNOWN: Final = 0xFFFF_FFFF
"""Never arrived, or forgotten: send it again."""

WAITS: Final = 0xFFFF_FFFE
"""It is here and waits by rule of consistency; its answer will come."""


class Asked(NamedTuple):
    """`connection`, and (request id, seq) of each request; seq is 0 for a pull.

    A connection is named by its mark: the first 8 bytes of the nonce in its HELLO.
    """

    connection: int
    entries: list[tuple[int, int]]


class Told(NamedTuple):
    """Bytes that have arrived over the connection, and what has become of each request.

    `received` is 0 if the server has no such connection (any more). An outcome is `WAITS`,
    `UNKNOWN`, or else the mutation is settled and this is the code of its answer: 0 for applied.
    """

    received: int
    outcomes: list[int]


def mark(nonce: bytes) -> int:
    """Return the mark of a connection from the nonce of its HELLO."""
    return int.from_bytes(nonce[:8], "little")


def ask(connection: int, entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the payload of a QUERY."""
    numbers = [connection, *(number for entry in entries for number in entry)]
    return np.asarray(numbers, "<u8").tobytes()


def asked(payload: Buffer) -> Asked:
    """Read the payload of a QUERY; `MalformedFrame` if it has another size than any."""
    if len(payload) % 16 != 8:
        raise MalformedFrame(f"{len(payload)} bytes of payload in a Query")
    connection, *numbers = np.frombuffer(payload, "<u8").tolist()
    return Asked(connection, list(zip(numbers[::2], numbers[1::2], strict=True)))


def tell(received: int, outcomes: Sequence[int]) -> bytes:
    """Return the payload of a KNOWN."""
    return received.to_bytes(8, "little") + np.asarray(outcomes, "<u4").tobytes()


def told(payload: Buffer) -> Told:
    """Read the payload of a KNOWN; `MalformedFrame` if it is too short."""
    if len(payload) < 8:
        raise MalformedFrame(f"{len(payload)} bytes of payload in a Known")
    view = memoryview(payload)
    received = int(np.frombuffer(view[:8], "<u8")[0])
    return Told(received, np.frombuffer(view[8:], "<u4").tolist())
