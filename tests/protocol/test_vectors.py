"""The golden vectors: code and bytes agree, and every cut of every frame decodes the same."""

from __future__ import annotations

from typing import Any

import pytest

import vectors
from aiops_protocol import errors
from aiops_protocol.buffer import NEED_DATA
from aiops_protocol.connection import Connection, Side, State
from aiops_protocol.control import ControlMessage
from aiops_protocol.errors import ErrorCode, HandshakeRefused, RemoteProtocolError
from aiops_protocol.frames import Control, Kind, Ping
from aiops_protocol.greeting import Purpose, Role, decode_welcome
from aiops_protocol.handshake import ClientHandshake, HandshakeState, ServerHandshake
from handshakes import arrive, connected
from wire_bytes import cut, decode, received, wire

FRAMES = [*vectors.load("frames.json"), *vectors.load("control.json")]
MESSAGES = vectors.load("handshake.json")
MALFORMED = vectors.load("malformed.json")
REFUSED = vectors.load("refused.json")

GREETING, HELLO = (bytes.fromhex(vector["hex"]) for vector in MESSAGES[:2])
JOB = bytes.fromhex("00112233445566778899aabbccddeeff")


def name_of(vector: Any) -> str:
    return str(vector["name"])


@pytest.mark.parametrize("vector", FRAMES, ids=name_of)
def test_a_frame_encodes_to_its_bytes_and_back(vector: vectors.Vector) -> None:
    data = bytes.fromhex(vector["hex"])
    frame = vectors.frame_of(vector)
    assert wire(frame).hex() == vector["hex"]
    assert decode(data) == frame
    assert vectors.described(decode(data), vector) == vector["fields"]


@pytest.mark.parametrize("vector", FRAMES, ids=name_of)
def test_all_two_way_splits_of_a_frame_decode_the_same(vector: vectors.Vector) -> None:
    data = bytes.fromhex(vector["hex"]) + wire(Ping(1))
    frames = [vectors.frame_of(vector), Ping(1)]
    for place in range(len(data) + 1):
        assert received(cut(data, [place])) == frames, place


def test_all_golden_frames_in_one_stream() -> None:
    data = b"".join(bytes.fromhex(vector["hex"]) for vector in FRAMES)
    frames = [vectors.frame_of(vector) for vector in FRAMES]
    for step in (len(data), 1, 7, 24, 1000):
        assert received(cut(data, range(0, len(data), step))) == frames


def test_every_kind_and_every_control_message_has_a_vector() -> None:
    assert {vector["kind"] for vector in FRAMES} == {kind.name for kind in Kind}
    messages = {
        type(frame.message) for frame in map(vectors.frame_of, FRAMES) if isinstance(frame, Control)
    }
    assert messages == set(ControlMessage.__args__)
    names = [name_of(vector) for vector in [*FRAMES, *MESSAGES, *MALFORMED, *REFUSED]]
    assert len(set(names)) == len(names)


def test_control_vectors_leave_no_field_out() -> None:
    """Also the fields with a default: another language must know their form.

    Fields that came later do not travel with their default, so that older vectors keep their bytes.
    """
    written: dict[type, set[str]] = {}
    for vector in vectors.load("control.json"):
        frame = vectors.frame_of(vector)
        assert isinstance(frame, Control)
        kind, fields = type(frame.message), set(vector["fields"]) - {"type"}
        assert kind.__struct_config__.omit_defaults or fields == set(kind.__struct_fields__)
        written.setdefault(kind, set()).update(fields)
    for kind, names in written.items():
        assert names == set(kind.__struct_fields__), kind


# --- the handshake --------------------------------------------------------------------------


@pytest.mark.parametrize("vector", MESSAGES, ids=name_of)
def test_a_handshake_message_encodes_to_its_bytes_and_back(vector: vectors.Vector) -> None:
    _, _, decode_message = vectors.HANDSHAKE[vector["message"]]
    message = vectors.message_of(vector)
    assert vectors.bytes_of(vector).hex() == vector["hex"]
    assert decode_message(bytes.fromhex(vector["hex"])) == message


