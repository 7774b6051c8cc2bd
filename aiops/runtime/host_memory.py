"""What a worker shares with the others of its host, and which members of a ring share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from aiops.collective.call import Array
from aiops.collective.schedule import Groups
from aiops.collective.shared import Arena, Doorbell, host_identity, supported
from aiops.errors import UsageError
from aiops_protocol.ring_control import RingMember

__all__ = ["TRANSPORTS", "HostMemory", "hosts_of"]

TRANSPORTS: Final = ("auto", "tcp", "shared-memory")


class HostMemory:
    """What a worker shares with others of its host: its arena, and where it is found.

    Attributes
    ----------
    transport
        "auto", "tcp" or "shared-memory".

    Parameters
    ----------
    transport
        As above.
    apart
        Members with different ones share no memory, as if they were on different hosts: for
        measurements and tests on a single one.
    """

    def __init__(self, transport: str, apart: str = "") -> None:
        if transport == "shared-memory" and not supported():
            raise UsageError('transport="shared-memory" needs Linux; "auto" takes TCP elsewhere')
        self.transport = transport
        self._apart = apart
        self.arena = Arena()
        self._bell: Doorbell | None = None

    def bell(self) -> Doorbell:
        """Return the doorbell, made when it is first needed."""
        if self._bell is None:
            self._bell = Doorbell()
        return self._bell

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """Make an array of zeros, in shared pages where there are such."""
        return self.arena.empty(shape, dtype) if supported() else np.zeros(shape, dtype)

    def offer(self) -> str:
        """Return what the scheduler passes on to the other members; empty for none."""
        if self.transport == "tcp" or not supported():
            return ""
        forced = "!" if self.transport == "shared-memory" else ""
        return f"{host_identity()}{self._apart}/{self.bell().name}{forced}"

    def close(self) -> None:
        """Be found no more. Idempotent."""
        if self._bell is not None:
            self._bell.close()


def hosts_of(members: Sequence[RingMember], transport: str) -> Groups:
    """Return which members, by place, share memory with each other; the same on all of them.

    A member that shares with nobody is a group of its own. Members that are tasks of one process
    do without, unless all of a ring insist: who looks for the others keeps them from running.

    Raises
    ------
    UsageError
        This member's `transport` asks for memory alone, and it cannot be.
    """
    hosts: dict[str, list[int]] = {}
    for place, member in enumerate(members):
        identity = member.shared.partition("/")[0]
        hosts.setdefault(identity or f"{place}", []).append(place)
    if transport == "shared-memory" and (len(hosts) > 1 or not members[0].shared):
        near = next(iter(hosts.values())) if members[0].shared else []
        names = ", ".join(
            f"worker {m.rank} ({m.name})" for place, m in enumerate(members) if place not in near
        )
        raise UsageError(
            f'transport="shared-memory": {names} cannot share memory with the other members: on '
            'another host, or with transport="tcp"; "auto" takes TCP between them'
        )
    if len(hosts) == 1 and all(member.shared.endswith("!") for member in members):
        return (tuple(range(len(members))),)
    groups: list[tuple[int, ...]] = []
    for places in hosts.values():
        processes = {members[place].shared.rpartition("-")[0] for place in places}
        apart = len(processes) == len(places)
        groups += [tuple(places)] if apart else [(place,) for place in places]
    return tuple(groups)
