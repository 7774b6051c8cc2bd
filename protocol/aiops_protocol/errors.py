"""Errors of the wire: what can be wrong with bytes, and the code each error has on the wire.

    WireError                       base; carries `code`
      LocalProtocolError            we asked for something illegal now: fix the caller
      RemoteProtocolError           the peer did: close the connection, tell it the code
        BadMagic                    the peer does not speak aiops at all
        UnsupportedVersion          no protocol version in common
        MalformedFrame              lengths, ranges or fields contradict each other
        FrameTooLarge               a length above the agreed limit
        ChecksumMismatch            the CRC-32C of prefix or body is wrong
        UnexpectedFrame             legal bytes in a state or direction that forbids them
        UnknownKind                 a critical kind or flag that this version does not know
        HandshakeRefused            the other side closed the door and said why

`ErrorCode` numbers every refusal that travels: those above and those that a role
answers (not owned, fenced, ...). What the roles make of them is not this file's business.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

__all__ = [
    "BadMagic",
    "ChecksumMismatch",
    "ErrorCode",
    "FrameTooLarge",
    "HandshakeRefused",
    "LocalProtocolError",
    "MalformedFrame",
    "RemoteProtocolError",
    "UnexpectedFrame",
    "UnknownKind",
    "UnsupportedVersion",
    "WireError",
]


class ErrorCode(IntEnum):
    """Numbers of refusals on the wire; SPEC.md lists the same ones. 0 means no error."""

    OK = 0
    # The bytes are wrong: the connection ends.
    BAD_MAGIC = 1
    UNSUPPORTED_VERSION = 2
    MALFORMED_FRAME = 3
    FRAME_TOO_LARGE = 4
    CHECKSUM_MISMATCH = 5
    UNEXPECTED_FRAME = 6
    UNKNOWN_KIND = 7
    # The handshake or registration is refused.
    AUTHENTICATION_FAILED = 16
    WRONG_JOB = 17
    WRONG_ROLE = 18
    NAME_IN_USE = 19
    STALE_INCARNATION = 20
    CLUSTER_FULL = 21
    SHUTTING_DOWN = 22
    TOO_MANY_CONNECTIONS = 23
    JOB_FAILED = 24
    TOO_MANY_RESTARTS = 25
    # One request is refused; the connection lives on.
    UNKNOWN_TABLE = 32
    TABLE_MISMATCH = 33
    KEY_RANGE_NOT_OWNED = 34
    WRONG_EPOCH = 35
    NOT_INITIALISED = 36
    NOT_FINITE = 37
    SIZE_MISMATCH = 38
    OUT_OF_WINDOW = 39
    ALREADY_SEALED = 40
    ALREADY_CONTRIBUTED = 41
    OPTIMIZER_FAILED = 42
    OUT_OF_MEMORY = 43
    INVALID_SETTING = 44
    NOT_A_MEMBER = 45
    TIMED_OUT = 46
    MALFORMED_PAYLOAD = 47
    KEYS_NOT_CACHED = 48
    FUNCTION_FAILED = 49
    INTERNAL = 63


class WireError(Exception):
    """Base of everything this package raises; `code` is what the peer is told."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class LocalProtocolError(WireError):
    """The caller asked this side to send something that is illegal now."""


class RemoteProtocolError(WireError):
    """The peer sent something that no correct peer sends; the connection must end."""

    code = ErrorCode.MALFORMED_FRAME


class BadMagic(RemoteProtocolError):
    """The first bytes are not those of this protocol."""

    code = ErrorCode.BAD_MAGIC


class UnsupportedVersion(RemoteProtocolError):
    """The two sides have no protocol version in common."""

    code = ErrorCode.UNSUPPORTED_VERSION


class MalformedFrame(RemoteProtocolError):
    """Fields of a frame contradict each other or the limits of their types."""

    code = ErrorCode.MALFORMED_FRAME


class FrameTooLarge(RemoteProtocolError):
    """A length field is above the limit; nothing was allocated for it."""

    code = ErrorCode.FRAME_TOO_LARGE


class ChecksumMismatch(RemoteProtocolError):
    """A CRC-32C is wrong: the bytes were damaged and framing is lost."""

    code = ErrorCode.CHECKSUM_MISMATCH


class UnexpectedFrame(RemoteProtocolError):
    """A well-formed frame that this side must not receive in this state."""

    code = ErrorCode.UNEXPECTED_FRAME


class UnknownKind(RemoteProtocolError):
    """A critical kind or flag that this version of the protocol does not define."""

    code = ErrorCode.UNKNOWN_KIND


class HandshakeRefused(RemoteProtocolError):
    """The other side refused the connection; `reason` is the code it gave."""

    code = ErrorCode.UNEXPECTED_FRAME

    def __init__(self, message: str, reason: ErrorCode) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the reason on the way to another process."""
        return type(self), (self.message, self.reason)
