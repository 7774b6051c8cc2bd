"""Connections that break, peers that go, strangers at the doors, addresses that are wrong."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import aiops
from aiops import ASP
from aiops.errors import (
    AiopsError,
    ConfigError,
    DialFailed,
    JoinTimeout,
    NodeFailed,
    PeerMisbehaved,
)
from aiops.optim import Add
from aiops.runtime.addresses import parse_address
from aiops.runtime.dialling import LinkPlan, open_link
from aiops.van import TcpVan
from aiops_protocol.errors import ErrorCode
from aiops_protocol.handshake import Purpose, Role
from aiops_protocol.payload import Float32Array
from local_jobs import (
    go_on,
    guarded,
    local_job,
    parked_at,
    pause,
    served,
    together,
    turns,
    until,
)

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

LARGE = 4 * 1024 * 1024 + 17
NEVER_S = 3600.0  # the heartbeat of a job whose ends are told, and not found out


def ones(size: int = 64) -> Float32Array:
    return np.ones(size, np.float32)


def cut(server: aiops.Server) -> None:
    """Break the server's data connections without a word."""
    for link in served(server):
        link.stream.abort()


# --- broken connections ---


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("after_turns", [1, 2, 4, 8, 16, 32])
async def test_a_cut_in_the_middle_of_a_push_is_not_seen(after_turns: int, stalled: bool) -> None:
    """It is opened again, what was unanswered is sent again, and counts once."""
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", LARGE, optimizer=Add(), consistency=ASP())
        for count in range(1, 4):
            if stalled:
                pause(cluster.servers[0])
            pushing = asyncio.ensure_future(table.push(ones(LARGE)))
            await turns(after_turns)
            cut(cluster.servers[count % 2])
            go_on(cluster.servers[0])
            await pushing
            assert (await table.pull() == count).all()


async def test_many_small_pushes_through_many_cuts_count_once() -> None:
    async def push_all(worker: aiops.Worker) -> None:
        table = await worker.table("w", 64, optimizer=Add(), consistency=ASP())
        for _ in range(20):
            await together(table.push(ones()) for _ in range(10))

    async with local_job(2) as cluster:
        training = asyncio.ensure_future(cluster.run(push_all, workers=3))
        cuts = 0
        while not training.done():
            await asyncio.sleep(0.003)
            cut(cluster.servers[cuts % 2])
            cuts += 1
        await training
        async with cluster.connect() as reader:
            assert (await (await reader.table("w")).pull() == 3 * 200).all()
        assert cuts > 5


async def test_rounds_through_many_cuts_have_the_same_bits() -> None:
    async def train(worker: aiops.Worker) -> bytes:
        table = await worker.table("w", 64, optimizer=Add())
        for step in range(30):
            await table.push_pull(
                np.random.default_rng((worker.rank, step)).standard_normal(64, np.float32)
            )
            await worker.tick()
        return (await table.pull()).tobytes()

    async def cut_now_and_then(cluster: aiops.LocalCluster) -> None:
        while True:
            for server in cluster.servers:
                await asyncio.sleep(0.004)
                cut(server)

    async with local_job(2) as calm:
        expected = await calm.run(train, workers=3)
    async with local_job(2) as cluster:
        cutting = asyncio.ensure_future(cut_now_and_then(cluster))
        results = await cluster.run(train, workers=3)
        cutting.cancel()
        await asyncio.wait([cutting])
    assert results == expected
    assert len(set(results)) == 1


async def test_a_pull_that_waits_by_rule_survives_a_cut() -> None:
    async with local_job() as cluster, cluster.connect() as a, cluster.connect() as b:
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in (a, b))
        await tables[0].push(ones())
        await a.tick()
        waiting = asyncio.ensure_future(tables[0].pull())
        ahead = asyncio.ensure_future(tables[0].push(ones()))
        await until(lambda: parked_at(cluster.servers[0]))
        for _ in range(5):
            cut(cluster.servers[0])
            await turns(30)
        await b.tick()
        assert (await waiting == 1).all()
        await ahead
        await together(worker.tick() for worker in (a, b))
        assert (await tables[1].pull() == 2).all()


async def test_a_connection_that_was_damaged_is_opened_again() -> None:
    """A server that says goodbye over a checksum has not left."""
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add(), consistency=ASP())
        for count in range(1, 4):
            for link in served(cluster.servers[0]):
                link.close(ErrorCode.CHECKSUM_MISMATCH, "damaged")
            await table.push(ones())
            assert (await table.pull() == count).all()


async def test_a_server_that_ends_each_connection_is_not_called_in_a_frenzy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add(), consistency=ASP())
        server = cluster.servers[0]

        def refuse(*_: object) -> None:
            raise RuntimeError("a request that this server cannot stomach")

        monkeypatch.setattr(server, "_handle", refuse)
        before = server.meter.connections
        pushing = asyncio.ensure_future(table.push(ones()))
        await asyncio.wait([pushing], timeout=0.4)
        assert not pushing.done()
        assert server.meter.connections - before < 10
        await until(lambda: server.meter.connections - before > 2)
        monkeypatch.undo()
        await pushing
        assert (await table.pull() == 1).all()


