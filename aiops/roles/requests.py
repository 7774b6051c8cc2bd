"""The worker's side of requests as a state machine: what is outstanding at each server.

An `Operation` is one call of the user (a push of a whole table), made of `Part`s, one frame
each (`operations.py`). A `Channel` holds the parts for one server: those that wait for the
window, those in flight, and what is to be sent again over a new connection, byte for byte the
same, after the server was asked which of it has arrived. The `Customer` in `aiops.runtime` moves
it; nothing here waits, sends or reads a clock.
"""

from __future__ import annotations

from collections import deque
from itertools import zip_longest
from typing import Final, TypeVar

import numpy as np

from aiops.errors import rejection
from aiops.roles.key_lists import Named, SentLists
from aiops.roles.operations import NO_BYTES, Operation, Part
from aiops.roles.questions import READING, Questions
from aiops.roles.round_trips import RoundTrips
from aiops_protocol.codec import encode
from aiops_protocol.delivery import Outbox
from aiops_protocol.errors import ErrorCode, MalformedFrame
from aiops_protocol.frames import (
    Flag,
    Known,
    Parked,
    Reject,
    Reply,
    Value,
)
from aiops_protocol.limits import PULL_WINDOW_BYTES, WINDOW_BYTES
from aiops_protocol.payload import Buffer

__all__ = ["ANSWERS_BYTES_MAX", "Channel", "Operation", "Part"]

PUT_OFF_S: Final = 1.0
"""How often the deadlines of what is queued are put off while the queue moves; well below them."""

FIRST_PARTS: Final = 2
"""So many windows may be in flight when the first part of each table, or of each pull, is counted:
those pass a full window."""

ANSWERS_BYTES_MAX: Final = FIRST_PARTS * (PULL_WINDOW_BYTES + WINDOW_BYTES)
"""Values that a worker may have asked for and not received: by pulls, and by push_pulls."""

ASK_FROM_BYTES: Final = 1024
"""From this payload on, in all mutations of a table together, a server is asked what it has before
they are repeated: an entry of the question takes 16 bytes, and the answer one round trip."""

_BASE_VERSION: Final = int(Flag.BASE_VERSION)
_NO_LIST: Final = Named(NO_BYTES, NO_BYTES, 0)

T = TypeVar("T")


