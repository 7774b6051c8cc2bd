"""The rings of one worker: made when they are first asked for, left when the worker finishes."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiops.checks import check_flag, check_timeout, is_number, is_one_of
from aiops.errors import ConfigError, UsageError
from aiops.runtime.addresses import parse_address
from aiops.runtime.host_memory import TRANSPORTS
from aiops.runtime.postoffice import Postoffice
from aiops.runtime.ring_desk import RingDesk
from aiops.runtime.ring_peer import CONNECTIONS_MAX
from aiops.van.base import Address, Van
from aiops.wording import shown
from aiops.workers.ring import CALL_TIMEOUT_S, Ring

__all__ = ["RingSettings", "Rings"]

TOPOLOGIES: Final = ("rank", "measured")

RING_TIMEOUT_S: Final = 60.0
"""How long forming a ring may take: the other workers come when they are as far."""

OWN: Final[dict[str, Any]] = {
    "timeout_s": RING_TIMEOUT_S,
    "call_timeout_s": CALL_TIMEOUT_S,
    "topology": TOPOLOGIES[0],
}
"""Each ring has its own."""

DOOR: Final[dict[str, Any]] = {
    "bind": Address("127.0.0.1", 0),
    "advertise": None,
    "insecure": False,
    "transport": TRANSPORTS[0],
    "connections": 1,
}
"""All rings of a worker have the same."""


class RingSettings(NamedTuple):
    """What `Worker.ring` was asked for; `None` is what was left to the ring that is known."""

    timeout_s: float | None
    call_timeout_s: float | None
    topology: str | None
    bind: str | None
    advertise: str | None
    insecure: bool
    transport: str
    connections: int | None


class Rings:
    """Every ring of a worker, by name.

    Attributes
    ----------
    apart
        Set before the first ring: as for `HostMemory`.
    """

    def __init__(self, van: Van, postoffice: Postoffice) -> None:
        self.apart = ""
        self._van = van
        self._postoffice = postoffice
        self._desk: RingDesk | None = None
        self._first: dict[str, object] = {}  # what the first ring has settled for all
        self._rings: dict[str, tuple[Ring, dict[str, object]]] = {}
        self._opening: dict[str, asyncio.Lock] = {}  # by name: rings do not wait for each other
        self._finished = False

    async def open(self, name: str, asked: RingSettings) -> Ring:
        """Return the ring of this name; enter it first if it is not known here."""
        own = _own_settings(name, asked)
        if self._finished:
            raise UsageError(f"ring {name}: this worker has finished, and takes part in no ring")
        desk = self._open_desk(asked)
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._rings:
                had = {key: OWN[key] if value is None else value for key, value in own.items()}
                self._rings[name] = await self._entered(name, desk, **had), had
            ring, had = self._rings[name]
            for key, value in own.items():
                if value not in (None, had[key]):
                    raise UsageError(
                        f"ring {name}: {key} is {_shown(value)}, but this worker has opened this "
                        f"ring with {_shown(had[key])}; leave it out here, or give it there"
                    )
            return ring

    async def _entered(
        self, name: str, desk: RingDesk, timeout_s: float, call_timeout_s: float, topology: str
    ) -> Ring:
        try:
            group = await desk.enter(name, timeout_s)
        except BaseException:
            alone = sum(lock.locked() for lock in self._opening.values()) == 1
            if not desk.listening and alone:  # nobody can reach it: another address may do
                self._desk = None
            raise
        ring = Ring(name, desk, group, timeout_s, call_timeout_s, topology)
        await ring._arrange()
        return ring

    def _open_desk(self, asked: RingSettings) -> RingDesk:
        door = _door(asked)
        if self._desk is None:
            first = {key: DOOR[key] if value is None else value for key, value in door.items()}
            here = self._postoffice.local_host
            if (
                door["insecure"]
                and door["bind"] is door["advertise"] is None
                and not _loopback(here)
            ):
                first["bind"] = Address(here, 0)  # where the scheduler is, other workers are
            self._desk, self._first = self._new_desk(**first), first
        for key, value in door.items():
            if value not in (None, self._first[key]):
                raise UsageError(
                    f"ring: {key} is {_shown(value)}, but that of this worker's first ring holds "
                    f"for all of them, and was {_shown(self._first[key])}; give it there"
                )
        return self._desk

    def _new_desk(
        self,
        bind: Address,
        advertise: Address | None,
        insecure: bool,
        transport: str,
        connections: int,
    ) -> RingDesk:
        here = self._postoffice.local_host
        if advertise is None and _loopback(bind.host) and not _loopback(here):
            raise ConfigError(
                f"this worker reaches the scheduler from {here}, so other workers may run on other "
                f"machines, and they cannot reach {bind}: insecure=True (--insecure) lets it "
                f"listen on {here}, without encryption, and bind= on another address besides"
            )
        return RingDesk(
            self._van,
            self._postoffice,
            bind,
            advertise,
            insecure=insecure,
            transport=transport,
            connections=connections,
            apart=self.apart,
        )

    def leave(self) -> None:
        """Take part in no call any more."""
        self._finished = True
        if self._desk is not None:
            self._desk.leave()

    async def close(self) -> None:
        """Close the door and every connection. Idempotent."""
        if self._desk is not None:
            await self._desk.close()


def _own_settings(name: str, asked: RingSettings) -> dict[str, Any]:
    """Return what was asked of this ring alone, checked; `None` is what was not."""
    if asked.topology is not None and not is_one_of(asked.topology, TOPOLOGIES):
        raise UsageError(
            f"ring: topology is {shown(asked.topology)}; it can be {_either(TOPOLOGIES)}"
        )
    limits = {"timeout_s": asked.timeout_s, "call_timeout_s": asked.call_timeout_s}
    checked = {
        key: None if limit is None else check_timeout(limit, f"ring {name}", key)
        for key, limit in limits.items()
    }
    return {**checked, "topology": asked.topology}


def _door(asked: RingSettings) -> dict[str, Any]:
    """Return what was asked of all rings, checked; `None` is what was not."""
    transport, connections = asked.transport, asked.connections
    if not is_one_of(transport, TRANSPORTS):
        raise UsageError(f"ring: transport is {shown(transport)}; it can be {_either(TRANSPORTS)}")
    if connections is not None and (
        not is_number(connections) or connections not in range(1, CONNECTIONS_MAX + 1)
    ):
        raise UsageError(
            f"ring: connections is {shown(connections)}; it can be 1 to {CONNECTIONS_MAX}"
        )
    bind, advertise = asked.bind, asked.advertise
    return {
        "bind": None if bind is None else parse_address(bind, "bind"),
        "advertise": None if advertise is None else parse_address(advertise, "advertise"),
        "insecure": check_flag(asked.insecure, "ring: insecure") or None,
        "transport": None if transport == "auto" else transport,
        "connections": None if connections is None else int(connections),
    }


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str | Address) else f"{value}"


def _either(names: Sequence[str]) -> str:
    return " or ".join(f'"{name}"' for name in names)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
