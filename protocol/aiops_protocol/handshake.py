"""The handshake: three messages of fixed size before the first frame.

    accepting side -> dialling side   GREETING   48 bytes   versions, methods, nonce
    dialling side  -> accepting side  HELLO     128 bytes   version, role, job, identity, proof
    accepting side -> dialling side   WELCOME   128 bytes   or a refusal with its code

Until WELCOME nothing of variable length is read and no more than 128 bytes are held. A message
that was damaged on the way raises `ChecksumMismatch` and is not answered; whatever a whole one
says is meant.

The authentication step is part of every handshake: with method `NONE` both proofs are zeros and
are checked to be zeros. A method computes its proofs from both nonces (an `Authenticator`).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

import msgspec

from aiops_protocol.errors import (
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    MalformedFrame,
    UnsupportedVersion,
)
from aiops_protocol.greeting import (
    GREETING_BYTES,
    HANDSHAKE_MAGIC,
    HELLO_BYTES,
    NO_JOB,
    NO_PROOF,
    WELCOME_BYTES,
    Greeting,
    Hello,
    Method,
    Purpose,
    Role,
    Welcome,
    check_magic,
    decode_greeting,
    decode_hello,
    decode_welcome,
    encode_greeting,
    encode_hello,
    encode_welcome,
)
from aiops_protocol.limits import (
    CUSTOMERS_MAX,
    PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    SEGMENT_BYTES,
    WINDOW_BYTES,
    WINDOW_MUTATIONS,
)

__all__ = [
    "ADMITTED",
    "GREETING_BYTES",
    "HANDSHAKE_MAGIC",
    "HELLO_BYTES",
    "NO_JOB",
    "NO_PROOF",
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


ADMITTED: Final[Mapping[tuple[int, int], frozenset[Role]]] = {
    (Role.SCHEDULER, Purpose.CONTROL): frozenset({Role.SERVER, Role.WORKER, Role.OBSERVER}),
    (Role.SCHEDULER, Purpose.HEARTBEAT): frozenset({Role.SERVER, Role.WORKER}),
    (Role.SERVER, Purpose.DATA): frozenset({Role.WORKER}),
    (Role.WORKER, Purpose.PEER): frozenset({Role.WORKER}),
}
"""Who may dial whom, for what; everything else is refused as WRONG_ROLE."""


class Authenticator(Protocol):
    """How the two sides prove that they belong to the same cluster.

    Every message that is proven has zeros in place of its proof, and both sides see the same
    values, so a method feeds whole messages to its MAC: all bytes but the checksum, which is
    computed last, over the message with its proof.
    """

    method: Method

    def client_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        """Return the dialling side's 32 bytes of proof over both nonces."""
        ...

    def server_proof(self, greeting: Greeting, hello: Hello, welcome: Welcome) -> bytes:
        """Return the accepting side's 32 bytes of proof over both nonces and the limits."""
        ...


