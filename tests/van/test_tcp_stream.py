"""What only a real socket shows: system calls, resets, and a peer that is no stream of ours."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import pytest

from aiops.van import tcp_stream
from aiops.van.base import Stream
from aiops.van.sinks import PIECES_PER_CALL_MAX, SocketSink
from aiops.van.tcp import TcpVan
from aiops_protocol.payload import Buffer
from van_bodies import ANYWHERE, GUARD_S, Ends, Recorder, leaving_nothing, pattern

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


@asynccontextmanager
async def facing_a_socket(
    *, direct: bool = True, make: Callable[[Stream], Recorder] = Recorder
) -> AsyncIterator[tuple[Recorder, socket.socket]]:
    """Give a stream and the plain blocking socket at its other end."""
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        far = Ends(make)
        listener = await TcpVan(direct=direct).listen(ANYWHERE, far)
        with socket.create_connection(listener.address) as peer:
            peer.settimeout(GUARD_S)
            recorder = await far.number(0)
            await listener.close()
            yield recorder, peer
            recorder.stream.abort()
            await far.ended()


@contextmanager
def counted_sends(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the calls into the kernel: one entry with the number of bytes for each."""
    calls: list[int] = []
    real = SocketSink.send

    def send(self: SocketSink, chunks: Sequence[Buffer]) -> int:
        calls.append(real(self, chunks))
        return calls[-1]

    with monkeypatch.context() as patch:
        patch.setattr(SocketSink, "send", send)
        yield calls


