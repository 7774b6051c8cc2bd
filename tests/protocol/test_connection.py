"""A connection from first byte to last: every state, side and purpose with every frame."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vectors
from aiops_protocol.buffer import NEED_DATA, Destination
from aiops_protocol.connection import RECEIVABLE, TRANSITIONS, Connection, Input, Side, State
from aiops_protocol.errors import (
    BadMagic,
    ChecksumMismatch,
    HandshakeRefused,
    LocalProtocolError,
    UnexpectedFrame,
)
from aiops_protocol.frames import Ack, Control, Frame, Goodbye, Kind, Ping, Pong, Push, Value
from aiops_protocol.greeting import Purpose, Role
from aiops_protocol.handshake import ADMITTED, ClientHandshake, ServerHandshake
from handshakes import JOB, arrive, connected, pair
from protocol_strategies import message_types
from wire_bytes import cut, handmade, owned, wire

ONE_OF_EACH: dict[Kind, Frame] = {}
for _vector in [*vectors.load("frames.json"), *vectors.load("control.json")]:
    ONE_OF_EACH.setdefault(Kind[_vector["kind"]], vectors.frame_of(_vector))
MESSAGES: dict[type[Any], Any] = {
    type(frame.message): frame.message
    for frame in map(vectors.frame_of, vectors.load("control.json"))
    if isinstance(frame, Control)
}

ENDS = [
    (Purpose.CONTROL, Side.ACCEPTED, Role.WORKER),
    (Purpose.CONTROL, Side.ACCEPTED, Role.SERVER),
    (Purpose.CONTROL, Side.ACCEPTED, Role.OBSERVER),
    (Purpose.CONTROL, Side.DIALLED, Role.SCHEDULER),
    (Purpose.HEARTBEAT, Side.ACCEPTED, Role.WORKER),
    (Purpose.HEARTBEAT, Side.DIALLED, Role.SCHEDULER),
    (Purpose.DATA, Side.ACCEPTED, Role.WORKER),
    (Purpose.DATA, Side.DIALLED, Role.SERVER),
]


def take(connection: Connection) -> list[Frame]:
    """Every whole frame that has arrived."""
    frames = []
    while (frame := connection.next_frame()) is not NEED_DATA:
        frames.append(owned(frame))
    return frames


def worker_and_server(destination: Destination | None = None) -> tuple[Connection, Connection]:
    server, client = pair(Role.SERVER, Purpose.DATA, Role.WORKER, destination)
    return client, server


# --- who may receive what ------------------------------------------------------------------


@pytest.mark.parametrize(("purpose", "side", "peer"), ENDS)
@pytest.mark.parametrize("kind", Kind)
def test_each_end_takes_its_kinds_and_no_other(
    purpose: Purpose, side: Side, peer: Role, kind: Kind
) -> None:
    connection = connected(purpose, side, peer)
    frame = ONE_OF_EACH[kind]
    if isinstance(frame, Control):
        frame = Control(next(message for cls, message in MESSAGES.items() if peer in cls.senders))
    arrive(connection, wire(frame))
    if kind in RECEIVABLE[purpose, side]:
        assert take(connection) == [frame]
        assert connection.state is (State.DRAINING if kind is Kind.GOODBYE else State.READY)
    else:
        with pytest.raises(UnexpectedFrame, match=kind.name):
            connection.next_frame()
        assert connection.state is State.FAILED


@pytest.mark.parametrize(("purpose", "side", "peer"), [end for end in ENDS if end[0] == 1])
@pytest.mark.parametrize("cls", message_types(), ids=lambda cls: cls.__name__)
def test_each_role_may_send_its_control_messages_and_no_other(
    purpose: Purpose, side: Side, peer: Role, cls: type[Any]
) -> None:
    """A worker that orders a shutdown or an epoch is not even listened to."""
    connection = connected(purpose, side, peer)
    frame = Control(MESSAGES[cls])
    arrive(connection, wire(frame))
    if peer in cls.senders:
        assert take(connection) == [frame]
    else:
        with pytest.raises(UnexpectedFrame, match=peer.name.lower()):
            connection.next_frame()


def test_every_admitted_pair_of_roles_has_its_kinds() -> None:
    for accepting, purpose in ADMITTED:
        for side in Side:
            assert RECEIVABLE[Purpose(purpose), side], Role(accepting)


# --- states ------------------------------------------------------------------------------------


def in_state(state: State) -> Connection:
    """The server's end of a data connection, brought to a state."""
    if state is State.HANDSHAKE:
        return Connection(ServerHandshake(Role.SERVER, bytes(32), JOB))
    _, server = worker_and_server()
    if state is State.DRAINING:
        arrive(server, wire(Goodbye()))
        take(server)
    elif state is State.FAILED:
        arrive(server, b"GET / HTTP/1.1\r\n")
        with pytest.raises(BadMagic):
            server.next_frame()
    elif state is State.CLOSED:
        assert not server.ended()
    assert server.state is state
    return server


