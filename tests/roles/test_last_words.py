"""Who is told of the end, and in which order."""

from __future__ import annotations

from aiops.roles.actions import Tell
from aiops_protocol.control import Shutdown
from scheduled import Scheduled


def test_workers_hear_the_reason_before_servers_close_their_doors() -> None:
    """A worker that meets a closing server first would take that server for the one that failed."""
    scheduled = Scheduled(servers=2, workers=3)
    for peer in (11, 12, 13):
        scheduled.worker(peer)
    actions = scheduled.core.lost(12, "the connection ended", scheduled.now)
    told = [a.peer for a in actions if isinstance(a, Tell) and isinstance(a.message, Shutdown)]
    assert told == [11, 13, 1, 2]
