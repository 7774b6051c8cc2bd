"""Control connections that break while their node is well: it goes on where it was.

In life: a middlebox forgets a connection that was idle, or a damaged frame ends it.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import aiops
from aiops.errors import BarrierTimeout, NodeFailed, StaleIncarnation
from aiops.optim import Add
from aiops.van import TcpVan
from aiops.van.base import Accept, Address, Stream
from aiops.van.link import Link
from aiops_protocol.dialogue_control import Heard
from aiops_protocol.frames import Control, Goodbye
from aiops_protocol.handshake import Role
from local_jobs import local_job, together, until


def control(worker: aiops.Worker) -> Link:
    link = worker.postoffice._control.link
    assert link is not None
    return link


def reset(worker: aiops.Worker) -> None:
    """Cut the connection without a word, as a reset does."""
    control(worker).stream.abort()


async def test_a_worker_keeps_its_place_over_many_resets() -> None:
    async with local_job(2, on_worker_loss="fail") as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
        tables = await together(worker.table("w", 64, optimizer=Add()) for worker in workers)
        for _ in range(10):
            for worker, table in zip(workers, tables, strict=True):
                reset(worker)
                await table.push(np.ones(64, np.float32))
            await together(worker.tick() for worker in workers)
            await together(worker.barrier("all") for worker in workers)
        assert [(w.name, w.rank, w.incarnation) for w in workers] == [
            ("worker-0", 0, 1),
            ("worker-1", 1, 1),
        ]
        assert (await tables[0].pull() == 10).all()
        assert cluster.status()["epoch"] == 4  # two servers and two workers have come
        for worker in workers:
            await worker.close()


async def test_servers_whose_control_connections_are_reset_go_on_serving() -> None:
    async with local_job(2) as cluster, cluster.connect() as worker:
        for number in range(5):
            for server in cluster.servers:
                link = server._control.link
                assert link is not None
                link.stream.abort()
            table = await worker.table(f"t{number}", 64, init=float(number))
            assert (await table.pull() == number).all()


async def test_what_was_sent_before_a_reset_counts_once() -> None:
    """Both at a barrier when the connections break: it opens once, and neither is left behind."""
    async with local_job(on_worker_loss="fail") as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
        first = asyncio.ensure_future(workers[0].barrier("b"))
        await asyncio.sleep(0)
        reset(workers[0])
        second = asyncio.ensure_future(workers[1].barrier("b"))
        await asyncio.sleep(0)
        reset(workers[1])
        await together([first, second])
        with pytest.raises(BarrierTimeout) as caught:
            await workers[0].barrier("b", timeout_s=0.05)
        assert len(caught.value.missing) == 1
        await together(worker.close() for worker in workers)


class Gate(TcpVan):
    """Dials only while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = asyncio.Event()

    async def dial(self, address: Address, accept: Accept) -> Stream:
        await self.open.wait()
        return await super().dial(address, accept)


async def test_a_stop_and_a_death_are_heard_by_who_was_away() -> None:
    async with local_job(on_worker_loss="continue") as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(3))
        away, other, lost = workers
        away.postoffice._control._van = gate = Gate()
        reset(away)
        await until(lambda: not away.postoffice.reachable)
        await lost.close(RuntimeError("for a test"))
        await other.stop("enough")
        await until(lambda: other.postoffice.stop_vote is not None)
        assert away.postoffice.stop_vote is None
        assert away.world_size == 3
        gate.open.set()
        await until(lambda: away.postoffice.stop_at is not None)
        assert away.stop_reason == "enough"
        assert away.world_size == 2
        await together(worker.close() for worker in (away, other))


async def test_a_damaged_frame_ends_the_connection_and_nothing_else() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        link = control(worker)
        link.stream.write(b"\x00" * 64)
        await until(lambda: worker.postoffice._control.link not in (link, None))
        theirs = next(iter(cluster.scheduler._links.values()))
        theirs.stream.write(b"\xff" * 64)
        await worker.barrier("b")
        hearts = cluster.scheduler._hearts.values()
        (beats,) = [heart for heart in hearts if heart.hello.role == Role.WORKER]
        beats.stream.write(b"\xff" * 64)  # nor is a damaged heartbeat a sentence
        await until(lambda: beats.number not in cluster.scheduler._hearts)
        await worker.barrier("b")


async def test_a_worker_that_was_declared_lost_meanwhile_stays_lost() -> None:
    async with local_job(on_worker_loss="continue") as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
        away, other = workers
        away.postoffice._control._van = gate = Gate()
        reset(away)
        await until(lambda: not away.postoffice.reachable)
        core = cluster.scheduler._running
        victim = core.members.rank("worker", 0)
        cluster.scheduler._perform(core._bury(victim, "for a test", cluster.scheduler._now()))
        gate.open.set()
        with pytest.raises(StaleIncarnation, match="was declared lost"):
            await away.barrier("b", timeout_s=60)
        with pytest.raises(StaleIncarnation):
            await away.close()
        await other.barrier("b")
        await other.close()


async def test_leaving_over_a_connection_that_breaks_is_leaving_all_the_same() -> None:
    async with local_job(on_worker_loss="fail") as cluster:
        workers = await together(cluster.connect(name=f"worker-{rank}") for rank in range(2))
        leaving = asyncio.ensure_future(workers[0].close())
        await until(lambda: not workers[0].postoffice._control._dialogue.settled)
        reset(workers[0])
        await leaving
        assert cluster.status()["workers"][0]["state"] == "left"
        await workers[1].close()


async def test_a_scheduler_that_was_closed_is_not_waited_for() -> None:
    async with local_job() as cluster:
        worker = await cluster.connect()
        listener = cluster.scheduler._listener
        assert listener is not None
        await listener.close()
        reset(worker)
        with pytest.raises(NodeFailed, match=r"scheduler at .* is gone: .*nobody listens there"):
            await worker.barrier("b")
        with pytest.raises(NodeFailed):
            await worker.close()


async def test_a_second_connection_of_a_dialogue_takes_the_place_of_the_first() -> None:
    """One end may know of a break long before the other does."""
    async with local_job() as cluster, cluster.connect() as worker:
        links = worker.postoffice._control
        former = control(worker)
        former.owner = Deaf()
        links.link, links._speaking = None, False
        links._reopening = asyncio.ensure_future(links._reopen())
        await worker.barrier("b")
        assert control(worker) is not former
        await until(lambda: len(cluster.scheduler._links) == 2)
        former.abort()


class Deaf:
    """Hears nothing of its link."""

    def link_ready(self, link: Link) -> None:
        """Hear nothing."""

    def link_frame(self, link: Link, frame: object) -> None:
        """Hear nothing."""

    def link_pinged(self, link: Link) -> None:
        """Hear nothing."""

    def link_batch_end(self, link: Link) -> None:
        """Hear nothing."""

    def link_drained(self, link: Link) -> None:
        """Hear nothing."""

    def link_lost(self, link: Link, error: object) -> None:
        """Hear nothing."""


async def test_a_claim_to_have_heard_what_was_never_said_ends_the_connection() -> None:
    async with local_job() as cluster, cluster.connect() as worker:
        link = control(worker)
        link.send(Control(Heard(count=1000)))
        await until(lambda: worker.postoffice._control.link is not link)
        await worker.barrier("b")
        assert isinstance(link.goodbye, Goodbye | None)
        assert len(cluster.scheduler._dialogues.absent()) == 0
