"""Ends of connections that have shaken hands, for tests that begin after that."""

from __future__ import annotations

from aiops_protocol.buffer import Destination
from aiops_protocol.connection import Connection, Side
from aiops_protocol.greeting import Purpose, Role
from aiops_protocol.handshake import ADMITTED, ClientHandshake, ServerHandshake

JOB = bytes(range(16))


def pair(
    accepting: Role, purpose: Purpose, dialling: Role, destination: Destination | None = None
) -> tuple[Connection, Connection]:
    """The accepting and the dialling end, READY; `destination` is the dialling one's."""
    server = Connection(ServerHandshake(accepting, bytes(32), JOB))
    handshake = ClientHandshake(dialling, purpose, b"c" * 32, expects=accepting, job=JOB)
    client = Connection(handshake, destination)
    arrive(client, server.open())
    (hello,) = client.take_replies()
    arrive(server, hello)
    (welcome,) = server.take_replies()
    arrive(client, welcome)
    assert client.take_replies() == []
    return server, client


def connected(purpose: Purpose, side: Side, peer: Role) -> Connection:
    """This side of a connection with such a peer."""
    for (accepting, about), dialling in ADMITTED.items():
        if about == purpose and side is Side.ACCEPTED and peer in dialling:
            return pair(Role(accepting), purpose, peer)[0]
        if about == purpose and side is Side.DIALLED and peer == accepting:
            return pair(peer, purpose, Role.WORKER)[1]
    raise AssertionError(f"no such connection: {purpose!r} {side} {peer!r}")


def arrive(connection: Connection, data: bytes) -> None:
    """Let bytes arrive at a connection, in pieces as it offers memory."""
    while data:
        memory = connection.get_buffer()
        count = min(len(memory), len(data))
        memory[:count] = data[:count]
        data = data[count:]
        connection.received(count)
