"""The handshake: three messages of fixed size before the first frame.

    accepting side -> dialling side   GREETING   48 bytes   versions, methods, nonce
    dialling side  -> accepting side  HELLO     128 bytes   version, role, job, identity, proof
    accepting side -> dialling side   WELCOME   128 bytes   or a refusal with its code

Until WELCOME nothing of variable length is read and no more than 128 bytes are held. The
authentication step is part of every handshake: with method `NONE` both proofs are zeros and
are checked to be zeros. A method computes its proofs from both nonces (an `Authenticator`).
"""

from __future__ import annotations

import hmac
import struct
from enum import Enum, IntEnum
from typing import Final, Protocol

import msgspec

from aiops_protocol.errors import (
    BadMagic,
    ErrorCode,
    HandshakeRefused,
    MalformedFrame,
    RemoteProtocolError,
    UnsupportedVersion,
)
from aiops_protocol.limits import (
    PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    WINDOW_BYTES,
    WINDOW_MUTATIONS,
)

__all__ = [
    "GREETING_BYTES",
    "HANDSHAKE_MAGIC",
    "HELLO_BYTES",
    "WELCOME_BYTES",
    "Authenticator",
    "ClientHandshake",
    "Greeting",
    "HandshakeState",
    "Hello",
    "Method",
    "NoAuthentication",
    "Purpose",
    "Role",
    "ServerHandshake",
    "Welcome",
]

HANDSHAKE_MAGIC: Final = b"\x8bAIOPS\r\n"
"""Not ASCII at the start, not a TLS record; a line end that careless text modes would change."""

_GREETING: Final = struct.Struct("<8sBBHB3x32s")
_HELLO: Final = struct.Struct("<8sBBBBI16s32s32sIIQ16x")
_WELCOME: Final = struct.Struct("<8sHBBI16s32sIIIIQ40x")

GREETING_BYTES: Final = _GREETING.size
HELLO_BYTES: Final = _HELLO.size
WELCOME_BYTES: Final = _WELCOME.size
NONCE_BYTES: Final = 32
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
    """Reserved: heartbeats of a process from a thread of their own."""


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
    return _GREETING.pack(
        HANDSHAKE_MAGIC,
        greeting.version_min,
        greeting.version_max,
        greeting.methods,
        greeting.role,
        greeting.nonce,
    )


def decode_greeting(data: bytes) -> Greeting:
    """Read a greeting; `BadMagic` if it is none."""
    magic, *fields = _GREETING.unpack(data)
    _check_magic(magic)
    return Greeting(*fields)