class NoAuthentication:
    """Method `NONE`: for loopback, or where the user has explicitly chosen to go without."""

    method = Method.NONE

    def client_proof(self, greeting: Greeting, hello: Hello) -> bytes:
        """Return zeros."""
        return NO_PROOF

    def server_proof(self, greeting: Greeting, hello: Hello, welcome: Welcome) -> bytes:
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
    admit
        The last word on a caller that has passed everything else, for example that a newer
        incarnation of it is known.
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
        admit: Callable[[Hello], ErrorCode] | None = None,
    ) -> None:
        self.state = HandshakeState.AUTHENTICATING
        self._role = role
        self._authenticator = authenticator or NoAuthentication()
        self._greeting = Greeting(
            PROTOCOL_VERSION_MIN, PROTOCOL_VERSION_MAX, self._authenticator.method, role, nonce
        )
        self._job = job
        self._epoch = epoch
        self._window_bytes = window_bytes
        self._admit = admit
        self.hello: Hello | None = None

    @property
    def purpose(self) -> Purpose:
        """What the connection is for; only when READY."""
        assert self.hello is not None
        return Purpose(self.hello.purpose)

    @property
    def peer_role(self) -> Role:
        """What the caller is; only when READY."""
        assert self.hello is not None
        return Role(self.hello.role)

    def start(self) -> bytes:
        """Return the greeting."""
        return encode_greeting(self._greeting)

    def check_head(self, head: bytes) -> None:
        """Refuse a stranger at its first bytes, before a whole hello has arrived."""
        check_magic(head)

    def receive(self, data: bytes) -> bytes:
        """Judge a whole hello and return the welcome, or the refusal with `state` FAILED.

        Raises
        ------
        BadMagic, ChecksumMismatch
            What came is no hello, or was damaged: there is nobody to answer.
        """
        self._must_be_open()
        hello = decode_hello(data)
        code = self._judge(hello)
        if code is not ErrorCode.OK:
            return encode_welcome(self._refusal(code))
        welcome = Welcome(
            code=code,
            version=hello.version,
            capabilities=0,
            job=self._job,
            proof=NO_PROOF,
            epoch=self._epoch,
            window_bytes=self._window_bytes,
            window_mutations=WINDOW_MUTATIONS,
            payload_bytes_max=PAYLOAD_BYTES_MAX,
            incarnation=hello.incarnation,
        )
        proof = self._authenticator.server_proof(self._greeting, _unproven(hello), welcome)
        self.hello = hello
        self.state = HandshakeState.READY
        return encode_welcome(msgspec.structs.replace(welcome, proof=proof))

    def refuse(self, code: ErrorCode) -> bytes:
        """Return a refusal for a reason that is not the handshake's own (a full cluster)."""
        self._must_be_open()
        return encode_welcome(self._refusal(code))

    def _must_be_open(self) -> None:
        if self.state is not HandshakeState.AUTHENTICATING:
            raise LocalProtocolError(f"the handshake is over: {self.state.value}")
        self.state = HandshakeState.FAILED

    def _judge(self, hello: Hello) -> ErrorCode:
        if not PROTOCOL_VERSION_MIN <= hello.version <= PROTOCOL_VERSION_MAX:
            return ErrorCode.UNSUPPORTED_VERSION
        if hello.role not in ADMITTED.get((self._role, hello.purpose), frozenset()):
            return ErrorCode.WRONG_ROLE
        if hello.method != self._authenticator.method:
            return ErrorCode.AUTHENTICATION_FAILED
        expected = self._authenticator.client_proof(self._greeting, _unproven(hello))
        if not hmac.compare_digest(expected, hello.proof):
            return ErrorCode.AUTHENTICATION_FAILED
        joining = hello.purpose == Purpose.CONTROL and hello.job == NO_JOB
        if hello.job != self._job and not joining:
            return ErrorCode.WRONG_JOB
        if not 1 <= hello.customers <= CUSTOMERS_MAX:
            return ErrorCode.INVALID_SETTING
        return ErrorCode.OK if self._admit is None else self._admit(hello)

    def _refusal(self, code: ErrorCode) -> Welcome:
        return Welcome(
            code=code,
            version=PROTOCOL_VERSION_MAX,
            capabilities=0,
            job=NO_JOB,
            proof=NO_PROOF,
            epoch=0,
            window_bytes=0,
            window_mutations=0,
            payload_bytes_max=0,
            incarnation=0,
        )