@pytest.mark.parametrize(("state", "kind"), list(product(State, Kind)), ids=str)
def test_every_state_with_every_frame(state: State, kind: Kind) -> None:
    """It moves as the table says, fails with a documented error, or is dropped in silence."""
    connection = in_state(state)
    data = wire(ONE_OF_EACH[kind])
    if state is State.HANDSHAKE:
        with pytest.raises(BadMagic):
            arrive(connection, data)
        assert connection.state is State.CLOSED
        return
    arrive(connection, data)
    if state in (State.FAILED, State.CLOSED):
        assert take(connection) == []
        assert connection.state is state
        return
    cause = Input.GOODBYE if kind is Kind.GOODBYE else Input.FRAME
    if kind in RECEIVABLE[Purpose.DATA, Side.ACCEPTED] and (state, cause) in TRANSITIONS:
        assert take(connection) == [ONE_OF_EACH[kind]]
        assert connection.state is TRANSITIONS[state, cause]
    else:
        with pytest.raises(UnexpectedFrame):
            connection.next_frame()
        assert connection.state is State.FAILED


@pytest.mark.parametrize(("state", "kind"), list(product(State, Kind)), ids=str)
def test_what_may_be_sent_in_every_state(state: State, kind: Kind) -> None:
    connection = in_state(state)
    frame = ONE_OF_EACH[kind]
    ready = state in (State.READY, State.DRAINING)
    if ready or (state is State.FAILED and kind is Kind.GOODBYE):
        assert b"".join(map(bytes, connection.encode(frame))) == wire(frame)
    else:
        with pytest.raises(LocalProtocolError, match=state.value):
            connection.encode(frame)


@pytest.mark.parametrize("state", [State.READY, State.DRAINING, State.FAILED])
def test_goodbye_is_the_last_word(state: State) -> None:
    connection = in_state(state)
    connection.encode(Goodbye())
    for frame in (Goodbye(), Ping(1), Ack(request_id=1)):
        with pytest.raises(LocalProtocolError, match="after GOODBYE"):
            connection.encode(frame)


def test_a_goodbye_that_could_not_be_encoded_was_not_said() -> None:
    connection = in_state(State.READY)
    with pytest.raises(LocalProtocolError):
        connection.encode(Goodbye(2**40))
    connection.encode(Goodbye(4))


@pytest.mark.parametrize("state", State)
def test_the_end_of_the_stream_in_every_state(state: State) -> None:
    """Clean only after a GOODBYE: everything else is a crash of the peer."""
    connection = in_state(state)
    assert connection.ended() == (state is State.DRAINING)
    assert connection.state is State.CLOSED
    assert not connection.ended()


def test_an_end_within_the_bytes_after_a_goodbye_is_not_clean() -> None:
    connection = in_state(State.DRAINING)
    arrive(connection, wire(Ping(1))[:10])
    assert take(connection) == []
    assert not connection.ended()


def test_the_table_is_whole() -> None:
    """The stream may end in every state, and an error has a place wherever bytes are read."""
    for state in State:
        assert TRANSITIONS[state, Input.END] is State.CLOSED
    reading = {State.HANDSHAKE, State.READY, State.DRAINING}
    assert {state for state, cause in TRANSITIONS if cause is Input.ERROR} == reading
    reachable = {State.HANDSHAKE} | set(TRANSITIONS.values())
    assert reachable == set(State)


