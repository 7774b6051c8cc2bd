"""The tables of a job as the scheduler keeps them: created once, entered at an agreed round.

Creation is serialised here, so that a table's settings and initial values are those of the
first creator whichever worker comes first. A worker that was there when a BSP table was
created takes part from round 0 on; a later one enters at a round that all shards agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import prod

import msgspec

from aiops.roles.actions import Action, Tell
from aiops_protocol.control import (
    AttachTable,
    DropShard,
    OpenShard,
    Refused,
    RoundHeld,
    RoundHold,
    RoundRelease,
    ShardPart,
    ShardReady,
    TableOpened,
    TableSpec,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.key_range import Partition
from aiops_protocol.limits import TABLE_ELEMENTS_MAX, TABLES_MAX

__all__ = ["Applicant", "Catalogue"]


class _State(Enum):
    OPENING = "opening"
    INITIALISING = "initialising"
    OPEN = "open"


class Applicant(msgspec.Struct, frozen=True):
    """A worker that asks for a table: where to answer, and who it is."""

    peer: int
    rank: int
    incarnation: int
    takes_part: bool


class _Waiter(msgspec.Struct, frozen=True):
    applicant: Applicant
    call: int
    creates: bool  # gave a whole spec, so it can give the initial values


class _Entry(msgspec.Struct):
    table: int
    spec: TableSpec
    parts: list[ShardPart]
    state: _State
    members: dict[tuple[int, int], int]  # (rank, incarnation): first round
    opened: set[tuple[int, int]]  # those that have been told about it
    unready: dict[int, None]  # servers that have not answered OpenShard
    waiters: list[_Waiter]
    initialiser: Applicant | None = None
    holds: dict[int, tuple[_Waiter, dict[int, RoundHeld]]] = {}  # rank: who asks, answers


class Catalogue:
    """All tables of a job."""

    def __init__(self) -> None:
        self._by_name: dict[str, _Entry] = {}
        self._by_id: dict[int, _Entry] = {}
        self._next_id = 1

    def attach(
        self,
        applicant: Applicant,
        message: AttachTable,
        servers: Mapping[int, int],
        workers: Mapping[int, int],
    ) -> list[Action]:
        """Create a table or let a worker into it.

        `servers` maps server rank to peer, `workers` rank to incarnation of those that would
        take part in a new table's rounds.
        """
        waiter = _Waiter(applicant, message.call, message.spec is not None)
        entry = self._by_name.get(message.name)
        if entry is None:
            if message.spec is None:
                known = ", ".join(self._by_name) or "none"
                text = f"there is no table {message.name} (there is: {known}); shape= creates it"
                return [_refuse(waiter, ErrorCode.UNKNOWN_TABLE, text)]
            return self._create(waiter, message.spec, servers, workers)
        if message.spec is not None:
            difference = _difference(entry.spec, message.spec)
            if difference:
                text = f"table {message.name} exists with other settings: {difference}"
                return [_refuse(waiter, ErrorCode.TABLE_MISMATCH, text)]
        if entry.state is not _State.OPEN:
            entry.waiters.append(waiter)
            orphaned = entry.state is _State.INITIALISING and entry.initialiser is None
            return self._ask_for_values(entry) if orphaned else []
        return self._let_in(entry, waiter, servers)

    def _create(
        self,
        waiter: _Waiter,
        spec: TableSpec,
        servers: Mapping[int, int],
        workers: Mapping[int, int],
    ) -> list[Action]:
        elements = prod(spec.shape)
        if elements > TABLE_ELEMENTS_MAX:
            text = f"table {spec.name} has {elements} elements, at most {TABLE_ELEMENTS_MAX} fit"
            return [_refuse(waiter, ErrorCode.INVALID_SETTING, text)]
        if len(self._by_name) >= TABLES_MAX:
            text = f"there are {TABLES_MAX} tables already"
            return [_refuse(waiter, ErrorCode.INVALID_SETTING, text)]
        table = self._next_id
        self._next_id += 1
        partition = Partition.balanced(elements, len(servers), first=table - 1)
        parts = [
            ShardPart(server=rank, begin=part.begin, end=part.end) for rank, part in partition.parts
        ]
        entry = _Entry(
            table=table,
            spec=spec,
            parts=parts,
            state=_State.OPENING,
            members=dict.fromkeys(workers.items(), 0),
            opened=set(),
            unready={part.server: None for part in parts},
            waiters=[waiter],
        )
        self._by_name[spec.name] = self._by_id[table] = entry
        return [
            Tell(
                OpenShard(
                    table=table, spec=spec, begin=part.begin, end=part.end, workers=sorted(workers)
                ),
                servers[part.server],
            )
            for part in parts
        ]

    def shard_ready(
        self, server: int, message: ShardReady, servers: Mapping[int, int]
    ) -> list[Action]:
        """Take a server's answer to `OpenShard`."""
        entry = self._by_id.get(message.table)
        if entry is None or entry.state is not _State.OPENING:
            return []
        if message.code != ErrorCode.OK:
            return self._give_up(entry, server, message, servers)
        entry.unready.pop(server, None)
        if entry.unready:
            return []
        if entry.spec.init_kind == "values":
            return self._ask_for_values(entry)
        return self._open(entry, servers)

    def _give_up(
        self, entry: _Entry, server: int, message: ShardReady, servers: Mapping[int, int]
    ) -> list[Action]:
        del self._by_name[entry.spec.name], self._by_id[entry.table]
        drops: list[Action] = [
            Tell(DropShard(table=entry.table), servers[part.server]) for part in entry.parts
        ]
        text = f"server {server}: {message.text}"
        return drops + [_refuse(waiter, message.code, text) for waiter in entry.waiters]

    def _ask_for_values(self, entry: _Entry) -> list[Action]:
        entry.state = _State.INITIALISING
        creators = [waiter for waiter in entry.waiters if waiter.creates]
        if not creators:  # the next one who gives values will be asked
            return []
        waiter = creators[0]
        entry.waiters.remove(waiter)
        entry.initialiser = waiter.applicant
        return [_opened(entry, waiter, entry.members.get(_key(waiter), 0), initialise=True)]

    def initialised(
        self, applicant: Applicant, table: int, servers: Mapping[int, int]
    ) -> list[Action]:
        """Take the news that the initial values are in."""
        entry = self._by_id.get(table)
        if entry is None or entry.initialiser is None:
            return []
        if entry.initialiser.peer != applicant.peer:
            return []
        entry.initialiser = None
        return self._open(entry, servers)

    def _open(self, entry: _Entry, servers: Mapping[int, int]) -> list[Action]:
        entry.state = _State.OPEN
        waiters, entry.waiters = entry.waiters, []
        return [action for waiter in waiters for action in self._let_in(entry, waiter, servers)]

    def _let_in(self, entry: _Entry, waiter: _Waiter, servers: Mapping[int, int]) -> list[Action]:
        known = entry.members.get(_key(waiter))
        if known is not None or not waiter.applicant.takes_part or entry.spec.consistency != "bsp":
            return [_opened(entry, waiter, known or 0)]
        rank = waiter.applicant.rank
        entry.holds[rank] = (waiter, {})
        hold = RoundHold(table=entry.table, worker=rank)
        return [Tell(hold, servers[part.server]) for part in entry.parts]

    def held(self, server: int, message: RoundHeld, servers: Mapping[int, int]) -> list[Action]:
        """Take a server's answer to `RoundHold`; with all of them, decide the round."""
        entry = self._by_id.get(message.table)
        if entry is None or message.worker not in entry.holds:
            return []
        waiter, answers = entry.holds[message.worker]
        answers[server] = message
        if len(answers) < len(entry.parts):
            return []
        del entry.holds[message.worker]
        newest = max(answer.version for answer in answers.values())
        idle = all(answer.idle and answer.version == newest for answer in answers.values())
        # Others may just be closing the round after the newest version, so the one after that
        # is the first that every shard still has open. Where nobody takes part there is no such.
        first = newest if idle else newest + 1
        entry.members[_key(waiter)] = first
        release = RoundRelease(table=entry.table, worker=message.worker, from_version=first)
        releases: list[Action] = [Tell(release, servers[part.server]) for part in entry.parts]
        return [*releases, _opened(entry, waiter, first)]

    def entering(self, rank: int) -> bool:
        """Whether servers hold a round open for this worker to enter."""
        return any(rank in entry.holds for entry in self._by_id.values())

    def gone(self, peer: int, rank: int) -> list[Action]:
        """Forget a worker that is lost or has left; another may have to initialise for it."""
        actions: list[Action] = []
        for entry in self._by_id.values():
            entry.waiters = [w for w in entry.waiters if w.applicant.peer != peer]
            entry.holds.pop(rank, None)
            if entry.initialiser is not None and entry.initialiser.peer == peer:
                entry.initialiser = None
                actions += self._ask_for_values(entry)
        return actions

    def never_opened(self, rank: int, incarnation: int) -> list[int]:
        """Return the tables that count on a worker's seals and that it does not know."""
        key = (rank, incarnation)
        return [
            entry.table
            for entry in self._by_id.values()
            if entry.spec.consistency == "bsp" and key in entry.members and key not in entry.opened
        ]

    def held_by(self, server: int) -> list[str]:
        """Name the key ranges that a server holds, for an error text."""
        return [
            f"{entry.spec.name} [{part.begin}, {part.end})"
            for entry in self._by_id.values()
            for part in entry.parts
            if part.server == server
        ]

    def describe(self) -> list[dict[str, object]]:
        """Return every table with its settings and range map; for status."""
        return [
            {
                "name": entry.spec.name,
                "id": entry.table,
                "shape": list(entry.spec.shape),
                "optimizer": entry.spec.optimizer,
                "consistency": entry.spec.consistency,
                "state": entry.state.value,
                "ranges": [
                    {
                        "server": part.server,
                        "begin": part.begin,
                        "end": part.end,
                        "bytes": 4 * (part.end - part.begin),
                    }
                    for part in entry.parts
                ],
            }
            for entry in self._by_id.values()
        ]


def _key(waiter: _Waiter) -> tuple[int, int]:
    return waiter.applicant.rank, waiter.applicant.incarnation


def _refuse(waiter: _Waiter, code: int, text: str) -> Tell:
    return Tell(Refused(code=code, text=text[:1024], call=waiter.call), waiter.applicant.peer)


def _opened(entry: _Entry, waiter: _Waiter, from_version: int, *, initialise: bool = False) -> Tell:
    entry.opened.add(_key(waiter))
    message = TableOpened(
        call=waiter.call,
        table=entry.table,
        spec=entry.spec,
        parts=entry.parts,
        from_version=from_version,
        initialise=initialise,
    )
    return Tell(message, waiter.applicant.peer)


def _difference(first: TableSpec, second: TableSpec) -> str:
    """Say in which settings two specs differ, existing value first."""
    return "; ".join(
        f"{field} is {getattr(first, field)}, not {getattr(second, field)}"
        for field in first.__struct_fields__
        if getattr(first, field) != getattr(second, field)
    )
