"""The tables of a job as the scheduler keeps them: created once, entered at an agreed round.

Creation is serialised here, so that a table's settings and initial values are those of the
first creator whichever worker comes first. A worker that was there when a BSP table was
created takes part from round 0 on; a later one enters at a round that all shards agree on.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from aiops.errors import ConfigError
from aiops.roles.actions import Action, Tell
from aiops.roles.losses import told_of
from aiops.roles.rounds import NOTHING_SEALED
from aiops.roles.rules import CLOCKED, has_lead, part_unit
from aiops.roles.table_entry import (
    Applicant,
    Hold,
    Peers,
    TableEntry,
    TableState,
    Waiter,
    check_layout,
    difference,
)
from aiops.wording import listed
from aiops_protocol.control import (
    AttachTable,
    DeathVerdict,
    DropShard,
    OpenShard,
    RoundDecided,
    RoundHeld,
    RoundHold,
    RoundRelease,
    ShardPart,
    ShardReady,
    TableSpec,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.key_list import KEY_END
from aiops_protocol.key_range import Partition
from aiops_protocol.limits import TABLE_ELEMENTS_MAX, TABLES_MAX

__all__ = ["Catalogue"]


class Catalogue:
    """All tables of a job.

    Most methods take `servers`, the peer of each server rank.
    """

    def __init__(self) -> None:
        self._by_name: dict[str, TableEntry] = {}
        self._by_id: dict[int, TableEntry] = {}
        self._next_id = 1

    # --- creating ---

    def attach(
        self, applicant: Applicant, message: AttachTable, servers: Peers, workers: Mapping[int, int]
    ) -> list[Action]:
        """Create a table or let a worker into it.

        `workers` maps rank to incarnation of those that would take part in a new table's rounds.
        """
        waiter = Waiter(applicant, message.call, message.spec is not None)
        entry = self._by_name.get(message.name)
        if entry is None:
            if message.spec is None:
                known = listed(self._by_name) or "none"
                text = f"there is no table {message.name} (there is: {known}); shape= creates it"
                return [waiter.refuse(ErrorCode.UNKNOWN_TABLE, text)]
            return self._create(waiter, message.spec, servers, workers)
        if message.spec is not None:
            differing = difference(entry.spec, message.spec)
            if differing:
                text = f"table {message.name} exists with other settings: {differing}"
                return [waiter.refuse(ErrorCode.TABLE_MISMATCH, text)]
        if entry.state is not TableState.OPEN:
            entry.waiters.append(waiter)
            return self._find_initialiser(entry, servers)
        return self._let_in(entry, waiter, servers)

    def _create(
        self, waiter: Waiter, spec: TableSpec, servers: Peers, workers: Mapping[int, int]
    ) -> list[Action]:
        try:
            check_layout(spec)
        except ConfigError as error:
            return [waiter.refuse(ErrorCode.INVALID_SETTING, str(error))]
        dense = spec.layout == "dense"
        elements = prod(spec.shape) if dense else KEY_END
        if dense and elements > TABLE_ELEMENTS_MAX:
            text = f"table {spec.name} has {elements} elements, at most {TABLE_ELEMENTS_MAX} fit"
            return [waiter.refuse(ErrorCode.INVALID_SETTING, text)]
        if len(self._by_name) >= TABLES_MAX:
            text = f"there are {TABLES_MAX} tables already"
            return [waiter.refuse(ErrorCode.INVALID_SETTING, text)]
        try:
            unit = part_unit(spec)
        except ConfigError as error:
            return [waiter.refuse(ErrorCode.INVALID_SETTING, str(error))]
        table = self._next_id
        self._next_id += 1
        ranks = sorted(servers)
        partition = Partition.balanced(elements, len(ranks), first=table - 1, alignment=unit)
        entry = TableEntry(
            table=table,
            spec=spec,
            parts=[
                ShardPart(server=ranks[index], begin=part.begin, end=part.end)
                for index, part in partition.parts
            ],
            state=TableState.OPENING,
            members=dict.fromkeys(workers.items() if spec.consistency in CLOCKED else (), 0),
            opened={},
            unready={ranks[index]: None for index, _ in partition.parts},
            waiters=[waiter],
        )
        self._by_name[spec.name] = self._by_id[table] = entry
        return [
            Tell(
                OpenShard(
                    table=table,
                    spec=spec,
                    begin=part.begin,
                    end=part.end,
                    workers=sorted(workers),
                    part=number,
                    parts=len(entry.parts),
                ),
                servers[part.server],
            )
            for number, part in enumerate(entry.parts)
        ]

    def shard_ready(self, server: int, message: ShardReady, servers: Peers) -> list[Action]:
        """Take a server's answer to `OpenShard`."""
        entry = self._by_id.get(message.table)
        if entry is None or entry.state is not TableState.OPENING:
            return []
        if message.code != ErrorCode.OK:
            return self._give_up(entry, server, message, servers)
        entry.unready.pop(server, None)
        if entry.unready:
            return []
        if entry.spec.init_kind == "values":
            entry.state = TableState.INITIALISING
            return self._find_initialiser(entry, servers)
        return self._open(entry, servers)

    def _give_up(
        self, entry: TableEntry, server: int, message: ShardReady, servers: Peers
    ) -> list[Action]:
        del self._by_name[entry.spec.name], self._by_id[entry.table]
        drops = entry.tell_servers(DropShard(table=entry.table), servers)
        text = f"server {server}: {message.text}"
        return drops + [waiter.refuse(message.code, text) for waiter in entry.waiters]

    def _find_initialiser(self, entry: TableEntry, servers: Peers) -> list[Action]:
        """Ask one of those who wait for the initial values, if nobody is at it."""
        if entry.state is not TableState.INITIALISING or entry.initialiser is not None:
            return []
        for waiter in entry.waiters:
            if waiter.creates:
                entry.waiters.remove(waiter)
                entry.initialiser = waiter.applicant
                return self._let_in(entry, waiter, servers, initialise=True)
        return []  # the next one who gives values will be asked

    def initialised(self, peer: int, table: int, servers: Peers) -> list[Action]:
        """Take the news that the initial values are in."""
        entry = self._by_id.get(table)
        if entry is None or entry.initialiser is None or entry.initialiser.peer != peer:
            return []
        entry.initialiser = None
        return self._open(entry, servers)

    def _open(self, entry: TableEntry, servers: Peers) -> list[Action]:
        entry.state = TableState.OPEN
        waiters, entry.waiters = entry.waiters, []
        return [action for waiter in waiters for action in self._let_in(entry, waiter, servers)]

    # --- entering the rounds ---

    def _let_in(
        self, entry: TableEntry, waiter: Waiter, servers: Peers, *, initialise: bool = False
    ) -> list[Action]:
        applicant = waiter.applicant
        known = entry.members.get(waiter.who)
        if known is not None or not applicant.takes_part or entry.spec.consistency not in CLOCKED:
            return [entry.tell_opened(waiter, known or 0, initialise=initialise)]
        hold = entry.holds.get(applicant.rank)
        if hold is not None:  # asked twice; one answer serves both
            hold.waiters.append(waiter)
            return []
        entry.holds[applicant.rank] = Hold([waiter], initialise, {})
        return entry.tell_servers(RoundHold(table=entry.table, worker=applicant.rank), servers)

    def held(self, server: int, message: RoundHeld, servers: Peers) -> list[Action]:
        """Take a server's answer to `RoundHold`; with all of them, decide the round."""
        entry = self._by_id.get(message.table)
        hold = entry.holds.get(message.worker) if entry is not None else None
        if entry is None or hold is None:
            return []
        hold.answers[server] = message
        answers = list(hold.answers.values())
        if len(answers) < len(entry.parts):
            return []
        del entry.holds[message.worker]
        if has_lead(entry.spec):
            answers = [hold.answers[entry.parts[0].server]]  # the others come after it
        newest = max(answer.version for answer in answers)
        idle = all(answer.idle and answer.version == newest for answer in answers)
        # Others may just be closing the round after the newest version, so the one after that
        # is the first that every shard still has open. Where nobody takes part there is no such.
        first = newest if idle else newest + 1
        entry.members[hold.waiters[0].who] = first
        release = RoundRelease(table=entry.table, worker=message.worker, from_version=first)
        return [
            *entry.tell_servers(release, servers),
            *(
                entry.tell_opened(w, first, initialise=hold.initialise, late=True)
                for w in hold.waiters
            ),
        ]

    def decided(self, server: int, message: RoundDecided, servers: Peers) -> list[Action]:
        """Pass the lead's decision on a round on to the other servers of the table."""
        entry = self._by_id.get(message.table)
        if entry is None or entry.parts[0].server != server:
            return []
        return [Tell(message, servers[part.server]) for part in entry.parts[1:]]

    def entered(self, table: int, offset: int) -> None:
        """Note at which clock of the job somebody is in which round."""
        entry = self._by_id.get(table)
        if entry is not None:
            # At a creation in the middle of a job workers may differ: the rounds are those of
            # the one that is furthest.
            entry.offset = offset if entry.offset is None else max(offset, entry.offset)

    def clock_of(self, sealed: Mapping[int, tuple[int, int]]) -> int:
        """Return up to which clock of the job a worker has sealed its tables, as far as known."""
        known = (
            entry.offset + mark[0]
            for table, mark in sealed.items()
            if (entry := self._by_id.get(table)) is not None and entry.offset is not None
        )
        return max(known, default=0)

    # --- leaving ---

    def is_entering(self, rank: int) -> bool:
        """Whether a table waits for this worker to enter, or for its initial values."""
        return any(
            rank in entry.holds
            or (entry.initialiser is not None and entry.initialiser.rank == rank)
            for entry in self._by_id.values()
        )

    def finished(self, rank: int, incarnation: int, servers: Peers) -> list[Action]:
        """Take a worker out of the rounds of tables that it has not opened: it never will.

        Those that it has opened it leaves by itself, with its last seal.
        """
        actions: list[Action] = []
        who = (rank, incarnation)
        for entry in self._by_id.values():
            hold = entry.holds.pop(rank, None)
            if hold is None and (who not in entry.members or who in entry.opened):
                continue
            entry.members.pop(who, None)
            verdict = DeathVerdict(worker=rank, **told_of({entry.table: NOTHING_SEALED}))
            actions += entry.tell_servers(verdict, servers)
            if hold is not None:
                actions += [
                    entry.tell_opened(w.as_observer(), 0, initialise=hold.initialise)
                    for w in hold.waiters
                ]
            entry.waiters = [w.as_observer() if w.who == who else w for w in entry.waiters]
        return actions

    def gone(self, peer: int, rank: int, incarnation: int) -> None:
        """Forget a worker that is lost or has left."""
        for entry in self._by_id.values():
            entry.waiters = [w for w in entry.waiters if w.applicant.peer != peer]
            entry.holds.pop(rank, None)
            entry.members.pop((rank, incarnation), None)
            entry.opened.pop((rank, incarnation), None)

    def settled(self, rank: int, servers: Peers) -> list[Action]:
        """Let another worker give the initial values, now that no server hears the gone one."""
        actions: list[Action] = []
        for entry in self._by_id.values():
            if entry.initialiser is not None and entry.initialiser.rank == rank:
                entry.initialiser = None
                actions += self._find_initialiser(entry, servers)
        return actions

    # --- observation ---

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
        return [entry.describe() for entry in self._by_id.values()]