# --- bytes --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 600), max_size=8))
def test_a_handshake_in_any_pieces(places: list[int]) -> None:
    """Greeting, hello, welcome and the first frames, cut anywhere on both ways."""
    server = Connection(ServerHandshake(Role.SERVER, bytes(32), JOB))
    client = Connection(
        ClientHandshake(Role.WORKER, Purpose.DATA, b"c" * 32, expects=Role.SERVER, job=JOB)
    )
    frames: list[Frame] = []
    to_client = server.open()
    for _ in range(2):
        for chunk in cut(to_client, places):
            arrive(client, chunk)
            frames += take(client)
        to_server = b"".join(client.take_replies())
        for chunk in cut(to_server, places):
            arrive(server, chunk)
        # The accepting side is ready first and need not wait to speak.
        ready = server.state is State.READY
        to_client = b"".join(server.take_replies()) + (wire(Ping(7)) if ready else b"")
    assert frames == [Ping(7)]
    assert client.state is server.state is State.READY


def test_memory_is_offered_exactly_as_the_handshake_needs_it() -> None:
    """What follows a message stays in the kernel, and a stranger gets 128 bytes at most."""
    server = Connection(ServerHandshake(Role.SERVER, bytes(32), JOB))
    assert len(server.get_buffer()) == 128
    arrive(server, b"\x8bAIO")
    assert len(server.get_buffer()) == 124
    assert server.next_frame() is NEED_DATA


def test_a_refused_hello_is_answered_and_ends() -> None:
    server = Connection(ServerHandshake(Role.SERVER, bytes(32), JOB))
    client = Connection(
        ClientHandshake(Role.WORKER, Purpose.DATA, bytes(32), expects=Role.SERVER, job=b"x" * 16)
    )
    arrive(client, server.open())
    arrive(server, *client.take_replies())
    assert server.state is State.CLOSED
    (refusal,) = server.take_replies()
    with pytest.raises(HandshakeRefused, match="another job"):
        arrive(client, refusal)
    assert client.state is State.CLOSED
    assert server.take_replies() == client.take_replies() == []


def test_after_a_failure_bytes_are_dropped_without_end() -> None:
    """A transport may deliver what it has read already; memory must not run out."""
    connection = in_state(State.FAILED)
    for _ in range(100):
        arrive(connection, bytes(10_000))
        assert connection.next_frame() is NEED_DATA
    assert len(connection.get_buffer()) > 0


def test_a_failed_connection_writes_into_nobody_s_array() -> None:
    """The payload before it was half received into it when the peer lost the thread."""
    array = bytearray(100_000)
    client, _ = worker_and_server(lambda frame, size: memoryview(array))
    arrive(client, wire(Value(request_id=1, payload=bytes(100_000)))[:80])
    take(client)
    client.ended()
    arrive(client, b"\xff" * 50_000)
    assert not any(array)


def test_abandoned_memory_is_let_go() -> None:
    array = bytearray(100_000)
    client, _ = worker_and_server(lambda frame, size: memoryview(array))
    value = Value(request_id=1, payload=b"\x07" * 100_000)
    arrive(client, wire(value)[:80])
    assert take(client) == []
    client.abandon(memoryview(array))
    arrive(client, wire(value)[80:])
    assert take(client) == [value]
    assert array.count(7) == 80 - 64  # what had come before


def test_frames_before_an_error_are_delivered() -> None:
    client, server = worker_and_server()
    good: list[Frame] = [Ping(1), Push(request_id=1, begin=0, end=1, payload=b"four")]
    arrive(server, wire(*good) + handmade(1, damage_body=1) + wire(Ping(2)))
    assert [server.next_frame(), server.next_frame()] == good
    with pytest.raises(ChecksumMismatch):
        server.next_frame()
    assert server.next_frame() is NEED_DATA
    header, payload = server.encode(Goodbye(ChecksumMismatch.code, "damaged"))
    arrive(client, header + bytes(payload))
    assert take(client) == [Goodbye(5, "damaged")]


def test_ping_and_goodbye_pass_on_every_connection() -> None:
    for purpose, side, peer in ENDS:
        connection = connected(purpose, side, peer)
        arrive(connection, wire(Ping(1), Pong(2), Goodbye(0, "bye")))
        assert take(connection) == [Ping(1), Pong(2), Goodbye(0, "bye")]
        assert connection.ended()