def test_the_golden_handshake_is_one_that_happens() -> None:
    """The first greeting, hello and welcome of the file, from two real ends."""
    greeting, hello = (vectors.message_of(vector) for vector in MESSAGES[:2])
    welcome = bytes.fromhex(MESSAGES[3]["hex"])
    server = ServerHandshake(Role.SERVER, greeting.nonce, JOB, epoch=3)  # type: ignore[attr-defined]
    client = worker(hello)
    assert server.start() == GREETING
    assert client.receive(GREETING) == HELLO
    assert server.receive(HELLO) == welcome
    assert client.receive(welcome) == b""
    assert client.state is server.state is HandshakeState.READY


def worker(hello: Any) -> ClientHandshake:
    return ClientHandshake(
        Role.WORKER,
        Purpose.DATA,
        hello.nonce,
        expects=Role.SERVER,
        job=JOB,
        rank=hello.rank,
        incarnation=hello.incarnation,
    )


@pytest.mark.parametrize("vector", REFUSED, ids=name_of)
def test_what_must_not_be_accepted_in_the_handshake(vector: vectors.Vector) -> None:
    data = bytes.fromhex(vector["hex"])
    side: ServerHandshake | ClientHandshake
    if vector["awaits"] == "HELLO":
        side = ServerHandshake(Role.SERVER, bytes(range(32)), JOB)
    else:
        side = worker(vectors.message_of(MESSAGES[1]))
        if vector["awaits"] == "WELCOME":
            assert side.receive(GREETING) == HELLO
    connection = Connection(side)
    if vector.get("refusal") and vector["awaits"] == "HELLO":
        arrive(connection, data)
        (refusal,) = connection.take_replies()
        answer = decode_welcome(refusal)
        assert answer.code == vector["code"] == ErrorCode[vector["refusal"]]
        assert answer == vectors.message_of(
            MESSAGES[4] | {"fields": {**MESSAGES[4]["fields"], "code": vector["code"]}}
        )
    else:
        expected = getattr(errors, vector.get("error", "HandshakeRefused"))
        with pytest.raises(expected) as caught:
            arrive(connection, data)
        error = caught.value
        code = error.reason if isinstance(error, HandshakeRefused) else error.code
        assert code == vector["code"]
        assert connection.take_replies() == []
    assert connection.state is State.CLOSED


# --- bytes that end a connection ------------------------------------------------------------------


@pytest.mark.parametrize("vector", MALFORMED, ids=name_of)
@pytest.mark.parametrize("step", [10**6, 1])
def test_malformed_bytes_give_their_error(vector: vectors.Vector, step: int) -> None:
    """Whole or byte by byte; afterwards the peer may be told the code and no more."""
    receiver = vector["receiver"]
    connection = connected(
        Purpose[receiver["purpose"]], Side[receiver["side"]], Role[receiver["peer"]]
    )
    data = bytes.fromhex(vector["hex"])
    expected = getattr(errors, vector["error"])
    with pytest.raises(expected) as caught:
        take_all(connection, cut(data, range(0, len(data), step)))
    assert type(caught.value) is expected
    assert caught.value.code == vector["code"] == expected.code
    assert connection.state is State.FAILED


def take_all(connection: Connection, chunks: list[bytes]) -> None:
    for chunk in chunks:
        arrive(connection, chunk)
        while connection.next_frame() is not NEED_DATA:
            pass


def test_each_error_of_the_wire_has_a_malformed_vector() -> None:
    shown = {vector["error"] for vector in MALFORMED}
    leaves = {cls.__name__ for cls in RemoteProtocolError.__subclasses__()}
    assert shown == leaves - {"HandshakeRefused"}
    assert len(MALFORMED) >= 40
