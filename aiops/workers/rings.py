"""The rings of one worker: made when they are first asked for, left when the worker finishes."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import Final

from aiops.errors import ConfigError, UsageError
from aiops.runtime.addresses import parse_address
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.ring_desk import RingDesk
from aiops.runtime.ring_peer import CONNECTIONS_MAX
from aiops.runtime.ring_shared import TRANSPORTS
from aiops.van.base import Van
from aiops.workers.ring import Ring

__all__ = ["Rings"]

TOPOLOGIES: Final = ("rank", "measured")


class Rings:
    """Every ring of a worker, by name."""

    def __init__(self, van: Van, postoffice: Postoffice) -> None:
        self._van = van
        self._postoffice = postoffice
        self._desk: RingDesk | None = None
        self._rings: dict[str, Ring] = {}
        self._opening: dict[str, asyncio.Lock] = {}  # by name: rings do not wait for each other
        self._finished = False

    async def open(
        self,
        name: str,
        timeout_s: float,
        call_timeout_s: float,
        door: tuple[str, str | None, bool, str, int],
        topology: str,
    ) -> Ring:
        """Return the ring of this name; enter it first if it is not known here.

        `door` are the settings `bind`, `advertise`, `insecure`, `transport` and `connections` of
        `Worker.ring`.
        """
        if topology not in TOPOLOGIES:
            raise UsageError(f"ring: topology is {topology!r}; it can be {_either(TOPOLOGIES)}")
        if self._finished:
            raise UsageError(f"ring {name}: this worker has finished, and takes part in no ring")
        desk = self._open_desk(*door)
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._rings:
                group = await desk.enter(name, timeout_s)
                ring = Ring(name, desk, group, timeout_s, call_timeout_s, topology)
                await ring._arrange()
                self._rings[name] = ring
            return self._rings[name]

    def _open_desk(
        self, bind: str, advertise: str | None, insecure: bool, transport: str, connections: int
    ) -> RingDesk:
        if transport not in TRANSPORTS:
            raise UsageError(f"ring: transport is {transport!r}; it can be {_either(TRANSPORTS)}")
        if not 1 <= connections <= CONNECTIONS_MAX:
            raise UsageError(
                f"ring: connections is {connections}; it can be 1 to {CONNECTIONS_MAX}"
            )
        if self._desk is None:
            address = parse_address(bind, "bind")
            public = parse_address(advertise, "advertise") if advertise else None
            if public is None and _loopback(address.host):
                here = self._postoffice.local_host
                if not _loopback(here):
                    raise ConfigError(
                        f"this worker reaches the scheduler from {here}, so other workers may run "
                        f"on other machines, and they cannot reach {address}: give bind= an "
                        f"address of this machine, for example {here}:0, with insecure=True"
                    )
            self._desk = RingDesk(
                self._van,
                self._postoffice,
                address,
                public,
                insecure=insecure,
                transport=transport,
                connections=connections,
            )
        first = self._desk.memory.transport
        if transport not in ("auto", first):
            raise UsageError(
                f'ring: transport is "{transport}", but that of this worker\'s first ring holds '
                f'for all of them, and was "{first}"; give it there'
            )
        if connections not in (1, self._desk.connections):
            raise UsageError(
                f"ring: connections is {connections}, but that of this worker's first ring holds "
                f"for all of them, and was {self._desk.connections}; give it there"
            )
        return self._desk

    def leave(self) -> None:
        """Take part in no call any more."""
        self._finished = True
        if self._desk is not None:
            self._desk.leave()

    async def close(self) -> None:
        """Close the door and every connection. Idempotent."""
        if self._desk is not None:
            await self._desk.close()


def _either(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