class Channel:
    """Everything one customer has outstanding at one server.

    What waits is queued by table (mutations, whose order matters) or by call (pulls). The first
    part of each queue may pass a full window, so that what waits by rule of consistency holds up
    only its own kind.

    Parameters
    ----------
    session
        The small index by which frames name the customer.
    ask_from_bytes
        See `ASK_FROM_BYTES`.

    Attributes
    ----------
    trips
        How long answers take.
    questions
        What the server was asked about requests, and has not answered.
    """

    __slots__ = (
        "_flight",
        "_last_id",
        "_lists",
        "_mutation_bytes",
        "_mutations",
        "_next_id",
        "_pull_bytes",
        "_pulling",
        "_pulls",
        "_put_off_at",
        "_resend",
        "ask_from_bytes",
        "epoch",
        "questions",
        "session",
        "trips",
        "window_bytes",
    )

    def __init__(self, session: int, ask_from_bytes: int = ASK_FROM_BYTES) -> None:
        self.session = session
        self.ask_from_bytes = ask_from_bytes
        self.epoch = 0
        self.window_bytes = WINDOW_BYTES
        self._next_id = 1
        self._mutations: dict[Outbox, deque[Part]] = {}
        self._pulls: dict[Operation, deque[Part]] = {}
        self._pulling: dict[Operation, int] = {}  # parts in flight
        self._flight: dict[int, Part] = {}  # by request id, in order of first sending
        self._resend: deque[Part] = deque()
        self._mutation_bytes = 0
        self._pull_bytes = 0
        self._put_off_at = 0.0
        self._lists = SentLists()
        self._last_id = 0  # of the request that was answered last
        self.trips = RoundTrips()
        self.questions = Questions(session)

    @property
    def waiting(self) -> bool:
        """Whether anything is queued, for the window or to be sent again."""
        return bool(self._mutations or self._pulls or self._resend)

    @property
    def sent(self) -> int:
        """Requests that were ever sent."""
        return self._next_id - 1

    @property
    def settled(self) -> int:
        """Requests that were sent and are answered or given up."""
        return self._next_id - 1 - len(self._flight)

    def submit(self, part: Part) -> None:
        """Queue a part; `next_part` returns it when the window has room."""
        if part.outbox is not None:
            queue = self._mutations.get(part.outbox)
            if queue is None:
                queue = self._mutations[part.outbox] = deque()
        else:
            queue = self._pulls.get(part.operation)
            if queue is None:
                queue = self._pulls[part.operation] = deque()
        queue.append(part)

    def pass_at_once(self, part: Part, now: float) -> bool:
        """Let a part go without queueing if `next_part` would return it; it counts as sent then.

        The usual case, and half the work of `submit` and `next_part`.
        """
        if self._resend:
            return False
        outbox = part.outbox
        if outbox is None:
            operation = part.operation
            if operation in self._pulls or not self._may_pull(part):
                return False
            self._pulling[operation] = self._pulling.get(operation, 0) + 1
            self._pull_bytes += part.size
            self._launch(part, 0, now)
            return True
        if outbox in self._mutations or not self._may_mutate(part, outbox):
            return False
        self._mutation_bytes += part.size
        part.seq = outbox.take()
        self._launch(part, outbox.answered_below, now)
        return True

    def _may_mutate(self, part: Part, outbox: Outbox) -> bool:
        limit = self.window_bytes * (FIRST_PARTS if outbox.idle else 1)
        fits = not part.size or self._mutation_bytes + part.size <= limit
        return outbox.open and (fits or not self._mutation_bytes)

    def _may_pull(self, part: Part) -> bool:
        limit = PULL_WINDOW_BYTES * (1 if part.operation in self._pulling else FIRST_PARTS)
        return self._pull_bytes + part.size <= limit or not self._pull_bytes

    def next_part(self, now: float) -> Part | None:
        """Return the part to send now, which counts as sent; `None` if all that is left waits."""
        if self.questions.block:
            return None
        while self._resend:
            part = self._resend.popleft()
            if part.request_id in self._flight and not part.waits:
                part.resent, part.left = part.left, True
                part.sent_at = now
                return part
        if self._mutations and (found := self._next_mutation()) is not None:
            assert found.outbox is not None
            found.seq = found.outbox.take()
            return self._launch(found, found.outbox.answered_below, now)
        if self._pulls and (found := self._next_pull()) is not None:
            return self._launch(found, 0, now)
        return None

    def _next_mutation(self) -> Part | None:
        for outbox, queue in self._mutations.items():
            part = queue[0]
            if self._may_mutate(part, outbox):
                queue.popleft()
                if not queue:
                    del self._mutations[outbox]
                self._mutation_bytes += part.size
                return part
        return None

    def _next_pull(self) -> Part | None:
        for operation, queue in self._pulls.items():
            part = queue[0]
            if self._may_pull(part):
                queue.popleft()
                if not queue:
                    del self._pulls[operation]
                self._pulling[operation] = self._pulling.get(operation, 0) + 1
                self._pull_bytes += part.size
                return part
        return None

    def _launch(
        self, part: Part, answered_below: int, now: float, *, whole_list: bool = False
    ) -> Part:
        part.request_id = self._next_id
        self._next_id += 1
        part.sent_at = now
        begin, end, flags = part.begin, part.end, part.flags
        if part.base >= 0:
            flags |= _BASE_VERSION
        named = _NO_LIST
        if part.keys:
            named = self._lists.name(part.keys, whole=whole_list)
            begin, end, flags = 0, 0, flags | named.flags
        request = part.kind(
            request_id=part.request_id,
            seq=part.seq,
            answered_below=answered_below,
            clock=part.clock,
            epoch=self.epoch,
            table=part.table,
            session=self.session,
            ack_level=part.operation.level,
            begin=begin,
            end=end,
            ranges=part.ranges,
            keys=named.keys,
            signature=named.signature,
            flags=flags,
            base_version=part.base if part.base > 0 else 0,
            codec=part.codec,
            codec_parameters=part.codec_parameters,
            payload=part.payload,
        )
        part.header, part.payload = encode(request)  # type: ignore[arg-type]  # all kinds of Request are
        self._flight[part.request_id] = part
        return part

    def flying(self, request_id: int) -> Part | None:
        """Return the part in flight with this number."""
        return self._flight.get(request_id)

    def destination(self, reply: Reply, size: int) -> memoryview | None:
        """Return where the payload of an announced answer belongs."""
        part = self._flight.get(reply.request_id)
        if part is None or part.into is None or len(part.into) != size:
            return None
        return part.into

    def answer(self, reply: Reply, now: float) -> Part | None:
        """Take an answer; return its part when the part is settled. Strays are ignored."""
        part = self._flight.get(reply.request_id)
        if part is None:
            return None
        operation = part.operation
        if now >= self.trips.due_at:
            self._sample(part, reply, now)
        if now >= self._put_off_at and (self._mutations or self._pulls):
            self._put_off(now)
        if isinstance(reply, Parked):
            part.waits = True
            operation.parked(now, _behind(reply))
            return None
        if operation.limit_s is None:
            operation.deadline = now + operation.quiet_s
        if operation.waiting_for:
            operation.waiting_for = {}
        if reply.status == ErrorCode.KEYS_NOT_CACHED and part.keys:
            self._send_list(part, now)
            return None
        if isinstance(reply, Reject):
            text = bytes(reply.payload).decode("utf-8", "replace")
            operation.error = rejection(
                reply.status, f"{operation.verb} {operation.subject}: {text}"
            )
        elif isinstance(reply, Value) is (part.kind.kind in READING or part.reads):
            if part.taker is not None:
                self._give(reply, part)
            elif part.into and reply.payload is not part.into:
                self._deliver(reply, part)
        else:
            text = f"a {type(reply).__name__} answered a {part.kind.__name__}"
            operation.error = rejection(ErrorCode.UNEXPECTED_FRAME, f"{operation.subject}: {text}")
        known = operation.versions.get(part.shard, reply.version)
        if known != reply.version and part.outbox is None:
            operation.torn[part.shard] = None
        operation.versions[part.shard] = reply.version
        if part.base >= 0 and operation.staleness is not None and not part.resent:
            operation.staleness.note(reply.version - 1 - part.base)
        self._last_id = part.request_id
        self._settle(part)
        return part

    def _send_list(self, part: Part, now: float) -> None:
        """Send a request again with its key list, which the server has forgotten, or never had.

        It keeps its number: to the server it has not come yet.
        """
        del self._flight[part.request_id]
        below = 0 if part.outbox is None else part.outbox.answered_below
        self._launch(part, below, now, whole_list=True)
        part.waits = part.left = False
        part.sent_to = 0
        self._resend.append(part)

    def _sample(self, part: Part, reply: Reply, now: float) -> None:
        """Take the time of an answer that neither a rule nor a lost connection has kept."""
        by_rule = (
            part.waits
            or isinstance(reply, Parked)
            or (part.outbox is None and (part.clock or part.base >= 0))
        )
        if not by_rule and part.sent_to and not part.resent:
            self.trips.took(now - part.sent_at, part.size, now)

    def _put_off(self, now: float) -> None:
        """Let what is queued live on: what is before it moves, or is known to wait by rule."""
        self._put_off_at = now + PUT_OFF_S
        for queue in (*self._mutations.values(), *self._pulls.values()):
            for part in queue:
                operation = part.operation
                if operation.limit_s is None:
                    operation.deadline = max(operation.deadline, now + operation.quiet_s)

    @staticmethod
    def _give(reply: Reply, part: Part) -> None:
        """Let a copy of a replica take its steps."""
        assert part.taker is not None
        try:
            with np.errstate(all="ignore"):
                part.received = part.taker(reply)
        except MalformedFrame as error:
            text = f"{part.operation.subject}: {error}"
            part.operation.error = rejection(ErrorCode.MALFORMED_PAYLOAD, text)

    @staticmethod
    def _deliver(reply: Reply, part: Part) -> None:
        """Copy values that were not received right where they belong."""
        assert part.into is not None
        if len(reply.payload) == len(part.into):
            part.into[:] = reply.payload
            return
        text = f"{len(reply.payload)} bytes of values came for {len(part.into)}"
        part.operation.error = rejection(
            ErrorCode.SIZE_MISMATCH, f"{part.operation.subject}: {text}"
        )

    def _settle(self, part: Part) -> None:
        del self._flight[part.request_id]
        part.settled = True
        if part.outbox is None:
            self._pull_bytes -= part.size
            left = self._pulling[part.operation] - 1
            if left:
                self._pulling[part.operation] = left
            else:
                del self._pulling[part.operation]
        else:
            self._mutation_bytes -= part.size
            part.outbox.answered(part.seq)
        part.payload = NO_BYTES
        part.into = part.taker = None
        operation = part.operation
        operation.parts_left -= 1
        operation.done = operation.parts_left == 0 or operation.error is not None

    def lost(self, handed_on: int | None = None) -> None:
        """Note the loss of the connection: what is in flight goes again over the next one.

        Parameters
        ----------
        handed_on
            How many of the bytes that were sent over the connection have left this process; all if
            not given. What never left is not sent again, but for the first time.
        """
        self._resend = deque(self._flight.values())
        self.questions.drop()
        for part in self._resend:
            part.waits = False
            if part.sent_to and handed_on is not None and not part.resent:
                part.left = part.sent_to - len(part.header) - len(part.payload) < handed_on
            part.sent_to = 0

    def ask(self) -> list[tuple[bytes, Buffer]]:
        """Return the questions with which a new connection begins, as bytes; maybe none.

        Nothing else is sent until they are answered: the order of what follows would not hold.
        """
        doubtful: dict[Outbox, list[Part]] = {}
        for part in self._resend:
            if part.outbox is not None and part.left and not part.settled:
                doubtful.setdefault(part.outbox, []).append(part)
        groups = [
            parts
            for parts in doubtful.values()
            if sum(len(part.payload) for part in parts) >= self.ask_from_bytes
        ]
        return self.questions.about(groups, self.epoch, blocking=True)

    def ask_about_owed(self) -> list[tuple[bytes, Buffer]]:
        """Return questions about what should have been answered, by table; the oldest first."""
        tables: dict[int, list[Part]] = {}
        for part in self._flight.values():
            if part.sent_to and not part.waits:
                tables.setdefault(part.table, []).append(part)
        return self.questions.about(tables.values(), self.epoch, blocking=False)

    @property
    def owed(self) -> bool:
        """Whether anything is unanswered that the server has not said to wait by rule."""
        return not all(part.waits for part in self._flight.values())

    @property
    def bytes_in_flight(self) -> int:
        """Values of unanswered requests, and of the answers that are due to them."""
        return self._mutation_bytes + self._pull_bytes

    def passed_over(self, now: float, patience_s: float) -> bool:
        """Whether the oldest mutation that is owed is that old, and later requests are answered."""
        for part in self._flight.values():
            if part.sent_to and part.outbox is not None and not part.waits:
                return self._last_id > part.request_id and now - part.sent_at > patience_s
        return False

    def known(self, reply: Known) -> list[Reply]:
        """Take what a server knows; return the answers that were lost, for `answer`."""
        return self.questions.known(reply, self.epoch)

    def withdraw(self, part: Part) -> None:
        """Drop a part that nobody waits for: a pull, or a mutation that was given up.

        A mutation that was sent may or may not take effect; its number counts as answered.
        """
        if part.settled:
            return
        if part.request_id in self._flight:
            self._settle(part)
            return
        if part.outbox is not None:
            self._drop(self._mutations, part.outbox, part)
        else:
            self._drop(self._pulls, part.operation, part)

    @staticmethod
    def _drop(queues: dict[T, deque[Part]], key: T, part: Part) -> None:
        queue = queues.get(key)
        if queue is not None and part in queue:
            queue.remove(part)
            part.operation.parts_left -= 1
            if not queue:
                del queues[key]

    def validate(self) -> None:
        """Check what must always hold."""
        self.questions.validate()
        pulls = [part for part in self._flight.values() if part.outbox is None]
        mutations = [part for part in self._flight.values() if part.outbox is not None]
        assert self._pull_bytes == sum(part.size for part in pulls)
        assert self._mutation_bytes == sum(part.size for part in mutations)
        assert sum(self._pulling.values()) == len(pulls)
        assert all(self._mutations.values())
        assert all(self._pulls.values())


def _behind(notice: Parked) -> dict[int, int]:
    """Return the ranks that a PARKED names, and how many clocks each is behind (0: not told)."""
    words = np.frombuffer(notice.payload, "<u4").tolist()
    ranks, clocks = words[: notice.count], words[notice.count :]
    return dict(zip_longest(ranks, clocks[: len(ranks)], fillvalue=0))