def _unproven(hello: Hello) -> Hello:
    return msgspec.structs.replace(hello, proof=NO_PROOF)


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
        self.purpose = purpose
        self.peer_role = expects
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
        self.nonce = nonce
        self.welcome: Welcome | None = None

    def check_head(self, head: bytes) -> None:
        """Recognise a stranger at its first bytes."""
        check_magic(head)

    def receive(self, data: bytes) -> bytes:
        """Take a whole greeting (returns the hello) or a whole welcome (returns nothing).

        Raises
        ------
        BadMagic, ChecksumMismatch, UnsupportedVersion, HandshakeRefused, MalformedFrame
            All but the first two come from a message that is whole. `HandshakeRefused.reason`
            is the code that the other side gave.
        """
        before = self.state
        if before is HandshakeState.READY or before is HandshakeState.FAILED:
            raise LocalProtocolError(f"the handshake is over: {before.value}")
        self.state = HandshakeState.FAILED
        if before is HandshakeState.GREETING:
            return self._answer(decode_greeting(data))
        self._accept(decode_welcome(data))
        self.state = HandshakeState.READY
        return b""

    def _answer(self, greeting: Greeting) -> bytes:
        low, high = greeting.version_min, greeting.version_max
        if low > high or not greeting.role:
            raise MalformedFrame("a greeting with reversed versions or without a role")
        version = min(high, PROTOCOL_VERSION_MAX)
        if version < max(low, PROTOCOL_VERSION_MIN):
            raise UnsupportedVersion(
                f"the other side speaks protocol versions {low} to {high}, this one "
                f"{PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}: install the same aiops on both"
            )
        if greeting.role != self.peer_role:
            role = Role(greeting.role).name.lower() if greeting.role in set(Role) else "stranger"
            raise HandshakeRefused(
                f"a {role} answers there, not a {self.peer_role.name.lower()}",
                ErrorCode.WRONG_ROLE,
            )
        if not greeting.methods & self._authenticator.method:
            raise HandshakeRefused(
                "the other side wants another authentication", ErrorCode.AUTHENTICATION_FAILED
            )
        self._greeting = greeting
        self._hello = msgspec.structs.replace(self._hello, version=version)
        proof = self._authenticator.client_proof(greeting, self._hello)
        self.state = HandshakeState.AUTHENTICATING
        self.needed = WELCOME_BYTES
        return encode_hello(msgspec.structs.replace(self._hello, proof=proof))

    def _accept(self, welcome: Welcome) -> None:
        if welcome.code != ErrorCode.OK:
            known = {code.value for code in ErrorCode}
            reason = ErrorCode(welcome.code if welcome.code in known else ErrorCode.INTERNAL)
            raise HandshakeRefused(_REFUSALS.get(reason, reason.name.lower()), reason)
        assert self._greeting is not None
        hello = self._hello
        unproven = msgspec.structs.replace(welcome, proof=NO_PROOF)
        expected = self._authenticator.server_proof(self._greeting, hello, unproven)
        if not hmac.compare_digest(expected, welcome.proof):
            raise HandshakeRefused(
                "the other side could not prove that it belongs to this cluster",
                ErrorCode.AUTHENTICATION_FAILED,
            )
        if hello.job not in (NO_JOB, welcome.job):
            raise HandshakeRefused(_REFUSALS[ErrorCode.WRONG_JOB], ErrorCode.WRONG_JOB)
        if welcome.version != hello.version or welcome.capabilities & ~hello.capabilities:
            raise MalformedFrame("a welcome that chooses what was not offered")
        if not welcome.window_bytes or not welcome.window_mutations:
            raise MalformedFrame("a welcome without a window")
        if welcome.payload_bytes_max < SEGMENT_BYTES:
            raise MalformedFrame(f"a welcome that takes less than {SEGMENT_BYTES} bytes a frame")
        self.welcome = welcome


_REFUSALS: Final = {
    ErrorCode.UNSUPPORTED_VERSION: "it speaks another protocol version",
    ErrorCode.AUTHENTICATION_FAILED: "authentication failed",
    ErrorCode.WRONG_JOB: "it belongs to another job",
    ErrorCode.WRONG_ROLE: "it does not accept this role",
    ErrorCode.STALE_INCARNATION: (
        "this incarnation of the worker is over: it was declared lost, has left, or its name was "
        "taken by a newer one"
    ),
    ErrorCode.TOO_MANY_CONNECTIONS: "it has as many connections as it allows",
    ErrorCode.SHUTTING_DOWN: "it is shutting down",
    ErrorCode.INVALID_SETTING: "it allows no such number of customers",
    ErrorCode.NOT_A_MEMBER: "it does not know this worker as a member of the job",
}