# --- nodes that go ---


async def test_a_server_that_closes_while_training_names_itself_and_its_keys() -> None:
    async with local_job(2, heartbeat_s=NEVER_S) as cluster:
        workers = [await cluster.connect() for _ in range(2)]
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in workers)
        await workers[0].tick()
        waiting = asyncio.ensure_future(tables[0].pull())
        await turns(5)
        part = next(part for part in tables[0].partition if part["server"] == 1)
        address = cluster.servers[1].address
        await cluster.servers[1].close()
        keys = rf"w \[{part['begin']}, {part['end']}\)"
        with pytest.raises(NodeFailed, match=r"server 1 \(server-1\)"):
            await waiting
        await until(lambda: workers[0].postoffice.failure and workers[1].postoffice.failure)
        for table in tables:
            with pytest.raises(NodeFailed, match=rf"server 1 \(server-1\) at {address}.*{keys}"):
                await table.push(ones())
        for worker in workers:
            with pytest.raises(NodeFailed):
                await worker.close()
        assert cluster.status()["ended"]["ok"] is False


async def test_a_server_without_keys_may_leave() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        table = await worker.table("w", 4, optimizer=Add(), consistency=ASP())
        owner = table.partition[0]["server"]
        await cluster.servers[1 - owner].close()
        await table.push(ones(4))
        assert (await table.pull() == 1).all()


async def test_a_scheduler_that_closes_ends_everybody_by_saying_so() -> None:
    async with local_job(2, heartbeat_s=NEVER_S) as cluster:
        workers = [await cluster.connect() for _ in range(2)]
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in workers)
        await workers[0].tick()
        waiting = [
            asyncio.ensure_future(call)
            for call in (tables[0].pull(), workers[0].barrier("x"), anext(tables[1].updates()))
        ]
        await turns(5)
        closing = asyncio.ensure_future(cluster.scheduler.close("for a test"))
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, AiopsError) for result in results[:2]), results
        for worker in workers:
            with pytest.raises(AiopsError, match="for a test"):
                worker.check()
            await worker.close()
        await closing
        for server in cluster.servers:
            assert (await server.wait_ended()).ok


async def test_a_scheduler_that_vanishes_ends_everybody_before_its_heartbeats_are_missed() -> None:
    """Or the error would say that it has not answered."""
    async with local_job(2) as cluster:
        worker = await cluster.connect()
        table = await worker.table("w", 64, optimizer=Add())
        listener = cluster.scheduler._listener
        assert listener is not None
        await listener.close()
        for link in [*cluster.scheduler._links.values(), *cluster.scheduler._hearts.values()]:
            link.stream.abort()
        await until(lambda: worker.postoffice.failure is not None)
        for call in (table.pull(), table.push(ones()), worker.tick(), worker.barrier("x")):
            with pytest.raises(NodeFailed, match=r"scheduler at .* is gone: "):
                await call
        with pytest.raises(NodeFailed):
            await worker.close()


# --- wrong addresses, wrong peers ---


async def test_a_worker_of_one_job_at_a_server_of_another() -> None:
    async with local_job() as left, aiops.LocalCluster() as right, left.connect() as worker:
        await worker.table("w", 4)
        plan = LinkPlan(
            parse_address(right.servers[0].address, "a test"),
            "server 0",
            Role.WORKER,
            Role.SERVER,
            Purpose.DATA,
            job=bytes.fromhex(worker.job),
            rank=worker.rank,
            incarnation=worker.incarnation,
        )
        with pytest.raises(PeerMisbehaved, match=r"server 0 at .* refuses this worker: .*job"):
            await open_link(TcpVan(), plan, Nobody(), timeout_s=60)


