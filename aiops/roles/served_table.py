"""One server's part of one table: exactly-once, what must wait, and the answers.

What lives here: the data path of push, pull, assign and seal once it is clear that the request
belongs to this table and the worker may speak. What a mutation does to values is
`consistency.py` and `aiops.shards`; who may speak is `server.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Final

import numpy as np

from aiops.compression import Codec, codec_from
from aiops.optim.guard import OptimizerMistake
from aiops.roles.actions import Action, Note, RoundClosed, Send, Tell
from aiops.roles.answers import acknowledge, deltas, notice, refuse, value
from aiops.roles.caller import Caller
from aiops.roles.calls import Refusal, run_change, run_read
from aiops.roles.consistency import PARK, Outcome, Rule
from aiops.roles.parking import NOTICE_S, Parking, Session, Waiting, owned
from aiops.roles.payloads import decoded
from aiops.roles.public_replica import PublicReplica
from aiops.roles.quorum import Share
from aiops.roles.rounds import Mark
from aiops.roles.shards import Where
from aiops.roles.table_watch import TableWatch
from aiops.shards.sparse import NoRoom
from aiops_protocol.codecs import join_deltas
from aiops_protocol.control import RoundDecided, TableSpec
from aiops_protocol.delivery import Inbox, Verdict
from aiops_protocol.errors import ErrorCode, MalformedFrame
from aiops_protocol.frames import AckLevel, Assign, Call, Flag, PushPull, Request, Seal
from aiops_protocol.limits import PAYLOAD_BYTES_MAX
from aiops_protocol.payload import Float32Array, all_finite, as_float32, weight_of

__all__ = ["ServedTable"]

_INITIAL: Final = int(Flag.INITIAL)
_CONTRIBUTED: Final = int(Flag.CONTRIBUTED)
_FINAL: Final = int(Flag.FINAL)
_BASE_VERSION: Final = int(Flag.BASE_VERSION)
_WEIGHT: Final = int(Flag.WEIGHT)
_HIGHEST_LEVEL: Final = int(AckLevel.APPLIED)

OK: Final = ErrorCode.OK
APPLY: Final = Verdict.APPLY  # to look a member up takes 50 ns


class ServedTable:
    """One server's part of one table.

    Parameters
    ----------
    table_id, spec
        As the scheduler named them.
    rule
        The consistency rule over the shard.
    callers
        Who is at which connection; the server's own, only read here.
    initialised
        Whether the values are there already; otherwise a worker brings them.
    alone
        Whether there is no other part of the table.

    Attributes
    ----------
    broken
        Why no round closes any more: the optimizer has failed in one. The table then refuses
        everything but seals, with this text; the server and its other tables go on.
    """

    __slots__ = (
        "_callers",
        "_in_use",
        "_initialiser",
        "_nonfinite",
        "_rounding",
        "_shape",
        "_to_initialise",
        "alone",
        "begin",
        "broken",
        "end",
        "epoch",
        "inboxes",
        "name",
        "parked",
        "pulls",
        "replica",
        "rule",
        "sparse",
        "table_id",
        "watch",
    )

    def __init__(
        self,
        table_id: int,
        spec: TableSpec,
        rule: Rule,
        callers: dict[int, Caller],
        *,
        initialised: bool,
        epoch: int,
        alone: bool = True,
    ) -> None:
        self.table_id = table_id
        self.alone = alone
        self.name = spec.name
        self.sparse = spec.layout != "dense"
        self.rule = rule
        self.begin = rule.shard.begin
        self.end = rule.shard.end
        self.epoch = epoch
        self.broken = ""
        self.inboxes: dict[Session, Inbox] = {}
        self.parked = Parking()
        self.pulls: list[Waiting] = []
        self._callers = callers
        self._shape = tuple(spec.shape)
        self.watch = TableWatch(spec.name, rule)
        self._nonfinite = spec.allow_nonfinite
        self._to_initialise = 0 if initialised else self.end - self.begin
        self._initialiser: tuple[int, int] | None = None
        self._in_use = False
        self.replica: PublicReplica | None = None
        self._rounding: Codec | None = None
        if spec.pull_compression and self.sparse:
            self._rounding = codec_from(spec.pull_compression)
        elif spec.pull_compression:
            self.replica = PublicReplica(rule, spec.pull_compression)

    # --- pull ---

    def pull(self, peer: int, request: Request, now: float) -> list[Action]:
        """Answer a pull, now or when the version that it names exists."""
        if self._to_initialise:
            return [self._refuse(peer, request, ErrorCode.NOT_INITIALISED)]
        if self.broken:
            return [self._refuse(peer, request, ErrorCode.OPTIMIZER_FAILED, self.broken)]
        shard = self.rule.shard
        named = 0 if type(request) is Call else shard.elements(shard.select(request))
        if 4 * named > PAYLOAD_BYTES_MAX:
            text = f"at most {PAYLOAD_BYTES_MAX} bytes of values travel in one answer"
            return [self._refuse(peer, request, ErrorCode.SIZE_MISMATCH, text)]
        if self._readable(request):
            return [self._value(peer, request)]
        return self._wait(peer, request, now)

    def _wait(self, peer: int, request: Request, now: float) -> list[Action]:
        caller = self._callers[peer]
        if not caller.may_wait(request):
            text = f"{caller.pulls_waiting} pulls of this worker wait already"
            return [self._refuse(peer, request, ErrorCode.OUT_OF_WINDOW, text)]
        caller.waits(request)
        listed = bool(request.keys or request.payload)
        self.pulls.append(Waiting(peer, owned(request) if listed else request, now))
        return []

    def _readable(self, request: Request) -> bool:
        """Whether a pull can be answered now: by the rule, and with something new if it says so."""
        if request.flags & _BASE_VERSION and self.rule.version <= request.base_version:
            return False
        return self.rule.readable(request.clock)

    def _value(self, peer: int, request: Request, *, lasting: bool = False) -> Send:
        if type(request) is Call:
            try:
                result = run_read(self.name, self._shape, self.rule, request)
            except Refusal as refusal:
                return self._refuse(peer, request, refusal.code, refusal.text)
            return value(peer, request, self.rule.version, self.epoch, result)
        shard = self.rule.shard
        where = shard.select(request)
        if self.replica is not None:
            rank = self._callers[peer].rank
            published = self.replica.answer(peer, rank, request, where, self.epoch, lasting=lasting)
            if published is not None:
                return published
        values = shard.read(where)
        if self._rounding is not None:
            rounded = self._rounding.encode(values, {}, 0).whole()
            return deltas(peer, request, self.rule.version, self.epoch, join_deltas([rounded]))
        if lasting:
            values = values.copy()
        return value(peer, request, self.rule.version, self.epoch, values)

    # --- push, assign, seal ---

    def mutate(self, peer: int, caller: Caller, request: Request, now: float) -> list[Action]:
        """Apply a mutation once, however often it comes, and answer it."""
        session = (caller.rank, request.session)
        inbox = self.inboxes.get(session)
        if inbox is None or inbox.incarnation < caller.incarnation:
            if request.session >= caller.customers:
                text = f"session {request.session} of a worker with {caller.customers} customers"
                return [self._refuse(peer, request, ErrorCode.OUT_OF_WINDOW, text)]
            inbox = self.inboxes[session] = Inbox(caller.incarnation)
            self.parked.forget(session)
        if type(request) is Seal:
            self.rule.now = now
        verdict = inbox.judge(caller.incarnation, request.seq, request.answered_below)
        if verdict is APPLY:
            outcome: Outcome = PARK
            if not (self.parked and session in self.parked):  # what came first goes first
                outcome, text = self._apply(caller, request)
                if outcome is not PARK:
                    inbox.record(request.seq, outcome)
                    answer = self._answer(peer, request, outcome, text)
                    if type(request) is Seal:
                        return [answer, *self.advance()]
                    return [answer, *self._awaken()] if self.pulls else [answer]
            return self._park(peer, session, request, now)
        if verdict is Verdict.DUPLICATE:
            return [self._answer(peer, request, inbox.outcome(request.seq))]
        if verdict is Verdict.FENCED:
            return [self._refuse(peer, request, ErrorCode.STALE_INCARNATION)]
        text = f"mutation {request.seq} is not within the window of {inbox.window}"
        return [self._refuse(peer, request, ErrorCode.OUT_OF_WINDOW, text)]

    def _apply(self, caller: Caller, request: Request) -> tuple[Outcome, str]:
        """Let the rule take a mutation; the text is for a refusal that needs one."""
        flags = request.flags
        if request.ack_level > _HIGHEST_LEVEL:
            return ErrorCode.INVALID_SETTING, "this server promises no more than APPLIED"
        if self._to_initialise and not flags & _INITIAL:
            return ErrorCode.NOT_INITIALISED, ""
        self._in_use = self._in_use or not flags & _INITIAL
        if type(request) is Seal:
            contributed, final = bool(flags & _CONTRIBUTED), bool(flags & _FINAL)
            weight = 1.0
            if flags & _WEIGHT:
                weight = weight_of(request.payload)
                if isnan(weight):
                    return ErrorCode.INVALID_SETTING, "the weight of a contribution is not one"
            return self.rule.seal(caller.rank, request.clock, contributed, final, weight), ""
        if self.broken:
            return ErrorCode.OPTIMIZER_FAILED, self.broken
        if type(request) is Call:
            return self._transform(caller, request)
        where = self.rule.shard.select(request)
        size = self.rule.shard.elements(where)
        with np.errstate(all="ignore"):
            if request.codec:
                sparse = (
                    type(request) is not Assign and self.rule.zero_is_nothing and not self.sparse
                )
                try:
                    where, values = decoded(request, where, size, sparse=sparse)
                except MalformedFrame as error:
                    return ErrorCode.MALFORMED_PAYLOAD, str(error)
            elif len(request.payload) != 4 * size:
                return ErrorCode.SIZE_MISMATCH, ""
            else:
                values = as_float32(request.payload)
            if not self._nonfinite and not all_finite(values):
                return ErrorCode.NOT_FINITE, ""
            if flags & _INITIAL:
                return self._initialise(caller, where, values), ""
            if type(request) is PushPull and self.rule.has_rounds:
                text = "in a table with rounds, push_pull travels as push, seal and pull"
                return ErrorCode.INVALID_SETTING, text
            try:
                if type(request) is Assign:
                    return self.rule.assign(caller.rank, request.clock, where, values), ""
                outcome = self.rule.push(caller.rank, request.clock, where, values)
                if outcome is OK and flags & _BASE_VERSION and not self.rule.has_rounds:
                    self.watch.staleness.note(self.rule.version - 1 - request.base_version)
                return outcome, ""
            except NoRoom as error:
                return ErrorCode.OUT_OF_MEMORY, f"table {self.name}: {error}"
            except Exception as error:
                return ErrorCode.OPTIMIZER_FAILED, f"{self._failure(error)}; nothing was changed"

    def _transform(self, caller: Caller, request: Request) -> tuple[Outcome, str]:
        try:
            return run_change(
                self.name,
                self._shape,
                self.rule,
                caller.rank,
                request,
                finite=not self._nonfinite,
            ), ""
        except Refusal as refusal:
            return refusal.code, refusal.text

    def _failure(self, error: Exception) -> str:
        if isinstance(error, NoRoom):
            return f"table {self.name} has no room for the rows that are new: {error}"
        optimizer = self.rule.shard.optimizer.name
        what = str(error) if isinstance(error, OptimizerMistake) else repr(error)
        return f"the optimizer {optimizer} of table {self.name} failed: {what}"

    def _initialise(self, caller: Caller, where: Where, values: Float32Array) -> ErrorCode:
        """Take a piece of the initial values.

        A second initialiser starts from nothing, also where the first one's values were whole:
        it died before they were whole everywhere. In a table that is in use nothing is taken.
        """
        who = (caller.rank, caller.incarnation)
        if self._initialiser != who:
            if not self._to_initialise and (self._initialiser is None or self._in_use):
                return OK
            self._initialiser = who
            self._to_initialise = self.end - self.begin
        if self._to_initialise:
            self.rule.shard.write(where, values)
            self._to_initialise -= self.rule.shard.elements(where)
        return OK

    def _answer(self, peer: int, request: Request, code: ErrorCode, text: str = "") -> Send:
        if code is not OK:
            return self._refuse(peer, request, code, text)
        if type(request) is PushPull:
            return self._value(peer, request)
        return acknowledge(peer, request, self.rule.version, self.epoch)

    def _refuse(self, peer: int, request: Request, code: ErrorCode, text: str = "") -> Send:
        return refuse(peer, request, code, text, self.epoch)

    # --- waiting ---

    def adopt(self, waiting: Waiting, peer: int) -> None:
        """Send the answer over a connection that is newer than the one it would have gone to."""
        former = self._callers.get(waiting.peer)
        if former is None or former.order < self._callers[peer].order:
            waiting.peer = peer

    def _park(self, peer: int, session: Session, request: Request, now: float) -> list[Action]:
        again = self.parked.get(session, request.seq)
        if again is not None:
            # Sent again over a new connection, unless these are late bytes of the old one.
            self.adopt(again, peer)
            return self._receipt(peer, request)
        if self.parked.add(peer, session, request, now):
            return self._receipt(peer, request)
        text = (
            f"{self.parked.bytes_of(session[0])} bytes of this worker wait for their round already"
        )
        return [self._refuse(peer, request, ErrorCode.OUT_OF_WINDOW, text)]

    def _receipt(self, peer: int, request: Request) -> list[Action]:
        """Tell at once that a mutation is here and waits, if that is all that its sender asks."""
        if request.ack_level != AckLevel.RECEIVED:
            return []
        behind = self.rule.behind(request.clock)
        return [notice(peer, request, self.rule.version, self.epoch, behind)]

    def caller(self, peer: int) -> Caller:
        """Return who is at a connection of which something waits."""
        return self._callers[peer]

    def advance(self) -> list[Action]:
        """Close what can close, then answer pulls and apply what waited for the next round."""
        actions: list[Action] = []
        while self.rule.closable and not self.broken:
            try:
                with np.errstate(all="ignore"):
                    if self.replica is not None:
                        self.replica.before_close()
                    pushed = self.rule.close()
                    if self.replica is not None:
                        self.replica.closed()
            except Exception as error:
                return [*actions, *self._break(error)]
            shares = self.rule.decision()
            if shares is not None and not self.alone:
                told = [(share.rank, share.round, share.weight) for share in shares]
                version = self.rule.version - 1
                decided = RoundDecided(table=self.table_id, version=version, shares=told)
                actions.append(Tell(decided))
            if pushed is not None:
                actions.append(RoundClosed(self.table_id, self.rule.version, len(pushed)))
            actions += self._awaken()
            applied = self._unpark()
            actions += applied
            if applied and self.pulls:  # a subscriber may wait for just these
                actions += self._awaken()
        return actions

    def _break(self, error: Exception) -> list[Action]:
        """Close no further round: the values are those before the one that failed."""
        number = self.rule.version - 1
        self.broken = (
            f"{self._failure(error)}, in round {number}; no gradient of that round was applied, "
            "and the table can go on no more"
        )
        fields: dict[str, object] = {"table": self.name, "round": number, "error": repr(error)}
        waiting, self.pulls = self.pulls, []
        for pull in waiting:
            self._let_go(pull)
        code = ErrorCode.OPTIMIZER_FAILED
        return [
            Note("optimizer_failed", fields, "error"),
            *(self._refuse(pull.peer, pull.request, code, self.broken) for pull in waiting),
            *self._unpark(),
        ]

    def _let_go(self, waiting: Waiting) -> None:
        """Count a pull that waits no more."""
        self._callers[waiting.peer].waits_no_more(waiting.request)

    def _awaken(self) -> list[Send]:
        """Answer the pulls that can be answered now."""
        still: list[Waiting] = []
        answers: list[Send] = []
        # Values are lent until they are sent, and a further round may close before that.
        lasting = bool(self.parked) or self.rule.closable
        for waiting in self.pulls:
            if not self._readable(waiting.request):
                still.append(waiting)
                continue
            self._let_go(waiting)
            answers.append(self._value(waiting.peer, waiting.request, lasting=lasting))
        self.pulls = still
        return answers

    def _unpark(self) -> list[Send]:
        """Apply what waited, in order, as far as the rule lets it."""
        answers: list[Send] = []
        for session, queue in self.parked.sessions():
            inbox = self.inboxes[session]
            caller = Caller(session[0], inbox.incarnation)
            for waiting in queue:
                request = waiting.request
                outcome, text = self._apply(caller, request)
                if outcome is PARK:
                    break
                inbox.record(request.seq, outcome)
                self.parked.take(session, request.seq)
                if waiting.peer in self._callers:
                    answers.append(self._answer(waiting.peer, request, outcome, text))
        return answers

    def notices(self, now: float) -> Iterator[Send]:
        """Tell everyone who waits for whom, about once a second."""
        for waiting in (*self.pulls, *self.parked):
            if now - waiting.noticed_at < NOTICE_S:
                continue
            waiting.noticed_at = now
            if waiting.peer in self._callers:
                request = waiting.request
                behind = self.rule.behind(request.clock)
                yield notice(waiting.peer, request, self.rule.version, self.epoch, behind)

    def look(self, now: float) -> Iterator[Note]:
        """Look at who waits for whom."""
        waiting = (
            (self._callers[one.peer].rank, one.request.clock)
            for one in (*self.pulls, *self.parked)
            if one.peer in self._callers
        )
        return self.watch.look(waiting, now)

    # --- workers that come and go ---

    def disconnected(self, peer: int) -> None:
        """Forget the pulls of a connection; parked mutations stay, they are asked for again."""
        self.pulls = [waiting for waiting in self.pulls if waiting.peer != peer]

    def admit(self, rank: int, from_version: int) -> list[Action]:
        """Let a worker take part from this round on; its first requests may be here already."""
        self.rule.admit(rank, from_version)
        return [*self._unpark(), *self.advance()]

    def decided(self, version: int, shares: list[Share]) -> list[Action]:
        """Close a round as the lead shard has decided."""
        self.rule.decided(version, shares)
        return self.advance()

    def settle(self, rank: int, verdict: Mark) -> list[Action]:
        """Apply what all shards together know of a worker that is gone."""
        self.rule.settle(rank, verdict)
        return [*self._unpark(), *self.advance()]

    def forget(self, rank: int, incarnation: int) -> None:
        """Keep nothing of a worker's sessions up to this incarnation; it cannot speak any more."""
        for session, inbox in list(self.inboxes.items()):
            if session[0] == rank and inbox.incarnation <= incarnation:
                self.parked.forget(session)
                del self.inboxes[session]

    def validate(self) -> None:
        """Check what must always hold."""
        self.rule.validate()
        if self.replica is not None:
            self.replica.validate()
        self.parked.validate()
        for inbox in self.inboxes.values():
            inbox.validate()
        assert {session for session, _ in self.parked.sessions()} <= set(self.inboxes)
        assert all(waiting.peer in self._callers for waiting in self.pulls)
