"""The format of frames as numbers: struct formats, and what each kind may carry.

Each is written once, here; `codec.py` packs and unpacks by them, SPEC.md says the same in words.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from aiops_protocol.frames import OPTIONAL_FLAGS, Flag, Kind
from aiops_protocol.limits import (
    CALL_BYTES_MAX,
    CONTROL_BYTES_MAX,
    KEYS_PER_LIST_MAX,
    PAYLOAD_BYTES_MAX,
    QUERY_ENTRIES_MAX,
    TEXT_BYTES_MAX,
    WORKERS_MAX,
)

MAGIC: Final = b"\x8bAPS"
"""The first byte is neither ASCII (HTTP, SSH) nor a TLS record type."""

PREFIX: Final = struct.Struct("<4sBBHIII")
PREFIX_CRC: Final = struct.Struct("<I")
PREFIX_WITH_CRC: Final = struct.Struct("<4sBBHIIII")
REQUEST: Final = struct.Struct("<QQQQIIHBBI")
REPLY: Final = struct.Struct("<QQQIIHBBI")
RING: Final = struct.Struct("<QQIIIIBB2xI")
RANGE: Final = struct.Struct("<QQ")
WORD: Final = struct.Struct("<Q")
GOODBYE: Final = struct.Struct("<II")

PAYLOAD_MAX: Final[Mapping[int, int]] = {
    Kind.PUSH: PAYLOAD_BYTES_MAX,
    Kind.PULL: 8 * KEYS_PER_LIST_MAX,  # a key list
    Kind.PUSH_PULL: PAYLOAD_BYTES_MAX,
    Kind.ASSIGN: PAYLOAD_BYTES_MAX,
    Kind.SEAL: 8,  # the weight of the contribution
    Kind.QUERY: 8 + 16 * QUERY_ENTRIES_MAX,
    Kind.CALL: CALL_BYTES_MAX,
    Kind.VALUE: PAYLOAD_BYTES_MAX,
    Kind.ACK: 0,
    Kind.REJECT: TEXT_BYTES_MAX,
    Kind.PARKED: 8 * WORKERS_MAX,  # ranks, and how far behind each is
    Kind.KNOWN: 8 + 4 * QUERY_ENTRIES_MAX,
    Kind.CONTROL: CONTROL_BYTES_MAX,
    Kind.PING: 0,
    Kind.PONG: 0,
    Kind.GOODBYE: TEXT_BYTES_MAX,
    Kind.RING_BEGIN: TEXT_BYTES_MAX,
    Kind.RING_PIECE: PAYLOAD_BYTES_MAX,
    Kind.RING_CONFIRM: 0,
}
"""Largest payload of each kind; a kind that is not here is not known to this version."""

# Plain integers: `&` with an IntFlag costs a microsecond and a request has few.
KEY_LIST: Final = int(Flag.KEY_LIST)
KEY_SIGNATURE: Final = int(Flag.KEY_SIGNATURE)
NAMES_KEYS: Final = KEY_LIST | KEY_SIGNATURE
WEIGHT: Final = int(Flag.WEIGHT)
WORD_FLAGS: Final = (int(Flag.CODEC_PARAMETERS), int(Flag.DEADLINE), int(Flag.BASE_VERSION))
KNOWN_OPTIONAL: Final = int(Flag.DEADLINE | Flag.BASE_VERSION)
HAS_WORDS: Final = OPTIONAL_FLAGS | Flag.CODEC_PARAMETERS.value

KNOWN_FLAGS: Final[Mapping[int, int]] = {
    **dict.fromkeys(
        (Kind.PUSH, Kind.PULL, Kind.PUSH_PULL),
        NAMES_KEYS | int(Flag.CODEC_PARAMETERS) | KNOWN_OPTIONAL,
    ),
    Kind.ASSIGN: NAMES_KEYS | int(Flag.CODEC_PARAMETERS | Flag.INITIAL) | KNOWN_OPTIONAL,
    Kind.SEAL: int(Flag.CONTRIBUTED | Flag.FINAL | Flag.WEIGHT) | KNOWN_OPTIONAL,
    Kind.QUERY: KNOWN_OPTIONAL,
    Kind.CALL: KNOWN_OPTIONAL,
}
"""Flags that a kind may have; those that are not here have none."""
