"""The server as a state machine: requests of workers and orders of the scheduler in, actions out.

What lives here: which request may touch which shard, exactly-once, parking of what must wait,
and the answers. What a push does to values is `consistency.py` and `aiops.shard`; who is in
the job is the scheduler's to say. Requests come by direct method calls on the data path
(`request`), everything else by messages (`order`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, assert_never

import msgspec
import numpy as np

from aiops.errors import ConfigError
from aiops.init import initializer_from
from aiops.optim import optimizer_from
from aiops.roles.actions import Action, Drop, Ended, Note, RoundClosed, Send, Tell
from aiops.roles.consistency import PARK, AspRule, BspRule, Outcome, Rule
from aiops.shard import Selection, Shard, memory_bytes
from aiops_protocol.control import (
    ClusterState,
    ControlMessage,
    DeathQuery,
    DeathVerdict,
    DropShard,
    LossReport,
    OpenShard,
    RoundHeld,
    RoundHold,
    RoundRelease,
    ShardReady,
    Shutdown,
    StopAt,
    TableSpec,
)
from aiops_protocol.delivery import Inbox, Verdict
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import (
    Ack,
    Assign,
    Flag,
    Parked,
    Pull,
    PushPull,
    Reject,
    Request,
    Seal,
    Value,
)
from aiops_protocol.limits import PAYLOAD_BYTES_MAX
from aiops_protocol.payload import Float32Array, as_bytes, as_float32

__all__ = ["ServerCore"]

PARKED_PER_PEER_MAX: Final = 4096
"""Requests of one worker that wait by rule; a worker's own windows stay far below."""

PARKED_NOTICE_S: Final = 1.0
"""How often a waiting request is told for whom it waits: well under any deadline."""

_KEY_LIST: Final = int(Flag.KEY_LIST)
_INITIAL: Final = int(Flag.INITIAL)
_CONTRIBUTED: Final = int(Flag.CONTRIBUTED)
_FINAL: Final = int(Flag.FINAL)


class Caller(msgspec.Struct, gc=False):
    """A worker at the other end of a data connection."""

    rank: int
    incarnation: int
    parked: int = 0


class Waiting(msgspec.Struct):
    """A request that waits by rule of consistency."""

    peer: int
    request: Request
    noticed_at: float


class Table:
    """One server's part of one table: rule, exactly-once records, and what waits."""

    __slots__ = (
        "_initialiser",
        "_to_initialise",
        "allow_nonfinite",
        "begin",
        "end",
        "inboxes",
        "name",
        "parked",
        "pulls",
        "rule",
        "table_id",
    )

    def __init__(self, table_id: int, spec: TableSpec, rule: Rule, initialised: bool) -> None:
        self.table_id = table_id
        self.name = spec.name
        self.rule = rule
        self.begin = rule.shard.begin
        self.end = rule.shard.end
        self.allow_nonfinite = spec.allow_nonfinite
        self._to_initialise = 0 if initialised else self.end - self.begin
        self._initialiser: int | None = None
        self.inboxes: dict[tuple[int, int], Inbox] = {}
        self.parked: dict[tuple[int, int], deque[Waiting]] = {}  # mutations, by session, in order
        self.pulls: list[Waiting] = []

    @property
    def initialised(self) -> bool:
        """Whether every element has its initial value."""
        return not self._to_initialise

    def initialise(self, rank: int, selection: Selection, values: Float32Array) -> None:
        """Take a piece of the initial values; once they are whole, further ones are ignored.

        A second initialiser (the first one died half-way) starts from nothing.
        """
        if self.initialised:
            return
        if self._initialiser != rank:
            self._initialiser = rank
            self._to_initialise = self.end - self.begin
        self.rule.shard.write(selection, values)
        self._to_initialise -= selection.size