def read(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes, blocking; fewer at the end of the stream."""
    data = bytearray()
    while len(data) < count and (piece := sock.recv(count - len(data))):
        data += piece
    return bytes(data)


def reset(sock: socket.socket) -> None:
    """Close with a reset, as a crash with unread input does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@BOTH_LOOPS
@pytest.mark.parametrize("size", [3, 100_000])
async def test_a_write_is_on_its_way_when_it_returns(size: int) -> None:
    """A worker that pushes and then computes for a second has pushed."""
    async with facing_a_socket() as (recorder, peer):
        recorder.stream.write(bytes(size))
        assert read(peer, size) == bytes(size)  # blocks the loop, as a computation does


@BOTH_LOOPS
async def test_small_writes_of_one_turn_leave_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async with facing_a_socket() as (recorder, peer):
        with counted_sends(monkeypatch) as calls:
            for number in range(500):
                recorder.stream.write(number.to_bytes(4, "little"), b"....")
            assert recorder.stream.pending_bytes == 499 * 8
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert calls == [8, 499 * 8]
        assert recorder.stream.pending_bytes == 0
        expected = b"".join(number.to_bytes(4, "little") + b"...." for number in range(500))
        assert read(peer, len(expected)) == expected


@BOTH_LOOPS
async def test_answers_to_what_arrived_together_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No turn of the loop is waited for: the answers go out when the handler returns."""

    class Answering(Recorder):
        def received(self, count: int) -> None:
            super().received(count)
            for _ in range(count):
                self.stream.write(b"answer")

    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        far = Ends(Answering)
        listener = await TcpVan().listen(ANYWHERE, far)
        with socket.create_connection(listener.address) as peer:
            recorder = await far.number(0)
            with counted_sends(monkeypatch) as calls:
                peer.sendall(b"abcdefgh")
                await recorder.has(8)
                assert calls == [48]
        await far.ended()
        await listener.close()


@BOTH_LOOPS
async def test_flush_does_not_wait_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with facing_a_socket() as (recorder, _peer):
        with counted_sends(monkeypatch) as calls:
            recorder.stream.write(b"first")
            recorder.stream.write(b"second")
            recorder.stream.flush()
            assert calls == [5, 6]
            recorder.stream.flush()
            assert calls == [5, 6]


@BOTH_LOOPS
async def test_a_large_write_takes_what_was_gathered_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Header and payload of a segment are one call into the kernel, in order."""
    async with facing_a_socket() as (recorder, peer):
        with counted_sends(monkeypatch) as calls:
            recorder.stream.write(b"1")
            recorder.stream.write(b"22")
            recorder.stream.write(b"333", pattern(50_000), borrowed=True)
            assert calls == [1, 2 + 3 + 50_000]
        assert read(peer, 6 + 50_000) == b"122333" + pattern(50_000)


@BOTH_LOOPS
@pytest.mark.parametrize("direct", [True, False])
async def test_more_buffers_than_one_call_takes(direct: bool) -> None:
    async with facing_a_socket(direct=direct) as (recorder, peer):
        count = 3 * PIECES_PER_CALL_MAX
        recorder.stream.write(*[pattern(16, seed=number) for number in range(count)])
        expected = b"".join(pattern(16, seed=number) for number in range(count))
        receiving = asyncio.to_thread(read, peer, len(expected))
        assert await receiving == expected


@BOTH_LOOPS
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_failed_write_does_not_hide_the_peer_s_last_words(end: str) -> None:
    """A peer says goodbye and leaves; we write before we read."""
    async with facing_a_socket() as (recorder, peer):
        peer.sendall(b"goodbye")
        peer.close() if end == "close" else reset(peer)
        for _ in range(5):  # the first write may pass, its answer is a reset
            recorder.stream.write(b"are you there?")
            recorder.stream.write(pattern(100_000))
        assert not recorder.losses, "never from within write"
        await recorder.ended.wait()
        assert recorder.data == b"goodbye"
        assert recorder.error is None or isinstance(recorder.error, ConnectionError)


@BOTH_LOOPS
@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_write_to_a_lost_peer_raises_no_signal(pieces: int) -> None:
    """A host program may have set SIGPIPE back to its default, which is death."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        async with facing_a_socket() as (recorder, peer):
            peer.close()
            for _ in range(3):
                recorder.stream.write(*[pattern(50_000)] * pieces)
            await recorder.ended.wait()
            assert isinstance(recorder.error, ConnectionError)
    finally:
        signal.signal(signal.SIGPIPE, before)


@BOTH_LOOPS
async def test_after_a_stall_writes_leave_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the socket is not watched any more, which would keep the loop spinning."""
    async with facing_a_socket() as (recorder, peer):
        for _ in range(2):
            size = 0
            while not recorder.stream.full:
                recorder.stream.write(bytes(1_000_000))
                size += 1_000_000
            await asyncio.to_thread(read, peer, size)
            drained = len(recorder.drained_at)
            with counted_sends(monkeypatch) as calls:
                recorder.stream.write(b"at once")
                assert peer.recv(7) == b"at once"
                recorder.stream.flush()
                for _ in range(10):
                    await asyncio.sleep(0)
                assert calls == [7]
            assert len(recorder.drained_at) == drained
        assert len(recorder.drained_at) == 2


@BOTH_LOOPS
async def test_a_killed_peer_looks_like_an_end() -> None:
    """The kernel closes for it. Whether that is a crash is for the protocol to say."""
    async with facing_a_socket() as (recorder, peer):
        peer.close()
        await recorder.ended.wait()
        assert recorder.error is None


@BOTH_LOOPS
@pytest.mark.parametrize("direct", [True, False])
async def test_close_sends_an_end_and_does_not_wait_long_for_the_peer_s(
    direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_stream, "CLOSE_TIMEOUT_S", 0.1)
    async with facing_a_socket(direct=direct) as (recorder, peer):
        recorder.stream.write(b"last")
        recorder.stream.close()
        await recorder.ended.wait()
        assert recorder.error is None
        assert peer.recv(100) == b"last"
        assert peer.recv(100) == b""


@BOTH_LOOPS
async def test_abort_resets() -> None:
    """So that the kernel keeps nothing for a peer that was given up."""
    async with facing_a_socket() as (recorder, peer):
        recorder.stream.abort()
        await recorder.ended.wait()
        await asyncio.sleep(0)  # uvloop closes the socket on the next turn
        with pytest.raises(ConnectionResetError):
            peer.recv(1)


@BOTH_LOOPS
async def test_socket_options() -> None:
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        near, far = Ends(), Ends()
        van = TcpVan(stall_timeout_s=7.5)
        listener = await van.listen(ANYWHERE, far)
        await van.dial(listener.address, near)
        await far.number(0)
        for recorder in (*near.all, *far.all):
            assert isinstance(recorder.stream, tcp_stream.TcpStream)
            assert recorder.stream._transport is not None
            options = recorder.stream._transport.get_extra_info("socket")
            assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            assert options.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert options.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7500
            recorder.stream.abort()
        await near.ended()
        await far.ended()
        await listener.close()


class Filling(Recorder):
    """Has one long buffer, which is filled bit by bit."""

    def get_buffer(self) -> memoryview:
        return self._memory[len(self.data) :]

    def received(self, count: int) -> None:
        self.data += self.get_buffer()[:count]
        self._progress.set()


def filling(stream: Stream) -> Recorder:
    stream.batch_bytes = 100_000
    return Filling(stream, 250_000)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is told of every byte")
@BOTH_LOOPS
async def test_a_long_buffer_is_filled_in_batches() -> None:
    def least() -> int:
        assert isinstance(recorder.stream, tcp_stream.TcpStream)
        assert recorder.stream._transport is not None
        sock = recorder.stream._transport.get_extra_info("socket")
        return int(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

    async with facing_a_socket(make=filling) as (recorder, peer):
        peer.sendall(b"a")
        assert await recorder.has(1) == b"a"
        assert least() == 100_000
        peer.sendall(bytes(99_999))
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(recorder.data) == 1
        peer.sendall(b"b")
        assert len(await recorder.has(100_001)) == 100_001
        assert least() == 100_000
        peer.sendall(bytes(140_000))
        assert len(await recorder.has(240_001)) == 240_001
        assert least() == 1  # what is missing is not worth waiting for


@BOTH_LOOPS
async def test_the_end_is_told_whatever_was_waited_for() -> None:
    async with facing_a_socket(make=filling) as (recorder, peer):
        peer.sendall(b"a")
        await recorder.has(1)
        peer.sendall(b"last words")
        peer.close()
        await recorder.ended.wait()
        assert bytes(recorder.data) == b"alast words"
        assert recorder.error is None