def encode_hello(hello: Hello) -> bytes:
    """Return the 128 bytes of a hello."""
    return _HELLO.pack(
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


def decode_hello(data: bytes) -> Hello:
    """Read a hello; `BadMagic` if it is none."""
    magic, *fields = _HELLO.unpack(data)
    _check_magic(magic)
    return Hello(*fields)


def encode_welcome(welcome: Welcome) -> bytes:
    """Return the 128 bytes of a welcome or refusal."""
    return _WELCOME.pack(
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


def decode_welcome(data: bytes) -> Welcome:
    """Read a welcome; `BadMagic` if it is none."""
    magic, code, version, _, *fields = _WELCOME.unpack(data)
    _check_magic(magic)
    return Welcome(code, version, *fields)


def _check_magic(head: bytes) -> None:
    if not HANDSHAKE_MAGIC.startswith(head[: len(HANDSHAKE_MAGIC)]):
        raise BadMagic(f"the other side does not speak aiops: it sent {head[:8]!r}{_guess(head)}")


def _guess(head: bytes) -> str:
    if head.startswith((b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP", b"OPTI")):
        return " (this looks like HTTP)"
    if head.startswith((b"\x16\x03", b"\x15\x03")):
        return " (this looks like TLS; aiops was told to expect a plain connection)"
    if head.startswith(b"SSH-"):
        return " (this looks like SSH)"
    return ""


class Authenticator(Protocol):
    """How the two sides prove that they belong to the same cluster."""

    method: Method

    def client_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        """Return the dialling side's 32 bytes of proof over both nonces."""
        ...

    def server_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        """Return the accepting side's 32 bytes of proof over both nonces."""
        ...


class NoAuthentication:
    """Method `NONE`: for loopback, or where the user has explicitly chosen to go without."""

    method = Method.NONE

    def client_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        """Return zeros."""
        return NO_PROOF

    def server_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        """Return zeros."""
        return NO_PROOF


class HandshakeState(Enum):
    """Where a handshake stands. `READY` and `FAILED` are final."""

    GREETING = "greeting"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    FAILED = "failed"


class ServerHandshake:
    """The accepting side. `start()` first, then every received byte through `receive`.

    Parameters
    ----------
    role, nonce
        What this node is, and 32 unpredictable bytes for this connection alone.
    job
        16 bytes that identify the job; a caller that names another is refused.
    epoch, window_bytes
        Told to the caller in WELCOME.
    """

    needed = HELLO_BYTES

    def __init__(
        self,
        role: Role,
        nonce: bytes,
        job: bytes,
        *,
        epoch: int = 0,
        authenticator: Authenticator | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.state = HandshakeState.AUTHENTICATING
        self._authenticator = authenticator or NoAuthentication()
        self._greeting = Greeting(
            PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, self._authenticator.method, role, nonce
        )
        self._job = job
        self._epoch = epoch
        self._window_bytes = window_bytes
        self.hello: Hello | None = None

    def start(self) -> bytes:
        """Return the greeting."""
        return encode_greeting(self._greeting)

    def check_head(self, head: bytes) -> None:
        """Refuse a stranger at its first bytes, before a whole hello has arrived."""
        _check_magic(head)

    def receive(self, data: bytes) -> bytes:
        """Judge a whole hello and return the welcome, or the refusal with `state` FAILED."""
        self.state = HandshakeState.FAILED
        hello = decode_hello(data)
        code = self._judge(hello)
        self.hello = hello
        proof = NO_PROOF
        if code is ErrorCode.OK:
            self.state = HandshakeState.READY
            proof = self._authenticator.server_proof(self._greeting, hello)
        return self._answer(code, proof)

    def refuse(self, code: ErrorCode) -> bytes:
        """Return a refusal for a reason that is not the handshake's own (a full cluster)."""
        self.state = HandshakeState.FAILED
        return self._answer(code, NO_PROOF)

    def _judge(self, hello: Hello) -> ErrorCode:
        if not PROTOCOL_VERSION_MIN <= hello.version <= PROTOCOL_VERSION_MAX:
            return ErrorCode.UNSUPPORTED_VERSION
        if hello.role not in set(Role) or hello.purpose not in (Purpose.CONTROL, Purpose.DATA):
            return ErrorCode.WRONG_ROLE
        if hello.method != self._authenticator.method:
            return ErrorCode.AUTHENTICATION_FAILED
        expected = self._authenticator.client_proof(self._greeting, hello)
        if not hmac.compare_digest(expected, hello.proof):
            return ErrorCode.AUTHENTICATION_FAILED
        if hello.job not in (NO_JOB, self._job):
            return ErrorCode.WRONG_JOB
        return ErrorCode.OK

    def _answer(self, code: ErrorCode, proof: bytes) -> bytes:
        return encode_welcome(
            Welcome(
                code=code,
                version=PROTOCOL_VERSION_MAX,
                capabilities=0,
                job=self._job if code is ErrorCode.OK else NO_JOB,
                proof=proof,
                epoch=self._epoch,
                window_bytes=self._window_bytes,
                window_mutations=WINDOW_MUTATIONS,
                payload_bytes_max=PAYLOAD_BYTES_MAX,
                incarnation=self.hello.incarnation if self.hello else 0,
            )
        )


class ClientHandshake:
    """The dialling side: `receive` a greeting, send the hello it returns, `receive` the welcome."""

    def __init__(
        self,
        role: Role,
        purpose: Purpose,
        nonce: bytes,
        *,
        expects: Role,
        job: bytes = NO_JOB,
        rank: int = 0,
        incarnation: int = 0,
        customers: int = 1,
        authenticator: Authenticator | None = None,
    ) -> None:
        self.state = HandshakeState.GREETING
        self.needed = GREETING_BYTES
        self._authenticator = authenticator or NoAuthentication()
        self._expects = expects
        self.purpose = purpose
        self._hello = Hello(
            version=PROTOCOL_VERSION_MAX,
            role=role,
            purpose=purpose,
            method=self._authenticator.method,
            capabilities=0,
            job=job,
            nonce=nonce,
            proof=NO_PROOF,
            rank=rank,
            customers=customers,
            incarnation=incarnation,
        )
        self._greeting: Greeting | None = None
        self.welcome: Welcome | None = None

    def check_head(self, head: bytes) -> None:
        """Recognise a stranger at its first bytes."""
        _check_magic(head)

    def receive(self, data: bytes) -> bytes:
        """Take a whole greeting (returns the hello) or a whole welcome (returns nothing).

        Raises
        ------
        UnsupportedVersion, BadMagic, HandshakeRefused, RemoteProtocolError
            `HandshakeRefused.reason` is the code that the other side gave.
        """
        if self.state is HandshakeState.GREETING:
            return self._answer(decode_greeting(data))
        self.state = HandshakeState.FAILED
        self._accept(decode_welcome(data))
        self.state = HandshakeState.READY
        return b""

    def _answer(self, greeting: Greeting) -> bytes:
        self.state = HandshakeState.FAILED
        low, high = greeting.version_min, greeting.version_max
        if low > high or not greeting.role:
            raise MalformedFrame("a greeting with reversed versions or without a role")
        version = min(high, PROTOCOL_VERSION_MAX)
        if version < max(low, PROTOCOL_VERSION_MIN):
            raise UnsupportedVersion(
                f"the other side speaks protocol versions {low} to {high}, this one "
                f"{PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: install the same aiops on both"
            )
        if greeting.role != self._expects:
            role = Role(greeting.role).name.lower() if greeting.role in set(Role) else "stranger"
            raise HandshakeRefused(
                f"a {role} answers there, not a {self._expects.name.lower()}",
                ErrorCode.WRONG_ROLE,
            )
        if not greeting.methods & self._authenticator.method:
            raise HandshakeRefused(
                "the other side wants another authentication", ErrorCode.AUTHENTICATION_FAILED
            )
        self._greeting = greeting
        proof = self._authenticator.client_proof(greeting, self._hello)
        self._hello = msgspec.structs.replace(self._hello, version=version, proof=proof)
        self.state = HandshakeState.AUTHENTICATING
        self.needed = WELCOME_BYTES
        return encode_hello(self._hello)

    def _accept(self, welcome: Welcome) -> None:
        if welcome.code != ErrorCode.OK:
            known = {code.value for code in ErrorCode}
            reason = ErrorCode(welcome.code if welcome.code in known else ErrorCode.INTERNAL)
            raise HandshakeRefused(_REFUSALS.get(reason, reason.name.lower()), reason)
        assert self._greeting is not None
        expected = self._authenticator.server_proof(self._greeting, self._hello)
        if not hmac.compare_digest(expected, welcome.proof):
            raise HandshakeRefused(
                "the other side could not prove that it belongs to this cluster",
                ErrorCode.AUTHENTICATION_FAILED,
            )
        if not (welcome.window_bytes and welcome.window_mutations):
            raise RemoteProtocolError("a welcome without a window")
        self.welcome = welcome


_REFUSALS: Final = {
    ErrorCode.UNSUPPORTED_VERSION: "it speaks another protocol version",
    ErrorCode.AUTHENTICATION_FAILED: "authentication failed",
    ErrorCode.WRONG_JOB: "it belongs to another job",
    ErrorCode.WRONG_ROLE: "it does not accept this role",
    ErrorCode.STALE_INCARNATION: "a newer incarnation of this worker has taken its place",
    ErrorCode.TOO_MANY_CONNECTIONS: "it has as many connections as it allows",
    ErrorCode.SHUTTING_DOWN: "it is shutting down",
    ErrorCode.NOT_A_MEMBER: "it does not know this worker as a member of the job",
}
