"""The yardstick: push and pull over one blocking socket, with nothing around them.

Here live a server process that adds float32 payloads into its array and sends the array back, and
the client that talks to it. No checks, no key ranges, no retransmission, no event loop: what plain
Python can do with a socket, so that a ratio to it says what all the rest costs.

It is not a straw man. Receive buffers are allocated once, small messages leave in one system call,
and a large payload is added segment by segment while it is warm, as the parameter server does it.

The child dials its parent and leaves at the end of the stream: whoever dies, the other one ends.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Final, Self

import numpy as np

from aiops.errors import AiopsError
from aiops_protocol.limits import SEGMENT_BYTES
from aiops_protocol.payload import Float32Array, as_bytes

HEADER: Final = struct.Struct("<IIQ")
"""Kind, number of the request, bytes of payload that follow (of a pull: that are asked for)."""

PUSH: Final = 1
PULL: Final = 2
ACK: Final = 3
VALUES: Final = 4

ACCEPT_POLL_S: Final = 0.2
"""How often to look whether the child that should dial is still there."""


def serve(connection: socket.socket) -> None:
    """Answer pushes and pulls until the client closes the connection.

    Parameters
    ----------
    connection
        A connected blocking socket. For each size of request there is an array of its own, as each
        size is a table of its own on the other side of the comparison.
    """
    arrays: dict[int, Float32Array] = {}
    piece = np.empty(SEGMENT_BYTES // 4, np.float32)
    piece_bytes = as_bytes(piece)
    header = memoryview(bytearray(HEADER.size))
    while receive_exactly(connection, header):
        kind, request, size = HEADER.unpack(header)
        values = arrays.get(size)
        if values is None:
            values = arrays[size] = np.zeros(size // 4, np.float32)
        if kind == PULL:
            send_all(connection, HEADER.pack(VALUES, request, size), as_bytes(values))
            continue
        for begin in range(0, size, SEGMENT_BYTES):
            piece_size = min(SEGMENT_BYTES, size - begin)
            receive_exactly(connection, piece_bytes[:piece_size])
            target = values[begin // 4 : (begin + piece_size) // 4]
            np.add(target, piece[: piece_size // 4], out=target)
        connection.sendall(HEADER.pack(ACK, request, 0))


class RawClient:
    """The client, with its server in a child process."""

    def __init__(self) -> None:
        self._header = memoryview(bytearray(HEADER.size))
        self._requests = 0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [sys.executable, "-m", __name__, str(listener.getsockname()[1])]
            # A session of its own: Ctrl-C is for the parent, and its end is the child's.
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True
            )
            self._connection = self._accept(listener)
        self._connection.settimeout(None)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def push(self, gradient: Float32Array) -> None:
        """Add a contiguous array to the server's array of that size; return when the ack is in."""
        self._send_push(as_bytes(gradient))
        self._receive_header(ACK)

    def pull(self, out: Float32Array) -> None:
        """Read the server's array of that size into a contiguous one."""
        target = as_bytes(out)
        self._requests += 1
        self._connection.sendall(HEADER.pack(PULL, self._requests, target.nbytes))
        self._receive_header(VALUES)
        if not receive_exactly(self._connection, target):
            raise ConnectionResetError("the raw server left in the middle of a reply")

    def push_many(self, gradient: Float32Array, count: int, window: int) -> float:
        """Push the same array `count` times with `window` of them unanswered at a time.

        Returns
        -------
        seconds : float
            From the first byte sent to the last ack.
        """
        payload = as_bytes(gradient)
        started_at = perf_counter()
        for _ in range(min(window, count)):
            self._send_push(payload)
        for _ in range(count - window):
            self._receive_header(ACK)
            self._send_push(payload)
        for _ in range(min(window, count)):
            self._receive_header(ACK)
        return perf_counter() - started_at

    def close(self) -> None:
        """Close the connection, which ends the child, and wait for it."""
        self._connection.close()
        self._child.wait()

    def __enter__(self) -> Self:
        """Return the client; the child runs already."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _accept(self, listener: socket.socket) -> socket.socket:
        """Wait for the child to dial, as long as it lives."""
        listener.settimeout(ACCEPT_POLL_S)
        while self._child.poll() is None:
            try:
                return listener.accept()[0]
            except TimeoutError:
                continue
            except BaseException:
                self._child.kill()
                self._child.wait()
                raise
        raise AiopsError(f"the raw server ended at once, exit code {self._child.returncode}")

    def _send_push(self, payload: memoryview) -> None:
        self._requests += 1
        send_all(self._connection, HEADER.pack(PUSH, self._requests, payload.nbytes), payload)

    def _receive_header(self, expected: int) -> None:
        if not receive_exactly(self._connection, self._header):
            raise ConnectionResetError("the raw server left")
        kind, _, _ = HEADER.unpack(self._header)
        assert kind == expected


def send_all(connection: socket.socket, header: bytes, payload: memoryview) -> None:
    """Send a header and its payload, in one system call if the socket takes them."""
    sent = connection.sendmsg([header, payload])
    if sent < len(header) + payload.nbytes:  # a signal came in between
        connection.sendall(header[sent:])
        connection.sendall(payload[max(sent - len(header), 0) :])


def receive_exactly(connection: socket.socket, target: memoryview) -> bool:
    """Fill a buffer from a socket; return whether the stream had that much left."""
    filled = 0
    while filled < target.nbytes:
        received = connection.recv_into(target[filled:])
        if received == 0:
            return False
        filled += received
    return True


def main(port: int) -> None:
    """Dial the parent and serve it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the parent was ended in the middle of something
            serve(connection)


if __name__ == "__main__":
    main(int(sys.argv[1]))