class ServerCore:
    """One server of a job.

    Parameters
    ----------
    memory_limit_bytes
        What all shards together may need; a table beyond it is refused with the sum.
    """

    def __init__(self, memory_limit_bytes: int) -> None:
        self.memory_limit_bytes = memory_limit_bytes
        self.memory_bytes = 0
        self.epoch = 0
        self.ended: Ended | None = None
        self.tables: dict[int, Table] = {}
        self._callers: dict[int, Caller] = {}
        self._incarnations: dict[int, int] = {}
        self._needed: dict[int, int] = {}  # bytes reserved per table

    # --- connections ---

    def admit(self, rank: int, incarnation: int) -> ErrorCode:
        """Judge a worker's data connection before it is welcomed."""
        if self.ended is not None:
            return ErrorCode.SHUTTING_DOWN
        if incarnation < self._incarnations.get(rank, 0):
            return ErrorCode.STALE_INCARNATION
        return ErrorCode.OK

    def connected(self, peer: int, rank: int, incarnation: int) -> list[Action]:
        """Note a new data connection; older ones of a former incarnation are dropped."""
        self._callers[peer] = Caller(rank, incarnation)
        self._incarnations[rank] = max(incarnation, self._incarnations.get(rank, 0))
        return self._fence(rank)

    def _fence(self, rank: int) -> list[Action]:
        newest = self._incarnations[rank]
        text = f"worker {rank} has been started again: this is its former incarnation"
        return [
            Drop(peer, ErrorCode.STALE_INCARNATION, text)
            for peer, caller in self._callers.items()
            if caller.rank == rank and caller.incarnation < newest
        ]

    def disconnected(self, peer: int) -> None:
        """Forget a connection; its parked mutations stay, they will be asked for again."""
        self._callers.pop(peer, None)
        for table in self.tables.values():
            table.pulls = [waiting for waiting in table.pulls if waiting.peer != peer]

    # --- the data path ---

    def request(self, peer: int, request: Request, now: float) -> list[Action]:
        """Handle one request of a worker; its payload is used up before this returns."""
        caller = self._callers[peer]
        table = self.tables.get(request.table)
        if table is None:
            return [self._reject(peer, request, ErrorCode.UNKNOWN_TABLE, "no such table")]
        if not self._owned(table, request):
            text = f"this server holds [{table.begin}, {table.end}) of table {table.name}"
            return [self._reject(peer, request, ErrorCode.KEY_RANGE_NOT_OWNED, text)]
        if isinstance(request, Pull):
            return self._pull(peer, caller, table, request, now)
        return self._mutate(peer, caller, table, request, now)

    @staticmethod
    def _owned(table: Table, request: Request) -> bool:
        if request.flags & _KEY_LIST:
            return False
        if request.begin == request.end:
            return isinstance(request, Seal) or table.begin == table.end
        return table.begin <= request.begin and request.end <= table.end

    def _pull(
        self, peer: int, caller: Caller, table: Table, request: Pull, now: float
    ) -> list[Action]:
        if not table.initialised:
            text = f"table {table.name} has no values yet"
            return [self._reject(peer, request, ErrorCode.NOT_INITIALISED, text)]
        if request.end - request.begin > PAYLOAD_BYTES_MAX // 4 and not request.ranges:
            text = f"at most {PAYLOAD_BYTES_MAX} bytes of values travel in one answer"
            return [self._reject(peer, request, ErrorCode.SIZE_MISMATCH, text)]
        if table.rule.readable(request.clock):
            return [self._value(peer, table, request)]
        if caller.parked >= PARKED_PER_PEER_MAX:
            text = f"{PARKED_PER_PEER_MAX} requests of this worker wait already"
            return [self._reject(peer, request, ErrorCode.OUT_OF_WINDOW, text)]
        caller.parked += 1
        table.pulls.append(Waiting(peer, request, now))
        return []

    def _mutate(
        self, peer: int, caller: Caller, table: Table, request: Request, now: float
    ) -> list[Action]:
        session = (caller.rank, request.session)
        inbox = table.inboxes.get(session)
        if inbox is None:
            inbox = table.inboxes[session] = Inbox(caller.incarnation)
        former = inbox.incarnation
        verdict = inbox.judge(caller.incarnation, request.seq, request.answered_below)
        if inbox.incarnation != former:
            table.parked.pop(session, None)
        match verdict:
            case Verdict.APPLY:
                queue = table.parked.get(session)
                if queue:
                    return self._park(peer, caller, queue, request, now)
                answer = self._apply(peer, caller, table, inbox, request)
                if answer is None:
                    queue = table.parked.setdefault(session, deque())
                    return self._park(peer, caller, queue, request, now)
                if isinstance(request, Seal):
                    return [answer, *self._advance(table, now)]
                return [answer, *self._awaken(table)] if table.pulls else [answer]
            case Verdict.DUPLICATE:
                return [self._answer(peer, table, request, inbox.outcome(request.seq))]
            case Verdict.FENCED:
                text = f"worker {caller.rank} has been started again"
                return [self._reject(peer, request, ErrorCode.STALE_INCARNATION, text)]
            case Verdict.OUT_OF_WINDOW:
                text = f"mutation {request.seq} is beyond the window of {inbox.window}"
                return [self._reject(peer, request, ErrorCode.OUT_OF_WINDOW, text)]
            case _:
                assert_never(verdict)

    def _park(
        self, peer: int, caller: Caller, queue: deque[Waiting], request: Request, now: float
    ) -> list[Action]:
        for waiting in queue:
            if waiting.request.seq == request.seq:  # sent again over a new connection
                waiting.peer = peer
                return []
        # The payload is borrowed from the connection. What may wait here is bounded by the
        # windows of the session: 64 mutations and WINDOW_BYTES per connection.
        kept = msgspec.structs.replace(request, payload=bytes(request.payload))
        queue.append(Waiting(peer, kept, now))
        caller.parked += 1
        return []

    def _apply(
        self, peer: int, caller: Caller, table: Table, inbox: Inbox, request: Request
    ) -> Send | None:
        """Apply a mutation and record it, in one step. `None`: it must be parked."""
        rule = table.rule
        if isinstance(request, Seal):
            flags = request.flags
            outcome = rule.seal(
                caller.rank, request.clock, bool(flags & _CONTRIBUTED), bool(flags & _FINAL)
            )
        else:
            selection = Selection.of(request.begin, request.end, request.ranges, table.begin)
            if len(request.payload) != 4 * selection.size:
                outcome = ErrorCode.SIZE_MISMATCH
            else:
                values = as_float32(request.payload)
                outcome = self._change(caller.rank, table, request, selection, values)
        if outcome is PARK:
            return None
        inbox.record(request.seq, outcome)
        return self._answer(peer, table, request, outcome)

    def _change(
        self,
        rank: int,
        table: Table,
        request: Request,
        selection: Selection,
        values: Float32Array,
    ) -> Outcome:
        if not table.allow_nonfinite and not _finite(values):
            return ErrorCode.NOT_FINITE
        if request.flags & _INITIAL:
            table.initialise(rank, selection, values)
            return ErrorCode.OK
        try:
            if isinstance(request, Assign):
                return table.rule.assign(rank, request.clock, selection, values)
            return table.rule.push(rank, request.clock, selection, values)
        except Exception:
            return ErrorCode.OPTIMIZER_FAILED

    # --- answers ---

    def _answer(self, peer: int, table: Table, request: Request, code: ErrorCode) -> Send:
        if code is not ErrorCode.OK:
            return self._reject(peer, request, code, _EXPLANATIONS.get(code, code.name.lower()))
        if isinstance(request, PushPull):
            return self._value(peer, table, request)
        return Send(
            peer,
            Ack(
                request_id=request.request_id,
                seq=request.seq,
                version=table.rule.version,
                epoch=self.epoch,
                table=request.table,
                session=request.session,
            ),
        )

    def _value(self, peer: int, table: Table, request: Request) -> Send:
        selection = Selection.of(request.begin, request.end, request.ranges, table.begin)
        return Send(
            peer,
            Value(
                request_id=request.request_id,
                seq=request.seq,
                version=table.rule.version,
                epoch=self.epoch,
                table=request.table,
                session=request.session,
                payload=as_bytes(table.rule.shard.read(selection)),
            ),
        )

    def _reject(self, peer: int, request: Request, code: ErrorCode, text: str) -> Send:
        return Send(
            peer,
            Reject(
                request_id=request.request_id,
                seq=request.seq,
                epoch=self.epoch,
                table=request.table,
                session=request.session,
                status=code,
                payload=text.encode()[:1024],
            ),
        )

    # --- rounds ---

    def _advance(self, table: Table, now: float) -> list[Action]:
        """Close what can close, then answer pulls and apply what waited for the next round."""
        actions: list[Action] = []
        while True:
            try:
                pushed = table.rule.advance()
            except Exception as error:
                reason = f"the optimizer of table {table.name} failed: {error!r}"
                self.ended = Ended(False, reason)
                return [
                    *actions,
                    Note("optimizer_failed", {"table": table.name}, "error"),
                    self.ended,
                ]
            if pushed is None:
                return actions
            actions.append(RoundClosed(table.table_id, table.rule.version, len(pushed)))
            actions += self._awaken(table)
            actions += self._unpark(table)

    def _awaken(self, table: Table) -> Iterable[Action]:
        still, answers = [], []
        for waiting in table.pulls:
            if not table.rule.readable(waiting.request.clock):
                still.append(waiting)
                continue
            caller = self._callers.get(waiting.peer)
            if caller is not None:
                caller.parked -= 1
                answers.append(self._value(waiting.peer, table, waiting.request))
        table.pulls = still
        return answers

    def _unpark(self, table: Table) -> Iterable[Action]:
        answers = []
        for (rank, session), queue in list(table.parked.items()):
            inbox = table.inboxes[rank, session]
            while queue:
                waiting = queue[0]
                caller = self._callers.get(waiting.peer) or Caller(rank, inbox.incarnation)
                answer = self._apply(waiting.peer, caller, table, inbox, waiting.request)
                if answer is None:
                    break
                queue.popleft()
                caller.parked -= 1
                if waiting.peer in self._callers:
                    answers.append(answer)
            if not queue:
                del table.parked[rank, session]
        return answers

    # --- time ---

    def next_deadline(self) -> float | None:
        """When `tick` should be called next."""
        return min(
            (waiting.noticed_at + PARKED_NOTICE_S for waiting in self._all_waiting()), default=None
        )

    def tick(self, now: float) -> list[Action]:
        """Tell everyone who waits for whom."""
        actions: list[Action] = []
        for table in self.tables.values():
            ranks = np.asarray(table.rule.missing(), "<u4").tobytes()
            for waiting in self._waiting_in(table):
                if now - waiting.noticed_at >= PARKED_NOTICE_S and waiting.peer in self._callers:
                    request = waiting.request
                    actions.append(
                        Send(
                            waiting.peer,
                            Parked(
                                request_id=request.request_id,
                                seq=request.seq,
                                version=table.rule.version,
                                epoch=self.epoch,
                                table=request.table,
                                session=request.session,
                                count=len(ranks) // 4,
                                payload=ranks,
                            ),
                        )
                    )
                if now - waiting.noticed_at >= PARKED_NOTICE_S:
                    waiting.noticed_at = now
        return actions

    def _waiting_in(self, table: Table) -> Iterable[Waiting]:
        yield from table.pulls
        for queue in table.parked.values():
            yield from queue

    def _all_waiting(self) -> Iterable[Waiting]:
        for table in self.tables.values():
            yield from self._waiting_in(table)

    # --- orders of the scheduler ---

    def order(self, message: ControlMessage, now: float) -> list[Action]:
        """Handle a message of the scheduler."""
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
                return self._admit(table_id, worker, version, now)
            case DeathQuery(worker=worker, incarnation=incarnation):
                return self._lose(worker, incarnation)
            case DeathVerdict(worker=worker, sealed=sealed):
                return self._settle(worker, sealed, now)
            case Shutdown(reason=reason, failed=failed):
                self.ended = Ended(not failed, reason)
                return [self.ended]
            case StopAt(clock=clock, reason=reason):
                return [Note("stop_agreed", {"clock": clock, "reason": reason})]
            case _:
                return [Note("unexpected_message", {"message": type(message).__name__}, "warning")]

    def _see(self, state: ClusterState) -> list[Action]:
        self.epoch = state.epoch
        actions: list[Action] = []
        for member in state.members:
            if member.role == "worker" and member.incarnation > self._incarnations.get(
                member.rank, 0
            ):
                self._incarnations[member.rank] = member.incarnation
                actions += self._fence(member.rank)
        return actions

    def _open(self, order: OpenShard) -> list[Action]:
        spec = order.spec
        try:
            optimizer = optimizer_from(spec.optimizer, spec.optimizer_settings)
            given = spec.init_kind == "values"
            initializer = None if given else initializer_from(spec.init_kind, spec.init)
        except ConfigError as error:
            return [
                Tell(ShardReady(table=order.table, code=ErrorCode.INVALID_SETTING, text=str(error)))
            ]
        elements = order.end - order.begin
        bsp = spec.consistency == "bsp"
        needed, parts = memory_bytes(elements, optimizer, len(order.workers), rounds=bsp)
        if self.memory_bytes + needed > self.memory_limit_bytes:
            text = (
                f"table {spec.name} needs {needed} bytes on this server ("
                + ", ".join(f"{part} {size}" for part, size in parts.items() if size)
                + f"); {self.memory_bytes} of {self.memory_limit_bytes} are taken: add servers or "
                "raise the memory limit"
            )
            return [Tell(ShardReady(table=order.table, code=ErrorCode.OUT_OF_MEMORY, text=text))]
        values = (
            np.zeros(elements, np.float32)
            if initializer is None
            else initializer.fill(order.begin, order.end)
        )
        shard = Shard(order.begin, order.end, optimizer, values)
        rule: Rule
        if bsp:
            mean = spec.consistency_settings.get("reduce") == "mean"
            rule = BspRule(shard, mean, list(order.workers))
        else:
            rule = AspRule(shard)
        self.memory_bytes += needed
        self._needed[order.table] = needed
        self.tables[order.table] = Table(order.table, spec, rule, initialised=not given)
        fields: dict[str, object] = {"table": spec.name, "begin": order.begin, "end": order.end}
        return [Tell(ShardReady(table=order.table)), Note("shard_opened", fields)]

    def _discard(self, table_id: int) -> list[Action]:
        if self.tables.pop(table_id, None) is not None:
            self.memory_bytes -= self._needed.pop(table_id)
        return []

    def _hold(self, table_id: int, worker: int) -> list[Action]:
        rule = self.tables[table_id].rule
        if not isinstance(rule, BspRule):
            return [Tell(RoundHeld(table=table_id, worker=worker, version=0))]
        idle = rule.rounds.idle
        version = rule.rounds.hold(worker)
        return [Tell(RoundHeld(table=table_id, worker=worker, version=version, idle=idle))]

    def _admit(self, table_id: int, worker: int, version: int, now: float) -> list[Action]:
        table = self.tables[table_id]
        if isinstance(table.rule, BspRule):
            table.rule.rounds.admit(worker, version)
        return self._advance(table, now)

    def _lose(self, worker: int, incarnation: int) -> list[Action]:
        self._incarnations[worker] = max(incarnation + 1, self._incarnations.get(worker, 0))
        sealed = {
            table.table_id: table.rule.rounds.lose(worker)
            for table in self.tables.values()
            if isinstance(table.rule, BspRule)
        }
        text = f"worker {worker} was declared lost"
        drops: list[Action] = [
            Drop(peer, ErrorCode.STALE_INCARNATION, text)
            for peer, caller in self._callers.items()
            if caller.rank == worker and caller.incarnation <= incarnation
        ]
        return [*drops, Tell(LossReport(worker=worker, sealed=sealed))]

    def _settle(self, worker: int, sealed: dict[int, tuple[int, bool]], now: float) -> list[Action]:
        actions: list[Action] = []
        for table_id, (rounds, contributed) in sealed.items():
            table = self.tables.get(table_id)
            if table is None:  # all of it is on other servers
                continue
            for session in [session for session in table.parked if session[0] == worker]:
                del table.parked[session]
            if isinstance(table.rule, BspRule):
                table.rule.settle(worker, rounds, contributed)
            actions += self._advance(table, now)
        return actions

    def rounds(self) -> dict[str, tuple[int, list[int]]]:
        """Per table: version, and the ranks that its open round waits for; for status."""
        return {
            table.name: (table.rule.version, table.rule.missing()) for table in self.tables.values()
        }

    def validate(self) -> None:
        """Check what must always hold."""
        for table in self.tables.values():
            for inbox in table.inboxes.values():
                inbox.validate()
            if isinstance(table.rule, BspRule):
                table.rule.rounds.validate()
            assert all(table.parked.values())


def _finite(values: Float32Array) -> bool:
    # One pass at memory speed; only if the sum of squares overflows, look at each value.
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(values, values))) or bool(np.isfinite(values).all())


_EXPLANATIONS: Final = {
    ErrorCode.NOT_FINITE: "the payload holds NaN or infinity; allow_nonfinite=True lets them pass",
    ErrorCode.SIZE_MISMATCH: "the payload does not have four bytes per key",
    ErrorCode.OPTIMIZER_FAILED: "the optimizer raised an error on this server",
    ErrorCode.ALREADY_SEALED: "this worker has sealed that clock already",
    ErrorCode.NOT_A_MEMBER: "this worker takes no part in the rounds of the table (finished?)",
}
