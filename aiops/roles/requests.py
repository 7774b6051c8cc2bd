"""The worker's side of requests as a state machine: what is outstanding at each server.

An `Operation` is one call of the user (a push of a whole table), made of `Part`s, one frame
each. A `Channel` holds the parts for one server: those that wait for the window, those in
flight, and what is to be sent again over a new connection, byte for byte the same. The
`Customer` in `aiops.runtime` moves it; nothing here waits, sends or reads a clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeVar

import numpy as np

from aiops.errors import AiopsError, rejection
from aiops_protocol.codec import encode
from aiops_protocol.delivery import Outbox
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import AckLevel, Kind, Parked, Reject, Reply, Request, Value
from aiops_protocol.limits import PULL_WINDOW_BYTES, WINDOW_BYTES
from aiops_protocol.payload import Buffer

__all__ = ["PULLS_BYTES_MAX", "Channel", "Operation", "Part"]

NO_BYTES: Final = b""

WAIT_TIMEOUT_S: Final = 600.0
"""How long a call may wait for live workers by rule of consistency: ten minutes of computing
between two pushes are normal, an hour is a hang."""

PULLS_BYTES_MAX: Final = 2 * PULL_WINDOW_BYTES
"""Pulls in flight with the first part of each call counted, which passes a full window."""

_READING: Final = frozenset({Kind.PULL, Kind.PUSH_PULL})
"""Requests that a VALUE answers; an ACK answers the others."""

T = TypeVar("T")


class Operation:
    """One call of the user, and what has become of it.

    Attributes
    ----------
    verb, subject
        For messages: `push`, and the table with its rows.
    started_at, deadline
        Instants of the loop's clock. The deadline is of the whole call when `explicit`, else
        it is put off while answers arrive or a server says that the call waits by rule.
    called_at
        The shell's own, finer clock at the call, for the latency.
    waiting_for
        Worker ranks that the last PARKED named.
    versions
        By shard, of the last answer.
    torn
        Shards whose answers to a pull differ in version: a round closed between them.
    """

    __slots__ = (
        "called_at",
        "deadline",
        "done",
        "error",
        "explicit",
        "parts",
        "parts_left",
        "quiet_s",
        "started_at",
        "subject",
        "token",
        "torn",
        "verb",
        "versions",
        "waiting_for",
        "warned_at",
    )

    def __init__(
        self, verb: str, subject: str, now: float, quiet_s: float, limit_s: float | None
    ) -> None:
        self.verb = verb
        self.subject = subject
        self.started_at = now
        self.called_at = 0.0
        self.quiet_s = quiet_s
        self.explicit = limit_s is not None
        self.deadline = now + (quiet_s if limit_s is None else limit_s)
        self.parts: list[Part] = []
        self.parts_left = 0
        self.versions: dict[int, int] = {}
        self.torn: dict[int, None] = {}
        self.waiting_for: list[int] = []
        self.warned_at = now
        self.error: AiopsError | None = None
        self.done = False
        self.token: Any = None

    def add(self, part: Part) -> None:
        """Make `part` belong to this call."""
        self.parts.append(part)
        self.parts_left += 1

    def progress(self, now: float) -> None:
        """Put a deadline that is not the user's own off, because something has moved."""
        if not self.explicit:
            self.deadline = now + self.quiet_s

    def parked(self, now: float, ranks: list[int]) -> None:
        """Note that a server lets the call wait by rule, for these worker ranks."""
        self.waiting_for = ranks
        if not self.explicit:
            self.deadline = min(now + self.quiet_s, self.started_at + WAIT_TIMEOUT_S)


