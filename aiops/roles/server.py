"""The server as a state machine: requests of workers and orders of the scheduler in, actions out.

What lives here: who may speak, which table a request belongs to, and the orders of the
scheduler. The data path of one table is `served_table.py`; what a push does to values is
`consistency.py` and `aiops.shards`; who is in the job is the scheduler's to say. Requests come
by direct method calls on the data path (`request`), everything else by messages (`order`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from aiops.compression import codec_from
from aiops.compression.pulls import pull_codecs
from aiops.compression.spelling import AUTO
from aiops.errors import ConfigError
from aiops.init import initializer_from
from aiops.optim import optimizer_from
from aiops.optim.clipping import refuse_row_limit
from aiops.roles.actions import Action, Drop, Ended, Note, Send, Tell
from aiops.roles.answers import refuse
from aiops.roles.caller import Caller
from aiops.roles.inquiries import answer
from aiops.roles.key_lists import KeyCache
from aiops.roles.losses import marks_of, told_of
from aiops.roles.memory import Budget, shard_bytes
from aiops.roles.quorum import Share
from aiops.roles.rounds import NOTHING_SEALED, Mark
from aiops.roles.rules import ROUNDS, check_consistency, has_lead, places, rule_for
from aiops.roles.served_table import ServedTable
from aiops.roles.shards import shard_for
from aiops.roles.table_entry import check_layout
from aiops.shards.sparse import SparseShard
from aiops_protocol.control import (
    ClusterState,
    ControlMessage,
    DeathQuery,
    DeathVerdict,
    DropShard,
    LossReport,
    OpenShard,
    RoundDecided,
    RoundHeld,
    RoundHold,
    RoundRelease,
    ShardReady,
    Shutdown,
    StopAt,
    TableReport,
    TableSpec,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Call, Flag, Pull, Query, Request, Seal
from aiops_protocol.key_list import as_keys

__all__ = ["ServerCore"]

_KEY_LIST: Final = int(Flag.KEY_LIST)
_KEY_SIGNATURE: Final = int(Flag.KEY_SIGNATURE)


class ServerCore:
    """One server of a job.

    Parameters
    ----------
    memory_limit_bytes
        What all shards together may need; a table beyond it is refused with the sum.
    """

    def __init__(self, memory_limit_bytes: int) -> None:
        self.epoch = 0
        self.ended: Ended | None = None
        self.tables: dict[int, ServedTable] = {}
        self._budget = Budget(memory_limit_bytes)
        self._lists = KeyCache()
        self._reserved: dict[int, int] = {}  # bytes per table, without the places of latecomers
        self._deciding: dict[int, ServedTable] = {}  # whose rounds may close by time
        self._callers: dict[int, Caller] = {}
        self._speakers: dict[tuple[int, int, int], int] = {}  # whose first request names them
        self._connections = 0  # that there have ever been
        self._newest: dict[int, int] = {}  # rank: lowest incarnation that may speak
        self._why: dict[int, str] = {}  # rank: why none below it may
        self._lost: dict[int, int] = {}  # rank: incarnation whose verdict is awaited
        self._departed: dict[int, int] = {}  # rank: incarnation that left, still connected

    @property
    def memory_limit_bytes(self) -> int:
        """What all shards together may need."""
        return self._budget.limit

    @property
    def memory_bytes(self) -> int:
        """What is reserved for shards."""
        return self._budget.taken

    # --- connections ---

    def admit(self, rank: int, incarnation: int) -> ErrorCode:
        """Judge a worker's data connection before it is welcomed."""
        if self.ended is not None:
            return ErrorCode.SHUTTING_DOWN
        if incarnation < self._newest.get(rank, 0):
            return ErrorCode.STALE_INCARNATION
        return ErrorCode.OK

    def connected(self, peer: int, rank: int, incarnation: int, customers: int = 1) -> list[Action]:
        """Note a new data connection; older ones of a former incarnation are dropped."""
        if incarnation < self._newest.get(rank, 0):  # lost since it was welcomed
            return [self._drop(peer, rank)]
        self._connections += 1
        self._callers[peer] = Caller(rank, incarnation, self._connections, customers)
        return self._fence(rank, incarnation, "has been started again")

    def _fence(self, rank: int, incarnation: int, why: str) -> list[Action]:
        """Let no incarnation below this one speak any more, not even in frames under way."""
        if incarnation > self._newest.get(rank, 0):
            self._newest[rank] = incarnation
            self._why[rank] = why
        stale = [
            peer
            for peer, caller in self._callers.items()
            if caller.rank == rank and caller.incarnation < incarnation
        ]
        gone = [action for peer in stale for action in self.disconnected(peer)]
        return [*(self._drop(peer, rank) for peer in stale), *gone]

    def _drop(self, peer: int, rank: int) -> Drop:
        return Drop(peer, ErrorCode.STALE_INCARNATION, f"worker {rank} {self._why[rank]}")

    def disconnected(self, peer: int) -> list[Action]:
        """Forget a connection; its parked mutations stay, they will be asked for again."""
        caller = self._callers.pop(peer, None)
        if caller is None:
            return []
        session = (caller.rank, caller.incarnation, caller.session)
        if self._speakers.get(session) == peer:
            del self._speakers[session]
        for table in self.tables.values():
            table.disconnected(peer)
        return self._forget_departed(caller.rank)

    def _take_over(self, peer: int, caller: Caller) -> list[Action]:
        """Give a session to the newest of its connections; the worker has given up the others.

        They may be dead ones that nothing has told of, with answers that nobody will read. What
        comes over one of them for the first time may be read later than the newest one's.
        """
        session = (caller.rank, caller.incarnation, caller.session)
        newest, former = peer, self._speakers.get(session)
        if former is not None and self._callers[former].order > caller.order:
            newest, former = former, peer
        self._speakers[session] = newest
        if former is None:
            return []
        text = f"worker {caller.rank} has opened another connection for customer {caller.session}"
        drop = Drop(former, ErrorCode.TOO_MANY_CONNECTIONS, text)
        return [drop, *self.disconnected(former)]

    @property
    def farewell(self) -> str:
        """Why it ends, for workers: they may read this before the scheduler's word."""
        failed = self.ended is not None and not self.ended.ok
        return (
            f"the server ends: {self.ended.reason}" if failed and self.ended else "the server ends"
        )

    # --- the data path ---

    def request(self, peer: int, request: Request, now: float) -> list[Action]:
        """Handle one request of a worker; its payload is used up before this returns."""
        caller = self._callers.get(peer)
        table = self.tables.get(request.table)
        if caller is None or table is None or self.ended is not None:
            return self._turn_away(peer, caller, request)
        if caller.session < 0:
            caller.session = request.session
            if dropped := self._take_over(peer, caller):
                return [*dropped, *self.request(peer, request, now)]
        begin, end = request.begin, request.end
        if request.flags & _KEY_SIGNATURE:
            named = self._resolve(peer, request)
            if isinstance(named, Send):
                return [named]
            request = named
        if table.sparse or request.flags & _KEY_LIST:
            if type(request) is not Seal and not _lists_keys(table, request):
                return [self._not_owned(peer, table, request)]
        elif (begin < table.begin or end > table.end or begin == end) and not _names_no_keys(
            table, request
        ):
            return [self._not_owned(peer, table, request)]
        if type(request) is Pull or (type(request) is Call and not request.seq):
            return table.pull(peer, request, now)
        return table.mutate(peer, caller, request, now)

    def query(self, peer: int, query: Query, received: dict[int, int]) -> list[Action]:
        """Say what has become of a worker's requests.

        Parameters
        ----------
        received
            Bytes that have arrived over each connection of this worker, by its mark; that of
            `peer` itself under `OWN_CONNECTION`, too.
        """
        caller, table = self._callers.get(peer), self.tables.get(query.table)
        return [answer(peer, query, caller, table, received, self.epoch)]

    def _resolve(self, peer: int, request: Request) -> Request | Send:
        """Return a request with the key list of its signature; or the refusal."""
        mark = request.signature
        if request.flags & _KEY_LIST:
            if self._lists.keep(mark, request.keys):
                return request
            text = "the signature is not that of the key list"
            return refuse(peer, request, ErrorCode.INVALID_SETTING, text, self.epoch)
        keys = self._lists.find(mark)
        if keys is None:
            return refuse(peer, request, ErrorCode.KEYS_NOT_CACHED, epoch=self.epoch)
        return msgspec.structs.replace(request, keys=keys, flags=request.flags | _KEY_LIST)

    def _not_owned(self, peer: int, table: ServedTable, request: Request) -> Action:
        by = "by key list" if table.sparse else "by range"
        text = f"this server holds [{table.begin}, {table.end}) of table {table.name}, {by}"
        return refuse(peer, request, ErrorCode.KEY_RANGE_NOT_OWNED, text, self.epoch)

    def _turn_away(self, peer: int, caller: Caller | None, request: Request) -> list[Action]:
        if caller is None:
            return [refuse(peer, request, ErrorCode.STALE_INCARNATION, epoch=self.epoch)]
        if self.ended is not None:
            # No answer but the goodbye that follows when the scheduler knows: a worker that is
            # told here would end first, and be blamed for the end of the job.
            return []
        return [refuse(peer, request, ErrorCode.UNKNOWN_TABLE, epoch=self.epoch)]

    # --- time ---

    def tick(self, now: float) -> list[Action]:
        """Tell everyone who waits for whom; to be called a few times a second."""
        actions: list[Action] = []
        for table in self.tables.values():
            deadline = table.rule.deadline
            if deadline is not None and deadline <= now:
                table.rule.now = now
                actions += table.advance()
            actions += table.notices(now)
            actions += table.look(now)
        return actions

    def reports(self) -> list[TableReport]:
        """Return what tables have counted, of those where it has changed since the last time."""
        found = (table.watch.report() for table in self.tables.values())
        return [report for report in found if report is not None]

    def next_deadline(self) -> float | None:
        """When a round closes without those who are late: `tick` should be called then."""
        if not self._deciding:
            return None
        deadlines = [table.rule.deadline for table in self._deciding.values()]
        return min((at for at in deadlines if at is not None), default=None)

    # --- orders of the scheduler ---

    def order(self, message: ControlMessage, now: float) -> list[Action]:
        """Handle a message of the scheduler."""
        for table in self.tables.values():
            table.rule.now = now
        match message:
            case ClusterState():
                return self._see(message)
            case OpenShard():
                return self._open(message)
            case DropShard(table=table_id):
                return self._discard(table_id)
            case RoundHold(table=table_id, worker=worker):
                return self._hold(table_id, worker)
            case RoundRelease(table=table_id, worker=worker, from_version=version):
                return self._admit(table_id, worker, version)
            case RoundDecided(table=table_id):
                decided = self.tables.get(table_id)
                if decided is None:
                    return []
                shares = [Share(*share) for share in message.shares]
                return decided.decided(message.version, shares)
            case DeathQuery(worker=worker, incarnation=incarnation):
                return self._lose(worker, incarnation)
            case DeathVerdict():
                return self._settle(message.worker, marks_of(message))
            case Shutdown(reason=reason, failed=failed):
                self.ended = self.ended or Ended(not failed, reason)
                return [self.ended]
            case StopAt(clock=clock, reason=reason):
                return [Note("stop_agreed", {"clock": clock, "reason": reason})]
            case _:
                return [Note("unexpected_message", {"message": type(message).__name__}, "warning")]

    def _see(self, state: ClusterState) -> list[Action]:
        self.epoch = state.epoch
        for table in self.tables.values():
            table.epoch = state.epoch
        actions: list[Action] = []
        for member in state.members:
            if member.role != "worker":
                continue
            rank, incarnation = member.rank, member.incarnation
            if incarnation > self._newest.get(rank, 0):
                actions += self._fence(rank, incarnation, "has been started again")
            if member.state == "left" and incarnation == self._newest[rank]:
                self._departed[rank] = incarnation
                actions += self._forget_departed(rank)
        return actions

    def _forget_departed(self, rank: int) -> list[Action]:
        """Keep nothing of a worker that left in order, once its last bytes are in."""
        incarnation = self._departed.get(rank)
        if incarnation is None or any(
            caller.rank == rank and caller.incarnation <= incarnation
            for caller in self._callers.values()
        ):
            return []
        del self._departed[rank]
        actions: list[Action] = []
        for table in self.tables.values():
            table.forget(rank, incarnation)
            if self._newest[rank] == incarnation:  # else it is back, and in the rounds again
                actions += table.settle(rank, NOTHING_SEALED)
        self._fence(rank, incarnation + 1, "has left the job")
        return actions

    def _open(self, order: OpenShard) -> list[Action]:
        spec = order.spec
        try:
            optimizer = optimizer_from(spec.optimizer, spec.optimizer_settings)
            given = spec.init_kind == "values"
            initializer = None if given else initializer_from(spec.init_kind, spec.init)
            check_consistency(spec)
            check_layout(spec)
            if spec.layout == "dense":
                refuse_row_limit(optimizer, f"table {spec.name}")
            if spec.compression and spec.compression != AUTO:
                codec_from(spec.compression)
            if spec.pull_compression:
                pull_codecs(spec.pull_compression)
        except ConfigError as error:
            return [_not_ready(order.table, ErrorCode.INVALID_SETTING, str(error))]
        sparse = spec.layout != "dense"
        elements = 0 if sparse else order.end - order.begin  # sparse rows take memory as they come
        contributions, rounds = places(spec, len(order.workers)), spec.consistency in ROUNDS
        parts = shard_bytes(
            elements,
            optimizer,
            contributions,
            rounds=rounds,
            replica=bool(spec.pull_compression),
        )
        needed = sum(parts.values())
        if not self._budget.take(needed):
            return [_not_ready(order.table, ErrorCode.OUT_OF_MEMORY, self._no_room(spec, parts))]
        shard = shard_for(order, optimizer, initializer, self._budget)
        rule = rule_for(spec, shard, list(order.workers), self._budget, leads=order.part == 0)
        self._reserved[order.table] = needed
        self.tables[order.table] = ServedTable(
            order.table,
            spec,
            rule,
            self._callers,
            initialised=not given,
            epoch=self.epoch,
            alone=order.parts == 1,
        )
        if has_lead(spec) and order.part == 0:
            self._deciding[order.table] = self.tables[order.table]
        fields: dict[str, object] = {"table": spec.name, "begin": order.begin, "end": order.end}
        return [Tell(ShardReady(table=order.table)), Note("shard_opened", fields)]

    def _no_room(self, spec: TableSpec, parts: Mapping[str, int]) -> str:
        """Say what a table would need, and what there is."""
        return (
            f"table {spec.name} needs {sum(parts.values())} bytes on this server ("
            + ", ".join(f"{part} {size}" for part, size in parts.items() if size)
            + f"); {self.memory_bytes} of {self.memory_limit_bytes} are taken: add servers or "
            "raise the memory limit"
        )

    def _discard(self, table_id: int) -> list[Action]:
        self._deciding.pop(table_id, None)
        table = self.tables.pop(table_id, None)
        if table is not None:
            self._budget.give(self._reserved.pop(table_id))
            if isinstance(table.rule.shard, SparseShard):
                table.rule.shard.release()
        return []

    def _hold(self, table_id: int, worker: int) -> list[Action]:
        table = self.tables.get(table_id)
        version, idle = table.rule.hold(worker) if table else (0, True)
        return [Tell(RoundHeld(table=table_id, worker=worker, version=version, idle=idle))]

    def _admit(self, table_id: int, worker: int, version: int) -> list[Action]:
        table = self.tables.get(table_id)
        return table.admit(worker, version) if table else []

    def _lose(self, worker: int, incarnation: int) -> list[Action]:
        actions = self._fence(worker, incarnation + 1, "was declared lost by the scheduler")
        self._lost[worker] = incarnation
        sealed: dict[int, Mark] = {}
        for table in self.tables.values():
            mark = table.rule.lose(worker)
            if mark is not None:
                sealed[table.table_id] = mark
            # If it was about to enter, a round may have waited for that.
            actions += table.advance()
        return [*actions, Tell(LossReport(worker=worker, **told_of(sealed)))]

    def _settle(self, worker: int, sealed: dict[int, Mark]) -> list[Action]:
        incarnation = self._lost.pop(worker, None)
        if incarnation is not None:
            for number, table in self.tables.items():
                table.forget(worker, incarnation)
                if number not in sealed:
                    table.rule.acquit(worker)
        actions: list[Action] = []
        for table_id, mark in sealed.items():
            settled = self.tables.get(table_id)
            if settled is not None:  # this server may hold no part of it
                actions += settled.settle(worker, mark)
        return actions

    def rounds(self) -> dict[str, tuple[int, list[int]]]:
        """Per table: version, and the ranks that are waited for; for status."""
        return {
            table.name: (table.rule.progress, table.rule.missing())
            for table in self.tables.values()
        }

    def sparse_tables(self) -> dict[str, tuple[int, int]]:
        """Per sparse table: rows, and bytes that they and their index take; for status."""
        shards = {table.name: table.rule.shard for table in self.tables.values()}
        return {
            name: (shard.rows, shard.nbytes)
            for name, shard in shards.items()
            if isinstance(shard, SparseShard)
        }

    def validate(self) -> None:
        """Check what must always hold."""
        self._lists.validate()
        assert set(self._reserved) == set(self.tables)
        assert sum(self._reserved.values()) <= self.memory_bytes <= self.memory_limit_bytes
        for caller in self._callers.values():
            assert caller.incarnation >= self._newest[caller.rank]
        for session, peer in self._speakers.items():
            caller = self._callers[peer]
            assert session == (caller.rank, caller.incarnation, caller.session)
        for table in self.tables.values():
            table.validate()


def _names_no_keys(table: ServedTable, request: Request) -> bool:
    """Whether a request without a range is in its place: seal, function, or an empty table."""
    return request.begin == request.end == 0 and (
        type(request) is Seal or type(request) is Call or table.begin == table.end
    )


def _lists_keys(table: ServedTable, request: Request) -> bool:
    """Whether a request names keys of a sparse table by a list, and all of them are held here."""
    if not table.sparse or not request.keys:
        return False
    keys = as_keys(request.keys)  # sorted, as the codec has seen
    return table.begin <= int(keys[0]) and int(keys[-1]) < table.end


def _drop(peer: int, rank: int) -> Drop:
    text = f"worker {rank} was declared lost or has been started again"
    return Drop(peer, ErrorCode.STALE_INCARNATION, text)


def _not_ready(table: int, code: ErrorCode, text: str) -> Tell:
    return Tell(ShardReady(table=table, code=code, text=text))
