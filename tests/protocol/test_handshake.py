"""The handshake: who is let in, who is sent away, and what a stranger learns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import msgspec
import pytest

from aiops_protocol.connection import Connection, State
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    ErrorCode,
    HandshakeRefused,
    LocalProtocolError,
    RemoteProtocolError,
)
from aiops_protocol.greeting import (
    GREETING_BYTES,
    HELLO_BYTES,
    WELCOME_BYTES,
    Purpose,
    Role,
    decode_hello,
    decode_welcome,
    encode_hello,
    encode_welcome,
)
from aiops_protocol.handshake import ADMITTED, ClientHandshake, HandshakeState, ServerHandshake
from handshakes import JOB, arrive
from hmac_authenticator import HmacAuthenticator
from wire_bytes import sealed

SECRET = HmacAuthenticator(b"s" * 32)


def server(**options: Any) -> ServerHandshake:
    usual: dict[str, Any] = {"role": Role.SERVER, "nonce": b"n" * 32, "job": JOB}
    return ServerHandshake(**(usual | options))


def client(**options: Any) -> ClientHandshake:
    usual: dict[str, Any] = {
        "role": Role.WORKER,
        "purpose": Purpose.DATA,
        "nonce": b"c" * 32,
        "expects": Role.SERVER,
        "job": JOB,
        "rank": 4,
        "incarnation": 9,
    }
    return ClientHandshake(**(usual | options))


def shake(dialling: ClientHandshake, accepting: ServerHandshake) -> bytes:
    """All three messages; returns the last one."""
    welcome = accepting.receive(dialling.receive(accepting.start()))
    assert dialling.receive(welcome) == b""
    return welcome


@pytest.mark.parametrize("authenticator", [None, SECRET])
def test_two_nodes_of_a_job(authenticator: HmacAuthenticator | None) -> None:
    dialling = client(authenticator=authenticator)
    accepting = server(authenticator=authenticator, epoch=7, window_bytes=12345)
    shake(dialling, accepting)
    assert dialling.state is accepting.state is HandshakeState.READY
    assert accepting.hello is not None
    assert (accepting.hello.rank, accepting.hello.incarnation) == (4, 9)
    assert accepting.peer_role is Role.WORKER
    assert accepting.purpose is dialling.purpose is Purpose.DATA
    assert dialling.peer_role is Role.SERVER
    assert dialling.welcome is not None
    assert (dialling.welcome.epoch, dialling.welcome.window_bytes) == (7, 12345)
    assert (dialling.welcome.job, dialling.welcome.incarnation) == (JOB, 9)


def test_messages_have_the_documented_sizes() -> None:
    accepting, dialling = server(), client()
    greeting = accepting.start()
    hello = dialling.receive(greeting)
    assert (len(greeting), len(hello), len(accepting.receive(hello))) == (48, 128, 128)
    assert (GREETING_BYTES, HELLO_BYTES, WELCOME_BYTES) == (48, 128, 128)


def test_a_newcomer_learns_the_job_from_the_welcome() -> None:
    newcomer = client(purpose=Purpose.CONTROL, expects=Role.SCHEDULER, job=bytes(16))
    shake(newcomer, server(role=Role.SCHEDULER))
    assert newcomer.welcome is not None
    assert newcomer.welcome.job == JOB


# --- strangers ---------------------------------------------------------------------------------

STRANGERS = [
    (b"GET / HTTP/1.1\r\n", "HTTP"),
    (b"POST /", "HTTP"),
    (b"HTTP/1.1 400 Bad Request", "HTTP"),
    (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    (b"\x15\x03\x01\x00\x02\x02", "TLS"),
    (b"SSH-2.0-OpenSSH_9.2", "SSH"),
    (b"\x8bAPS\x01\x01", "does not speak"),
    (b"\x8bAIOPS\n", "does not speak"),
    (b"\0", "does not speak"),
]


@pytest.mark.parametrize(("head", "words"), STRANGERS)
def test_a_stranger_is_known_by_its_first_bytes(head: bytes, words: str) -> None:
    """A person reads the message who has given the wrong port."""
    for side in (server(), client()):
        with pytest.raises(BadMagic, match=words):
            side.check_head(head)
        side.check_head(b"")
        side.check_head(b"\x8bAIO")


# --- who may dial whom -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accepting", "purpose", "dialling"), list(product(Role, Purpose, Role)), ids=str
)
def test_only_listed_roles_are_admitted(accepting: Role, purpose: Purpose, dialling: Role) -> None:
    end = server(role=accepting)
    caller = client(role=dialling, purpose=purpose, expects=accepting)
    hello = caller.receive(end.start())
    if dialling in ADMITTED.get((accepting, purpose), ()):
        caller.receive(end.receive(hello))
        assert caller.state is end.state is HandshakeState.READY
        return
    with pytest.raises(HandshakeRefused, match="role") as caught:
        caller.receive(end.receive(hello))
    assert caught.value.reason is ErrorCode.WRONG_ROLE
    assert end.state is HandshakeState.FAILED
    assert end.hello is None


def test_the_owner_has_the_last_word() -> None:
    """A stale incarnation, a full cluster: things that only a role can know."""
    asked = []

    def admit(hello: Any) -> ErrorCode:
        asked.append(hello.incarnation)
        return ErrorCode.STALE_INCARNATION if hello.incarnation < 9 else ErrorCode.OK

    shake(client(), server(admit=admit))
    with pytest.raises(HandshakeRefused, match="declared lost, has left, or its name") as caught:
        shake(client(incarnation=8), server(admit=admit))
    assert caught.value.reason is ErrorCode.STALE_INCARNATION
    with pytest.raises(HandshakeRefused):
        shake(client(job=bytes(15) + b"x"), server(admit=admit))
    assert asked == [9, 8]  # who fails otherwise is not asked about


def test_a_crowded_door_refuses_before_a_hello() -> None:
    accepting, dialling = server(), client()
    hello = dialling.receive(accepting.start())
    refusal = accepting.refuse(ErrorCode.TOO_MANY_CONNECTIONS)
    with pytest.raises(HandshakeRefused, match="connections") as caught:
        dialling.receive(refusal)
    assert caught.value.reason is ErrorCode.TOO_MANY_CONNECTIONS
    with pytest.raises(LocalProtocolError):
        accepting.receive(hello)


def test_a_refusal_tells_nothing_of_the_job() -> None:
    accepting = server(epoch=7)
    hello = msgspec.structs.replace(decode_hello(client().receive(accepting.start())), version=9)
    welcome = decode_welcome(accepting.receive(encode_hello(hello)))
    assert welcome.code == ErrorCode.UNSUPPORTED_VERSION
    assert (welcome.job, welcome.epoch, welcome.proof) == (bytes(16), 0, bytes(32))
    assert accepting.state is HandshakeState.FAILED


def test_a_handshake_happens_once() -> None:
    accepting, dialling = server(), client()
    greeting = accepting.start()
    hello = dialling.receive(greeting)
    welcome = accepting.receive(hello)
    dialling.receive(welcome)
    late: list[Callable[[], bytes]] = [
        lambda: accepting.receive(hello),
        lambda: accepting.refuse(ErrorCode.SHUTTING_DOWN),
        lambda: dialling.receive(greeting),
        lambda: dialling.receive(welcome),
    ]
    for call in late:
        with pytest.raises(LocalProtocolError, match="over"):
            call()
    assert accepting.state is dialling.state is HandshakeState.READY


def test_after_a_failure_nothing_is_believed_any_more() -> None:
    dialling = client()
    with pytest.raises(BadMagic):
        dialling.receive(b"x" * 48)
    with pytest.raises(LocalProtocolError):
        dialling.receive(server().start())


# --- proofs ---------------------------------------------------------------------------------------


def refused(dialling: ClientHandshake, accepting: ServerHandshake) -> ErrorCode:
    with pytest.raises(HandshakeRefused) as caught:
        shake(dialling, accepting)
    return caught.value.reason


def test_another_secret_is_refused() -> None:
    other = HmacAuthenticator(b"t" * 32)
    assert refused(client(authenticator=other), server(authenticator=SECRET)) == 16


def test_methods_must_be_the_same_on_both_sides() -> None:
    """In particular, a side that wants a secret is not talked out of it."""
    assert refused(client(), server(authenticator=SECRET)) == 16
    assert refused(client(authenticator=SECRET), server()) == 16


def test_a_recorded_hello_is_worth_nothing_to_another_greeting() -> None:
    recorded = client(authenticator=SECRET).receive(server(authenticator=SECRET).start())
    fresh = server(authenticator=SECRET, nonce=b"m" * 32)
    assert decode_welcome(fresh.receive(recorded)).code == ErrorCode.AUTHENTICATION_FAILED
    assert fresh.state is HandshakeState.FAILED


def test_a_proof_cannot_be_turned_against_who_made_it() -> None:
    """The client's own proof, sent back as the server's."""
    dialling, accepting = client(authenticator=SECRET), server(authenticator=SECRET)
    hello = dialling.receive(accepting.start())
    welcome = decode_welcome(accepting.receive(hello))
    forged = msgspec.structs.replace(welcome, proof=decode_hello(hello).proof)
    assert forged.proof != welcome.proof
    with pytest.raises(HandshakeRefused, match="prove"):
        dialling.receive(encode_welcome(forged))


LENGTHS = {"greeting": 48, "hello": 128, "welcome": 128}
RESERVED = {"greeting": set(), "hello": set(range(112, 124)), "welcome": {11, *range(88, 124)}}
"""Bytes that this version sends as zeros and does not look at."""
DAMAGES = (1, 0x80, 0xFF)


def shake_through(
    dialling: ClientHandshake, accepting: ServerHandshake, way: Callable[[str, bytes], bytes]
) -> RemoteProtocolError | None:
    """What a handshake fails with on such a way, if it does."""
    try:
        hello = dialling.receive(way("greeting", accepting.start()))
        welcome = accepting.receive(way("hello", hello))
        dialling.receive(way("welcome", welcome))
    except RemoteProtocolError as error:
        assert HandshakeState.FAILED in (dialling.state, accepting.state)
        return error
    assert dialling.state is accepting.state is HandshakeState.READY
    return None


def flipped(message: bytes, place: int, damage: int) -> bytes:
    return message[:place] + bytes([message[place] ^ damage]) + message[place + 1 :]


@pytest.mark.parametrize("which", LENGTHS)
def test_every_forged_byte_is_noticed(which: str) -> None:
    """With a secret, whoever changes any byte on the way ends the handshake and gains nothing.

    Unlike damage, a forger makes the checksum right again.
    """
    for place, damage in product(range(LENGTHS[which] - 4), DAMAGES):

        def forge(name: str, message: bytes, at: int = place, by: int = damage) -> bytes:
            return sealed(flipped(message, at, by)) if name == which else message

        ends = client(authenticator=SECRET), server(authenticator=SECRET)
        error = shake_through(*ends, forge)
        assert not isinstance(error, ChecksumMismatch)
        assert (error is None) == (place in RESERVED[which]), place


# --- damage on the way ------------------------------------------------------------------------


@pytest.mark.parametrize("which", LENGTHS)
def test_damage_is_told_apart_from_refusals_and_strangers(which: str) -> None:
    """Whatever byte a bad cable changes: it is a wrong checksum, or a wrong magic, and never a
    refusal that the other side did not make."""
    for place, damage in product(range(LENGTHS[which]), DAMAGES):

        def harm(name: str, message: bytes, at: int = place, by: int = damage) -> bytes:
            return flipped(message, at, by) if name == which else message

        error = shake_through(client(), server(), harm)
        assert type(error) is (BadMagic if place < 8 else ChecksumMismatch), place


def test_a_damaged_hello_is_not_answered() -> None:
    accepting, dialling = server(), client()
    hello = dialling.receive(accepting.start())
    connection = Connection(accepting)
    with pytest.raises(ChecksumMismatch, match="hello"):
        arrive(connection, flipped(hello, 100, 4))
    assert connection.take_replies() == []
    assert connection.state is State.CLOSED


def test_a_damaged_refusal_is_no_refusal() -> None:
    accepting, dialling = server(), client()
    dialling.receive(accepting.start())
    refusal = accepting.refuse(ErrorCode.TOO_MANY_CONNECTIONS)
    with pytest.raises(ChecksumMismatch, match="welcome"):
        dialling.receive(flipped(refusal, 8, 1))


def test_a_stranger_of_any_length_is_no_damage() -> None:
    """A web server's answer may be longer than a greeting: the user must read of HTTP."""
    with pytest.raises(BadMagic, match="HTTP"):
        client().receive(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html; charset"[:48])
