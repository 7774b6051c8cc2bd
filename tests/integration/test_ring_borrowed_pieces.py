"""Pieces that wait in a connection are not copied: what they look at stays as it is meanwhile.

A member has done its part of a call when its pieces are with its connections, not when the others
have them. Here another one reads nothing for a while, so that they stay there.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import numpy as np
import pytest

import aiops
from aiops.collective.shared import supported
from aiops.van.link import Link
from aiops.workers.ring import Ring
from aiops_protocol.frames import RingPiece
from apart import by_transport, on_hosts, run_members
from local_jobs import until
from van_bodies import resume, stall

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])

PIECE: Final = 100_000
"""Elements that are one piece, and are not sent as a whole to who does not read."""


def link_to(ring: Ring, other: int) -> Link:
    link = ring._group.peers[other].link
    assert link is not None
    return link


def narrow(link: Link) -> None:
    """Let the system keep little of what is on its way to or from this end."""
    sock = link.stream._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, buffer, 32 * 1024)


async def test_who_cancels_after_it_has_confirmed_has_its_array_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others get what it held when it made the call, whatever it holds since."""
    by_transport("tcp", monkeypatch)
    go = asyncio.Event()

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        await ring.barrier()
        link = link_to(ring, 1 - ring.rank)
        narrow(link)
        array = np.full(PIECE, ring.rank + 1.0, np.float32)
        if ring.rank == 1:
            stall(link.stream)
            call = asyncio.ensure_future(ring.broadcast(array))
            await go.wait()
            resume(link.stream)
            await call
            assert (array == 1).all()
        else:
            call = asyncio.ensure_future(ring.broadcast(array))
            await until(lambda: ring._group._calls and ring._group._calls[0].confirmation.started)
            assert link.stream.pending_bytes > PIECE  # of 4 * PIECE
            call.cancel()
            await asyncio.wait((call,))
            assert call.cancelled()
            array[:] = -1
            go.set()
        await ring.barrier()

    await run_members(2, member)


@pytest.mark.skipif(not supported(), reason="shared memory needs Linux")
async def test_the_mean_of_hosts_that_are_not_equally_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has its result when what it has combined for rank 1 waits in the connection."""
    on_hosts(monkeypatch, lambda rank: rank > 0)
    has_it = asyncio.Event()

    async def member(worker: aiops.Worker, ring: Ring) -> None:
        array = np.full(2 * PIECE, 3.0 * ring.rank, np.float32)
        await ring.barrier()
        group = ring._group
        call = None
        if ring.rank == 0:
            link = link_to(ring, 1)
            narrow(link)
            call = asyncio.ensure_future(ring.all_reduce(array, "mean"))
            await until(lambda: group._calls and group._calls[0].confirmation.started)
            assert link.stream.pending_bytes > PIECE  # of 4 * PIECE
            has_it.set()
        elif ring.rank == 1:
            narrow(link_to(ring, 0))
            stream, take = link_to(ring, 0).stream, group.peer_frame

            def first_only(peer: Any, frame: Any) -> None:
                take(peer, frame)
                if isinstance(frame, RingPiece) and frame.message == 0:
                    stall(stream)

            monkeypatch.setattr(group, "peer_frame", first_only)
            call = asyncio.ensure_future(ring.all_reduce(array, "mean"))
            await has_it.wait()
            resume(stream)
        await (call or ring.all_reduce(array, "mean"))
        assert (array == 3).all()

    await run_members(3, member)