class Part:
    """One frame of an operation: what it asks, and where its answer goes."""

    __slots__ = (
        "begin",
        "clock",
        "end",
        "flags",
        "header",
        "into",
        "kind",
        "operation",
        "outbox",
        "payload",
        "ranges",
        "request_id",
        "resent",
        "sent_at",
        "seq",
        "server",
        "settled",
        "shard",
        "size",
        "table",
    )

    def __init__(
        self,
        operation: Operation,
        kind: type[Request],
        table: int,
        shard: int,
        *,
        clock: int = 0,
        begin: int = 0,
        end: int = 0,
        ranges: Buffer = NO_BYTES,
        flags: int = 0,
        payload: Buffer = NO_BYTES,
        into: memoryview | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.operation = operation
        self.kind = kind
        self.table = table
        self.shard = shard
        self.clock = clock
        self.begin = begin
        self.end = end
        self.ranges = ranges
        self.flags = flags
        self.payload = payload
        self.into = into
        self.outbox = outbox
        self.size = len(payload) or len(into or b"")
        self.request_id = 0
        self.seq = 0
        self.sent_at = 0.0
        self.server = -1
        self.resent = False
        self.settled = False
        self.header: bytes = NO_BYTES
        operation.add(self)

    def own(self) -> None:
        """Copy the payload: the lender wants its memory back and the part is not settled."""
        if not isinstance(self.payload, bytes):
            self.payload = bytes(self.payload)


class Channel:
    """Everything one customer has outstanding at one server.

    What waits is queued by table (mutations, whose order matters) or by call (pulls). Each queue
    may have one part in flight however full the window is, so that what waits by rule of
    consistency holds up only its own kind.

    Parameters
    ----------
    session
        The small index by which frames name the customer.
    """

    __slots__ = (
        "_flight",
        "_mutation_bytes",
        "_mutations",
        "_next_id",
        "_pull_bytes",
        "_pulling",
        "_pulls",
        "_resend",
        "epoch",
        "session",
        "window_bytes",
    )

    def __init__(self, session: int) -> None:
        self.session = session
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

    @property
    def waiting(self) -> bool:
        """Whether anything is queued, for the window or to be sent again."""
        return bool(self._mutations or self._pulls or self._resend)

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

    def next_part(self, now: float) -> Part | None:
        """Return the part to send now, which counts as sent; `None` if all that is left waits."""
        while self._resend:
            part = self._resend.popleft()
            if part.request_id in self._flight:
                part.resent = True
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
            full = self._mutation_bytes + part.size > self.window_bytes
            if outbox.open and (not full or outbox.idle):
                queue.popleft()
                if not queue:
                    del self._mutations[outbox]
                self._mutation_bytes += part.size
                return part
        return None

    def _next_pull(self) -> Part | None:
        for operation, queue in self._pulls.items():
            part = queue[0]
            in_flight = self._pulling.get(operation, 0)
            limit = PULL_WINDOW_BYTES if in_flight else PULLS_BYTES_MAX
            if self._pull_bytes + part.size <= limit or not self._pull_bytes:
                queue.popleft()
                if not queue:
                    del self._pulls[operation]
                self._pulling[operation] = in_flight + 1
                self._pull_bytes += part.size
                return part
        return None

    def _launch(self, part: Part, answered_below: int, now: float) -> Part:
        part.request_id = self._next_id
        self._next_id += 1
        part.sent_at = now
        request = part.kind(
            request_id=part.request_id,
            seq=part.seq,
            answered_below=answered_below,
            clock=part.clock,
            epoch=self.epoch,
            table=part.table,
            session=self.session,
            ack_level=AckLevel.APPLIED,
            begin=part.begin,
            end=part.end,
            ranges=part.ranges,
            flags=part.flags,
            payload=part.payload,
        )
        part.header, part.payload = encode(request)  # type: ignore[arg-type]  # a Frame
        self._flight[part.request_id] = part
        return part

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
        if isinstance(reply, Parked):
            operation.parked(now, np.frombuffer(reply.payload, "<u4").tolist())
            return None
        operation.progress(now)
        operation.waiting_for = []
        if isinstance(reply, Reject):
            text = bytes(reply.payload).decode("utf-8", "replace")
            operation.error = rejection(
                reply.status, f"{operation.verb} {operation.subject}: {text}"
            )
        elif isinstance(reply, Value) is (part.kind.kind in _READING):
            if part.into and reply.payload is not part.into:
                self._deliver(reply, part)
        else:
            text = f"a {type(reply).__name__} answered a {part.kind.__name__}"
            operation.error = rejection(ErrorCode.UNEXPECTED_FRAME, f"{operation.subject}: {text}")
        known = operation.versions.get(part.shard, reply.version)
        if known != reply.version and part.outbox is None:
            operation.torn[part.shard] = None
        operation.versions[part.shard] = reply.version
        self._settle(part)
        return part

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
        part.into = None
        operation = part.operation
        operation.parts_left -= 1
        operation.done = operation.parts_left == 0 or operation.error is not None

    def lost(self) -> None:
        """Note the loss of the connection: what is in flight goes again over the next one."""
        self._resend = deque(self._flight.values())

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
        pulls = [part for part in self._flight.values() if part.outbox is None]
        mutations = [part for part in self._flight.values() if part.outbox is not None]
        assert self._pull_bytes == sum(part.size for part in pulls)
        assert self._mutation_bytes == sum(part.size for part in mutations)
        assert sum(self._pulling.values()) == len(pulls)
        assert all(self._mutations.values())
        assert all(self._pulls.values())
