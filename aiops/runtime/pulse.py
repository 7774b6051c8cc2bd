"""Pulse: a node's heart together with the eye on its lease.

The heart beats (`heartbeat.py`), the lease says what follows from the answers
(`aiops.roles.detector`), and the pulse looks at it once a period and tells the node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from aiops.runtime.heartbeat import Identity, make_heartbeat
from aiops.van.base import Van

__all__ = ["Pulse"]


class Pulse:
    """Beats for a node, and tells it what becomes of its scheduler.

    Parameters
    ----------
    heartbeat_s
        The period, as the scheduler has told it.
    declared_lost
        Called when the scheduler does not count the node as a member any more, with its words.
    orphaned
        Called once when the scheduler must be taken for gone, with the seconds of its silence.
    suspended
        Called when the node must stop serving (True), or may go on (False).
    from_thread
        See `heartbeat.py`.
    """

    def __init__(
        self,
        van: Van,
        identity: Identity,
        heartbeat_s: float,
        *,
        declared_lost: Callable[[str], None],
        orphaned: Callable[[float], None],
        suspended: Callable[[bool], None] | None = None,
        from_thread: bool,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._period_s = heartbeat_s
        self._orphaned = orphaned
        self._suspended = suspended
        self._expired = False
        self._heart = make_heartbeat(
            van, identity, heartbeat_s, declared_lost, from_thread=from_thread
        )
        self._heart.start()
        self._look_at = self._loop.time() + heartbeat_s
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._look_at, self._look)

    def _look(self) -> None:
        late_s, self._look_at = (
            self._loop.time() - self._look_at,
            self._loop.time() + self._period_s,
        )
        self._timer = self._loop.call_at(self._look_at, self._look)
        lease, now = self._heart.lease, time.monotonic()
        if late_s > self._period_s:
            lease.excuse(now)
        if lease.orphaned(now):
            self._timer.cancel()
            self._orphaned(lease.silent_s(now))
        elif lease.expired(now) != self._expired:
            self._expired = not self._expired
            if self._suspended is not None:
                self._suspended(self._expired)

    async def close(self) -> None:
        """Send no more heartbeats. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            await self._heart.close()
