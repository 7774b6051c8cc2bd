"""Doors and dialling: addresses, limits, and errors that say what to do."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from aiops.errors import ConfigError, DialFailed
from aiops.van import tcp
from aiops.van.base import Address
from aiops.van.tcp import TcpVan
from van_bodies import ANYWHERE, GUARD_S, Ends, Recorder, leaving_nothing

BOTH_LOOPS = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
ROOT = Path(__file__).resolve().parents[2]


def not_refused(peers: list[socket.socket], expected: int) -> list[socket.socket]:
    """Wait until all but so many are closed by the other side, and return those that are not.

    Which ones is the system's choice: a door need not see connections in the order of the calls
    that made them, and a refusal may arrive as a reset.
    """
    still = dict.fromkeys(peers)
    end = time.monotonic() + GUARD_S
    with selectors.DefaultSelector() as selector:
        for peer in peers:
            selector.register(peer, selectors.EVENT_READ)
        while len(still) > expected:
            ready = selector.select(end - time.monotonic())
            assert ready, f"{len(still)} connections are open, not {expected}"
            for key, _ in ready:
                selector.unregister(key.fileobj)
                assert isinstance(key.fileobj, socket.socket)
                with suppress(ConnectionResetError):
                    assert key.fileobj.recv(1) == b""
                del still[key.fileobj]
    return list(still)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (
            Address("192.0.2.1", 0),
            r"192\.0\.2\.1:0: not an address of this machine \(EADDRNOTAVAIL",
        ),
        (Address("two words", 0), r"two words:0: the host does not resolve .*check the spelling"),
        (Address("a" * 80, 0), r"the host does not resolve"),
        (Address("", 0), r"name a host, 127\.0\.0\.1 for this machine only"),
        (Address("127.0.0.1", 65536), r"127\.0\.0\.1:65536: a port is a number from 0 to 65535"),
        (Address("127.0.0.1", -1), r"a port is a number"),
    ],
)
async def test_a_door_that_cannot_be_opened(address: Address, says: str) -> None:
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        with pytest.raises(ConfigError, match=says):
            await TcpVan().listen(address, Recorder)


async def test_a_taken_port_is_named_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            await TcpVan().listen(Address("127.0.0.1", port), Recorder)
        assert str(caught.value) == (
            f"cannot listen on 127.0.0.1:{port}: the address is in use (EADDRINUSE); stop what "
            f"listens there, take another port, or use port 0 for a free one"
        )
        assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("address", "says", "retryable"),
    [
        (Address("two words", 9), r"two words:9: the host does not resolve", True),
        (Address("224.0.0.1", 9), r"224\.0\.0\.1:9: the network does not reach it \(ENETUN", True),
        (Address("127.0.0.1", 70000), r"a port is a number", False),
    ],
)
async def test_a_dial_that_cannot_succeed(address: Address, says: str, retryable: bool) -> None:
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        with pytest.raises(DialFailed, match=says) as caught:
            await TcpVan().dial(address, Recorder)
        assert caught.value.peer == str(address)
        assert caught.value.retryable is retryable
        assert isinstance(caught.value.__cause__, OSError)


@BOTH_LOOPS
async def test_a_dial_without_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of a listener that never accepts is full: the kernel ignores the rest."""
    monkeypatch.setattr(tcp, "DIAL_TIMEOUT_S", 0.1)
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        with socket.socket() as silent, socket.socket() as first, socket.socket() as second:
            silent.bind(("127.0.0.1", 0))
            silent.listen(0)
            for filling in (first, second):
                filling.setblocking(False)
                filling.connect_ex(silent.getsockname())
            with pytest.raises(DialFailed, match=r"no answer \(ETIMEDOUT\)") as caught:
                await TcpVan().dial(Address(*silent.getsockname()), Recorder)
            assert caught.value.retryable


@BOTH_LOOPS
@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 loopback here")
async def test_ipv6() -> None:
    near, far = Ends(), Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        van = TcpVan()
        listener = await van.listen(Address("::1", 0), far)
        assert str(listener.address) == f"[::1]:{listener.address.port}"
        stream = await van.dial(listener.address, near)
        assert stream.remote == str(listener.address)
        stream.write(b"six")
        assert await (await far.number(0)).has(3) == b"six"
        assert far.all[0].stream.remote == stream.local
        stream.close()
        await near.ended()
        await far.ended()
        await listener.close()


@BOTH_LOOPS
async def test_names_work_at_both_ends() -> None:
    """A name may have addresses at which nobody listens; the others are tried."""
    near, far = Ends(), Ends()
    async with asyncio.timeout(GUARD_S):
        van = TcpVan()
        listener = await van.listen(Address("localhost", 0), far)
        assert listener.address.port
        stream = await van.dial(Address("localhost", listener.address.port), near)
        stream.close()
        await near.ended()
        await listener.close()
        await far.ended()


