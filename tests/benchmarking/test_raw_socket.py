"""The yardstick does the work that it is a yardstick for."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from aiops.benchmarking import raw
from aiops.benchmarking.raw import RawClient, receive_exactly, send_all
from aiops_protocol.limits import SEGMENT_BYTES

# A multiple of the segment, not a multiple, and the smallest there is.
SIZES = [4, 4096, SEGMENT_BYTES, 2 * SEGMENT_BYTES + 12]


@pytest.mark.parametrize("size", SIZES)
def test_pushes_add_up_and_pulls_return_the_sum(raw_client: RawClient, size: int) -> None:
    gradient = np.arange(size // 4, dtype=np.float32)
    raw_client.push(gradient)
    raw_client.push(gradient)
    values = np.empty_like(gradient)
    raw_client.pull(values)
    assert values.tobytes() == (gradient + gradient).tobytes()


def test_each_size_has_an_array_of_its_own(raw_client: RawClient) -> None:
    raw_client.push(np.ones(8, np.float32))
    values = np.empty(4, np.float32)
    raw_client.pull(values)
    assert not values.any()


@pytest.mark.parametrize(("count", "window"), [(100, 64), (64, 64), (3, 64), (10, 1)])
def test_every_push_in_flight_is_added_once(raw_client: RawClient, count: int, window: int) -> None:
    gradient = np.ones(1024, np.float32)
    assert raw_client.push_many(gradient, count, window) > 0
    values = np.empty_like(gradient)
    raw_client.pull(values)
    assert (values == count).all()


def test_a_server_that_dies_is_an_error_not_a_wait(raw_client: RawClient) -> None:
    raw_client._child.kill()
    raw_client._child.wait()
    with pytest.raises(OSError):  # noqa: PT011  # which one depends on what the kernel saw first
        raw_client.pull(np.empty(4, np.float32))


def test_a_short_send_is_completed() -> None:
    """A signal may interrupt the system call anywhere, also within the header."""

    class Interrupted:
        def __init__(self, connection: socket.socket, taken: int) -> None:
            self._connection, self._taken = connection, taken

        def sendmsg(self, buffers: list[bytes | memoryview]) -> int:
            self._connection.sendall(b"".join(buffers)[: self._taken])
            return self._taken

        def sendall(self, data: bytes | memoryview) -> None:
            self._connection.sendall(data)

    for taken in (0, 5, 16, 17, 24):
        left, right = socket.socketpair()
        with left, right:
            send_all(Interrupted(left, taken), b"h" * 16, memoryview(b"payload!"))  # type: ignore[arg-type]
            got = memoryview(bytearray(24))
            assert receive_exactly(right, got)
            assert bytes(got) == b"h" * 16 + b"payload!"


def test_the_server_leaves_when_its_client_does() -> None:
    left, right = socket.socketpair()
    with right:
        server = threading.Thread(target=raw.serve, args=(right,))
        server.start()
        left.close()
        server.join(timeout=180)
        assert not server.is_alive()