class Nobody:
    """Owns a link that never comes to be."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


async def test_a_server_is_not_a_scheduler() -> None:
    async with local_job() as cluster:
        with pytest.raises(PeerMisbehaved, match=r"the scheduler at .* server"):
            await aiops.connect(cluster.servers[0].address, timeout_s=60)
        with pytest.raises(PeerMisbehaved, match=r"the scheduler at .* server"):
            await aiops.fetch_status(cluster.servers[0].address, timeout_s=60)


@pytest.mark.parametrize(
    "stranger",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303") + bytes(200),
        b"\x00" * 100,
        b"",
        bytes(range(256)) * 50,
        b"AIOP",
    ],
    ids=["http", "tls", "zeros", "nothing", "noise", "half-magic"],
)
async def test_strangers_leave_the_cluster_working(stranger: bytes) -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        table = await worker.table("w", 64, optimizer=Add(), consistency=ASP())
        for address in (cluster.address, cluster.servers[0].address):
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(stranger)
            if stranger in (b"", b"AIOP"):
                writer.write_eof()
            with_answer = asyncio.ensure_future(reader.read())
            await table.push(ones())
            with suppress(ConnectionError):
                await with_answer
            writer.close()
        assert (await table.pull() == 2).all()


async def test_a_web_server_is_not_a_scheduler() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        writer.close()

    async with guarded():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(PeerMisbehaved, match=f"127.0.0.1:{port}"):
            await aiops.connect(f"127.0.0.1:{port}", timeout_s=60)
        server.close()


async def test_nobody_listens() -> None:
    async with guarded():
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            with pytest.raises(
                DialFailed,
                match=rf"gave up connecting to the scheduler at {address} after \d+ attempts? in "
                r"\d+\.\d s: .*nobody listens there",
            ) as caught:
                await aiops.connect(address, timeout_s=0.5)
            assert caught.value.retryable


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking the name server of this machine, which may take its time."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with guarded():
        with pytest.raises(DialFailed, match=r"no-such-host.invalid:1 .*does not resolve"):
            await aiops.connect("no-such-host.invalid:1", timeout_s=1.0)
        await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.parametrize(
    "address", ["", "localhost", "host:port", "127.0.0.1:70000", ":9070", "::1:80", "a:b:1"]
)
async def test_an_address_that_is_none(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIOPS_SCHEDULER", raising=False)
    with pytest.raises(ConfigError, match=r"host:port|brackets|name a host"):
        _ = aiops.connect(address)


async def test_the_environment_names_scheduler_and_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with local_job() as cluster:
        monkeypatch.setenv("AIOPS_SCHEDULER", cluster.address)
        monkeypatch.setenv("AIOPS_NAME", "from-the-environment")
        async with aiops.connect(heartbeat_thread=False) as worker:
            assert worker.name == "from-the-environment"
            assert [member.role for member in worker.members] == ["server", "worker"]


@pytest.mark.parametrize("after_turns", [0, 1, 2, 3, 5, 8, 12, 18, 25, 40])
async def test_a_connect_cancelled_at_any_turn_leaves_nothing(after_turns: int) -> None:
    async with local_job(2, on_worker_loss="continue") as cluster, cluster.connect() as other:
        connecting = asyncio.ensure_future(cluster.connect(name="fickle")._connect())
        await turns(after_turns)
        connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled():
            await connecting.result().close()
        await until(lambda: other.world_size == 1)
        table = await other.table("w", 64, optimizer=Add())
        await table.push(ones())
        await other.tick()
        assert (await table.pull() == 1).all()
        async with cluster.connect(name="fickle") as again:
            assert again.world_size == 2


# --- names ---


async def test_the_name_of_a_worker_that_has_left_is_free() -> None:
    async with local_job() as cluster:
        for incarnation in (1, 2, 3):
            async with cluster.connect(name="again") as worker:
                assert (worker.rank, worker.incarnation) == (0, incarnation)


async def test_a_restart_may_come_before_the_end_of_the_former_connection() -> None:
    async with local_job(on_worker_loss="continue") as cluster, cluster.connect():
        former = await cluster.connect(name="phoenix")
        joining = asyncio.ensure_future(cluster.connect(name="phoenix").__aenter__())
        await turns(20)
        assert not joining.done()
        await former.close(RuntimeError("crash"))
        latter = await joining
        assert (latter.rank, latter.incarnation) == (former.rank, 2)
        await latter.close()


@pytest.mark.parametrize("name", ["a b", "ü", "x" * 65, "a/b", "line\n", 3])
async def test_a_worker_name_that_may_not_travel(name: Any) -> None:
    async with local_job() as cluster:
        with pytest.raises(ConfigError, match=r"worker's name.*letters, digits"):
            _ = cluster.connect(name=name)


async def test_workers_without_names_get_unique_ones() -> None:
    async with local_job() as cluster:
        workers = await together(cluster.connect()._connect() for _ in range(5))
        assert len({worker.name for worker in workers}) == 5
        assert sorted(worker.rank for worker in workers) == [0, 1, 2, 3, 4]
        for worker in workers:
            await worker.close()


async def test_who_is_missing_when_the_job_is_not_complete() -> None:
    async with (
        guarded(),
        aiops.Scheduler(servers=2, workers=3) as scheduler,
        aiops.Server(scheduler.address, heartbeat_thread=False),
    ):
        with pytest.raises(
            JoinTimeout, match=r"after 1 s 1/2 servers and 1/3 workers have registered"
        ):
            await aiops.connect(scheduler.address, timeout_s=1.0, heartbeat_thread=False)


async def test_a_goodbye_of_an_ending_server_is_final() -> None:
    """Nobody dials a server that has said that it ends."""
    async with local_job() as cluster:
        worker = await cluster.connect()
        table = await worker.table("w", 64, optimizer=Add(), consistency=ASP())
        for link in served(cluster.servers[0]):
            link.close(ErrorCode.SHUTTING_DOWN, "the server ends")
        with pytest.raises(NodeFailed, match=r"server 0 \(server-0\).*the server ends"):
            await table.push(ones())
        with pytest.raises(NodeFailed, match="the server ends"):
            await table.pull()
        await worker.close(RuntimeError("enough"))
