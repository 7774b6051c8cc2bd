"""The three messages of the handshake, and their bytes.

All are of fixed size and little-endian. The last four bytes of each are the CRC-32C of all
before: a message that was damaged on the way is told apart from one that means what it says.
Reserved bytes are sent as zeros and their values are not looked at by this version. What is done
with the messages is `handshake.py`'s business.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import msgspec

from aiops_protocol.checksum import crc32c
from aiops_protocol.errors import BadMagic, ChecksumMismatch

__all__ = [
    "CRC_BYTES",
    "GREETING_BYTES",
    "HANDSHAKE_MAGIC",
    "HELLO_BYTES",
    "NO_JOB",
    "NO_PROOF",
    "WELCOME_BYTES",
    "Greeting",
    "Hello",
    "Method",
    "Purpose",
    "Role",
    "Welcome",
    "check_magic",
    "decode_greeting",
    "decode_hello",
    "decode_welcome",
    "encode_greeting",
    "encode_hello",
    "encode_welcome",
]

HANDSHAKE_MAGIC: Final = b"\x8bAIOPS\r\n"
"""Not ASCII at the start, not a TLS record; a line end that careless text modes would change."""

_GREETING: Final = struct.Struct("<8sBBBB32s")
_HELLO: Final = struct.Struct("<8sBBBBI16s32s32sIIQ12x")
_WELCOME: Final = struct.Struct("<8sHBBI16s32sIIIIQ36x")
_CRC: Final = struct.Struct("<I")

CRC_BYTES: Final = _CRC.size
GREETING_BYTES: Final = _GREETING.size + CRC_BYTES
HELLO_BYTES: Final = _HELLO.size + CRC_BYTES
WELCOME_BYTES: Final = _WELCOME.size + CRC_BYTES
NO_PROOF: Final = bytes(32)
NO_JOB: Final = bytes(16)


class Role(IntEnum):
    """What a node is."""

    SCHEDULER = 1
    SERVER = 2
    WORKER = 3
    OBSERVER = 4
    """Reads the status of a job; is not a member of it."""


class Purpose(IntEnum):
    """What a connection is for; it decides which frames may pass."""

    CONTROL = 1
    DATA = 2
    HEARTBEAT = 3
    """PING and PONG between a node and the scheduler, apart from what may be busy."""
    PEER = 4
    """Between the members of a ring."""


class Method(IntEnum):
    """Authentication methods, as bits of the greeting's offer."""

    NONE = 1
    TOKEN = 2
    """Reserved: challenge-response with a shared secret."""


class Greeting(msgspec.Struct, frozen=True):
    """Accepting side, at once after accept: who answers here, and the challenge."""

    version_min: int
    version_max: int
    methods: int
    role: int
    nonce: bytes


class Hello(msgspec.Struct, frozen=True):
    """Dialling side: who calls, to which job, with which proof.

    `job` is all zeros when the caller does not know the job yet (its join will tell).
    `rank` and `incarnation` identify a worker on a data connection and are 0 elsewhere.
    """

    version: int
    role: int
    purpose: int
    method: int
    capabilities: int
    job: bytes
    nonce: bytes
    proof: bytes
    rank: int = 0
    customers: int = 1
    incarnation: int = 0


class Welcome(msgspec.Struct, frozen=True):
    """Accepting side: come in (`code` 0), with the limits of this connection; or a refusal."""

    code: int
    version: int
    capabilities: int
    job: bytes
    proof: bytes
    epoch: int
    window_bytes: int
    window_mutations: int
    payload_bytes_max: int
    incarnation: int


def encode_greeting(greeting: Greeting) -> bytes:
    """Return the 48 bytes of a greeting."""
    return _sealed(
        _GREETING.pack(
            HANDSHAKE_MAGIC,
            greeting.version_min,
            greeting.version_max,
            greeting.methods,
            greeting.role,
            greeting.nonce,
        )
    )


def decode_greeting(data: bytes) -> Greeting:
    """Read a greeting; `BadMagic` if it is none, `ChecksumMismatch` if it was damaged."""
    _, *fields = _GREETING.unpack(_opened(data, "greeting"))
    return Greeting(*fields)


def encode_hello(hello: Hello) -> bytes:
    """Return the 128 bytes of a hello."""
    return _sealed(
        _HELLO.pack(
            HANDSHAKE_MAGIC,
            hello.version,
            hello.role,
            hello.purpose,
            hello.method,
            hello.capabilities,
            hello.job,
            hello.nonce,
            hello.proof,
            hello.rank,
            hello.customers,
            hello.incarnation,
        )
    )


def decode_hello(data: bytes) -> Hello:
    """Read a hello; `BadMagic` if it is none, `ChecksumMismatch` if it was damaged."""
    _, *fields = _HELLO.unpack(_opened(data, "hello"))
    return Hello(*fields)


def encode_welcome(welcome: Welcome) -> bytes:
    """Return the 128 bytes of a welcome or refusal."""
    return _sealed(
        _WELCOME.pack(
            HANDSHAKE_MAGIC,
            welcome.code,
            welcome.version,
            0,
            welcome.capabilities,
            welcome.job,
            welcome.proof,
            welcome.epoch,
            welcome.window_bytes,
            welcome.window_mutations,
            welcome.payload_bytes_max,
            welcome.incarnation,
        )
    )


def decode_welcome(data: bytes) -> Welcome:
    """Read a welcome; `BadMagic` if it is none, `ChecksumMismatch` if it was damaged."""
    _, code, version, _, *fields = _WELCOME.unpack(_opened(data, "welcome"))
    return Welcome(code, version, *fields)


def check_magic(head: bytes) -> None:
    """Refuse a stranger by its first bytes, however few have arrived."""
    if not HANDSHAKE_MAGIC.startswith(head[: len(HANDSHAKE_MAGIC)]):
        raise BadMagic(f"the other side does not speak aiops: it sent {head[:8]!r}{_guess(head)}")


def _sealed(message: bytes) -> bytes:
    return message + _CRC.pack(crc32c(message))


def _opened(data: bytes, what: str) -> bytes:
    """Return a message without its checksum; strangers are told apart from damage."""
    check_magic(data)
    message = data[:-CRC_BYTES]
    (crc,) = _CRC.unpack(data[-CRC_BYTES:])
    if crc32c(message) != crc:
        raise ChecksumMismatch(f"the CRC-32C of a {what} is wrong: it was damaged on the way")
    return message


def _guess(head: bytes) -> str:
    if head.startswith((b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP", b"OPTI")):
        return " (this looks like HTTP)"
    if head.startswith((b"\x16\x03", b"\x15\x03")):
        return " (this looks like TLS; aiops was told to expect a plain connection)"
    if head.startswith(b"SSH-"):
        return " (this looks like SSH)"
    return ""