@BOTH_LOOPS
@pytest.mark.parametrize("listening", [False, True])
async def test_a_ready_socket_can_be_given(listening: bool) -> None:
    near, far = Ends(), Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        van = TcpVan()
        given = socket.socket()
        given.bind(("127.0.0.1", 0))
        if listening:
            given.listen()
        address = Address(*given.getsockname())
        listener = van.listen_socket(given, far)
        assert listener.address == address
        stream = await van.dial(address, near)
        await far.number(0)
        stream.close()
        await near.ended()
        await far.ended()
        await listener.close()
        assert given.fileno() == -1, "the listener owns it"


async def test_a_socket_that_is_no_door_is_refused() -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
        pytest.raises(ConfigError, match="not a TCP socket"),
    ):
        TcpVan().listen_socket(datagrams, Recorder)


@BOTH_LOOPS
async def test_a_port_in_time_wait_can_be_taken_at_once() -> None:
    """The server ended first, so its end of the connection lingers in the kernel."""
    near, far = Ends(), Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        van = TcpVan()
        listener = await van.listen(ANYWHERE, far)
        await van.dial(listener.address, near)
        (await far.number(0)).stream.close()
        await far.ended()
        await near.ended()
        await listener.close()
        again = await van.listen(listener.address, far)
        await again.close()


@BOTH_LOOPS
@pytest.mark.parametrize("direct", [True, False])
async def test_connections_over_the_limit_are_closed_at_once(
    direct: bool, caplog: pytest.LogCaptureFixture
) -> None:
    far = Ends()
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        listener = await TcpVan(connections_max=3, direct=direct).listen(ANYWHERE, far)
        peers = [socket.create_connection(listener.address) for _ in range(20)]
        await far.number(2)
        taken = await asyncio.to_thread(not_refused, peers, 3)
        assert len(far.all) == 3
        assert caplog.text.count("connection_refused") == 1, "a flood is one line"
        taken[0].close()
        await asyncio.wait(
            [asyncio.ensure_future(one.ended.wait()) for one in far.all],
            return_when=asyncio.FIRST_COMPLETED,
        )
        late = socket.create_connection(listener.address)
        await far.number(3)
        for peer in (*peers, late):
            peer.close()
        await far.ended()
        await listener.close()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_connection_to_oneself_counts_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody listening the kernel may choose the dialled port for our own end."""
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def connect_from_there(sock: socket.socket, address: tuple[str, int]) -> None:
        sock.bind(address)
        await connect(sock, address)

    monkeypatch.setattr(loop, "sock_connect", connect_from_there)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = Address(*probe.getsockname())
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        with pytest.raises(DialFailed, match="nobody listens there"):
            await TcpVan().dial(own, Recorder)


LITTLE_ROOM = """
import asyncio, resource, socket, sys
from van_bodies import Ends, Recorder
from aiops.errors import DialFailed
from aiops.van.base import Address
from aiops.van.tcp import TcpVan

async def main() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: print("stray:", context))
    far = Ends()
    listener = await TcpVan().listen(Address("127.0.0.1", 0), far)
    print(listener.address.port, flush=True)
    line = await loop.run_in_executor(None, sys.stdin.readline)  # the flood has been sent
    print(len(far.all), flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)  # the flood has left
    await far.ended()
    taken = []
    try:
        while True:
            taken.append(open("/dev/null"))
    except OSError:
        pass
    try:
        await TcpVan().dial(listener.address, Recorder)
    except DialFailed as error:
        print(error, flush=True)
    before = len(far.all)
    print("full", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)  # somebody has connected
    assert len(far.all) == before
    for file in taken:
        file.close()
    recorder = await far.number(before)
    recorder.stream.write(b"welcome")
    recorder.stream.close()
    await far.ended()
    await listener.close()

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
if sys.argv[1] == "uvloop":
    import uvloop
    factory = uvloop.new_event_loop
else:
    factory = asyncio.SelectorEventLoop
with asyncio.Runner(loop_factory=factory) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_process_with_few_descriptors_stays_up(loop: str) -> None:
    """A flood is cut off below the system's limit; at the limit the door rests and comes back."""
    code = [sys.executable, "-W", "error", "-c", LITTLE_ROOM, loop]
    paths = os.pathsep.join(str(ROOT / root) for root in (".", "protocol", "tests/support"))
    with subprocess.Popen(
        code,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        guard = threading.Timer(GUARD_S, process.kill)
        guard.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            address = ("127.0.0.1", int(process.stdout.readline()))
            peers = [socket.create_connection(address, timeout=GUARD_S) for _ in range(60)]
            not_refused(peers, 16)  # 64 less the 32 that are kept, and two for each connection
            print("flooded", file=process.stdin, flush=True)
            assert process.stdout.readline() == "16\n"
            for peer in peers:
                peer.close()
            print("left", file=process.stdin, flush=True)
            assert "EMFILE" in process.stdout.readline()
            assert process.stdout.readline() == "full\n"
            with socket.create_connection(address, timeout=GUARD_S) as peer:
                print("connected", file=process.stdin, flush=True)
                assert peer.recv(100) == b"welcome"
            rest, complaints = process.communicate()
        finally:
            guard.cancel()
            process.kill()
    assert rest == ""
    assert process.returncode == 0, complaints
    assert complaints.count("connection_refused") == 1, complaints
    assert complaints.count("accepting_paused") == 1, complaints
