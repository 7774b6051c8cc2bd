"""The roles embedded in a program of one's own: addresses, sockets, the start and the end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import numpy as np
import pytest

import aiops
from aiops.errors import AiopsError, ConfigError, DialFailed, PeerMisbehaved, RequestRejected
from aiops.optim import Add
from local_jobs import guarded, together, turns, until
from van_bodies import GUARD_S

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])


def server_of(scheduler: aiops.Scheduler, **options: Any) -> aiops.Server:
    return aiops.Server(scheduler.address, heartbeat_thread=False, **options)


def worker_of(scheduler: aiops.Scheduler, **options: Any) -> Any:
    return aiops.connect(scheduler.address, heartbeat_thread=False, **options)


async def test_all_three_roles_in_one_loop() -> None:
    async with (
        guarded(),
        aiops.Scheduler(servers=1, workers=2, end_when_idle=True) as scheduler,
        server_of(scheduler) as server,
    ):
        left, right = await together(worker_of(scheduler)._connect() for _ in range(2))
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in (left, right))
        await together(table.push(np.ones(64, np.float32)) for table in tables)
        await together(worker.tick() for worker in (left, right))
        assert (await tables[1].pull() == 1).all()
        await together(worker.close() for worker in (left, right))
        ended = await scheduler.wait_ended()
        assert (ended.ok, ended.reason) == (True, "all workers have finished")
        assert (await server.wait_ended()).ok


async def test_workers_wait_until_all_have_registered() -> None:
    async with guarded(), aiops.Scheduler(servers=2, workers=2) as scheduler:
        first = asyncio.ensure_future(worker_of(scheduler)._connect())
        async with server_of(scheduler):
            second = asyncio.ensure_future(worker_of(scheduler)._connect())
            await until(lambda: len(scheduler.status()["workers"]) == 2)
            await turns(20)
            assert not first.done()
            assert not second.done()
            async with server_of(scheduler):
                workers = [await first, await second]
                assert [worker.world_size for worker in workers] == [2, 2]
                async with worker_of(scheduler) as late:
                    assert late.world_size == 3
                await together(worker.close() for worker in workers)


async def test_ready_sockets_are_taken_over() -> None:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = [sock.getsockname()[1] for sock in (one, two)]
        async with (
            asyncio.timeout(GUARD_S),
            aiops.Scheduler(sock=one) as scheduler,
            server_of(scheduler, sock=two) as server,
            worker_of(scheduler) as worker,
        ):
            assert scheduler.address == f"127.0.0.1:{ports[0]}"
            assert server.address == f"127.0.0.1:{ports[1]}"
            table = await worker.table("w", 4)
            assert (await table.pull() == 0).all()


async def test_a_port_in_use_is_said_in_one_line() -> None:
    async with guarded(), aiops.Scheduler() as scheduler:
        for open_again in (
            aiops.Scheduler(bind=scheduler.address).start,
            server_of(scheduler, bind=scheduler.address).start,
        ):
            with pytest.raises(
                ConfigError, match=rf"cannot listen on {scheduler.address}: .*in use.*port 0"
            ):
                await open_again()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0"])
async def test_a_door_to_other_machines_has_to_be_asked_for(address: str) -> None:
    for role in (aiops.Scheduler, lambda **options: aiops.Server("127.0.0.1:1", **options)):
        with pytest.raises(ConfigError, match=r"reached from other machines.*insecure"):
            role(bind=address)


async def test_a_server_at_all_interfaces_tells_where_it_is_reached() -> None:
    async with (
        guarded(),
        aiops.Scheduler() as scheduler,
        server_of(scheduler, bind="0.0.0.0:0", insecure=True) as server,
        worker_of(scheduler) as worker,
    ):
        assert server.address.startswith("127.0.0.1:")
        await (await worker.table("w", 4)).pull()


async def test_an_advertised_address_that_nobody_answers_is_refused_at_once() -> None:
    """Before any worker depends on it."""
    async with guarded(), aiops.Scheduler() as scheduler:
        with pytest.raises(AiopsError, match=r"advertised address 127.0.0.1:1 cannot be reached"):
            await server_of(scheduler, advertise="127.0.0.1:1").start()


async def test_one_server_too_many() -> None:
    async with guarded(), aiops.Scheduler(servers=1) as scheduler, server_of(scheduler):
        with pytest.raises(RequestRejected, match=r"has its 1 servers already"):
            await server_of(scheduler).start()


async def test_a_server_without_a_scheduler_gives_up() -> None:
    async with guarded():
        server = aiops.Server("127.0.0.1:1", connect_timeout_s=0.2)
        with pytest.raises(DialFailed, match=r"gave up connecting to the scheduler .* attempts"):
            await server.start()
        await server.close()


async def test_a_server_that_takes_a_server_for_its_scheduler() -> None:
    async with guarded(), aiops.Scheduler() as scheduler, server_of(scheduler) as server:
        with pytest.raises(PeerMisbehaved, match=r"the scheduler at .* server"):
            await aiops.Server(server.address, heartbeat_thread=False).start()


async def test_closing_twice_and_before_the_start() -> None:
    async with guarded():
        scheduler = aiops.Scheduler()
        await scheduler.close()
        await scheduler.start()
        server = server_of(scheduler)
        await server.close()
        await server.start()
        worker = await worker_of(scheduler)
        await worker.close()
        await together([server.close(), server.close()])
        await server.close()
        await scheduler.close()
        await scheduler.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"servers": -1}, "servers is -1"),
        ({"workers": -1}, "workers is -1"),
        ({"on_worker_loss": "panic"}, "on_worker_loss is 'panic'"),
        ({"workers": 2, "min_workers": 3}, "min_workers is 3"),
        ({"heartbeat_s": 0}, "heartbeat_s is 0"),
        ({"bind": "nowhere"}, "host:port"),
        ({"advertise": "nowhere"}, "host:port"),
    ],
    ids=str,
)
async def test_settings_of_a_scheduler_that_cannot_be(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        aiops.Scheduler(**settings)


async def test_a_cluster_that_is_not_started() -> None:
    cluster = aiops.LocalCluster()
    for need in (cluster.connect, cluster.status, lambda: cluster.address):
        with pytest.raises(ConfigError, match="not started"):
            need()
    with pytest.raises(ConfigError, match="servers is -1"):
        await aiops.LocalCluster(servers=-1).__aenter__()
    async with aiops.LocalCluster() as cluster:
        with pytest.raises(ConfigError, match="workers is 0"):
            await cluster.run(_nothing, workers=0)


async def _nothing(worker: aiops.Worker) -> None:
    """Train nothing."""


async def test_members_and_status_tell_who_is_here() -> None:
    async with guarded(), aiops.LocalCluster(2) as cluster, cluster.connect(name="a") as worker:
        await worker.table("w", (8, 2))
        members = {(member.role, member.rank): member for member in worker.members}
        assert sorted(members) == [("server", 0), ("server", 1), ("worker", 0)]
        assert members["worker", 0].name == worker.name == "a"
        assert f"{members['server', 0].host}:{members['server', 0].port}" == (
            cluster.servers[0].address
        )
        document = await aiops.fetch_status(cluster.address)
        assert document["job"] == worker.job == cluster.scheduler.job
        assert document["tables"][0]["name"] == "w"
        assert [server["rank"] for server in document["servers"]] == [0, 1]
        assert repr(worker) == "<Worker 0 (a) clock=0>"
