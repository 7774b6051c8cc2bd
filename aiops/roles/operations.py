"""One call of a worker's user, and the frames that it is made of.

What becomes of them at each server is `requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from aiops.errors import AiopsError
from aiops.observability.staleness import StalenessHistogram
from aiops_protocol.delivery import Outbox
from aiops_protocol.frames import AckLevel, Call, Reply, Request
from aiops_protocol.payload import Buffer

__all__ = ["NO_BYTES", "WAIT_TIMEOUT_S", "Operation", "Part"]

NO_BYTES: Final = b""

WAIT_TIMEOUT_S: Final = 600.0
"""How long a call may wait for live workers by rule of consistency: ten minutes of computing
between two pushes are normal, an hour is a hang."""


class Operation(msgspec.Struct, eq=False):
    """One call of the user, and what has become of it.

    Attributes
    ----------
    verb, subject
        For messages: `push`, and the table with its rows.
    started_at, deadline
        Instants of the loop's clock. The deadline is of the whole call when there is a `limit_s`,
        else it is put off while answers arrive or a server says that the call waits by rule.
    called_at
        The shell's own, finer clock at the call, for the latency.
    waiting_for
        Worker ranks that the last PARKED named, and how many clocks each is behind.
    versions
        By shard, of the last answer.
    kept
        It has changed what is kept for later, so that it must happen.
    encode_s
        What encoding has taken, of a push that the cost gate wants to hear of; else 0.
    staleness
        Takes how stale its pushes were when they were applied.
    level
        What the caller waits for.
    received
        Who follows what goes on, with its future, when the caller has what it waits for.
    torn
        Shards whose answers to a pull differ in version: a round closed between them.
    """

    verb: str
    subject: str
    started_at: float
    quiet_s: float
    limit_s: float | None
    deadline: float = 0.0
    called_at: float = 0.0
    warned_at: float = 0.0
    parts: list[Part] = []
    parts_left: int = 0
    versions: dict[int, int] = {}
    torn: dict[int, None] = {}
    waiting_for: dict[int, int] = {}
    level: int = AckLevel.APPLIED
    received: Callable[[Any], None] | None = None
    error: AiopsError | None = None
    done: bool = False
    staleness: StalenessHistogram | None = None
    kept: bool = False
    encode_s: float = 0.0
    token: Any = None

    def __post_init__(self) -> None:
        """Set the first deadline."""
        limit_s = self.limit_s
        self.deadline = self.started_at + (self.quiet_s if limit_s is None else limit_s)
        self.warned_at = self.started_at

    @property
    def explicit(self) -> bool:
        """Whether the deadline is the user's."""
        return self.limit_s is not None

    def parked(self, now: float, behind: dict[int, int]) -> None:
        """Note that a server lets the call wait by rule, for these worker ranks."""
        self.waiting_for = behind
        if self.limit_s is None:
            self.deadline = min(now + self.quiet_s, self.started_at + WAIT_TIMEOUT_S)


class Part(msgspec.Struct, eq=False):
    """One frame of an operation: what it asks, and where its answer goes.

    With `keys`, a sorted list, `begin` and `end` only say in messages where about they lie.

    Attributes
    ----------
    base
        Of a mutation the version that it was computed on, of a pull the one that is known
        already; -1 for none.
    sent_to
        Bytes that had been sent over the connection when this part's last one was; 0 while it was
        not sent over the present one.
    left, resent
        Whether any of it may have left this process, and whether that was for a second time.
    waits
        Whether the server has said that it waits by rule.
    """

    operation: Operation
    kind: type[Request]
    table: int
    shard: int
    clock: int = 0
    begin: int = 0
    end: int = 0
    ranges: Buffer = NO_BYTES
    flags: int = 0
    payload: Buffer = NO_BYTES
    into: memoryview | None = None
    outbox: Outbox | None = None
    keys: Buffer = NO_BYTES
    codec: int = 0
    codec_parameters: int = 0
    taker: Callable[[Reply], Buffer] | None = None
    received: Buffer = NO_BYTES
    size: int = 0
    request_id: int = 0
    seq: int = 0
    sent_at: float = 0.0
    server: int = -1
    sent_to: int = 0
    left: bool = True
    resent: bool = False
    waits: bool = False
    settled: bool = False
    header: bytes = NO_BYTES
    base: int = -1

    def __post_init__(self) -> None:
        """Become a part of the operation."""
        self.size = (len(self.payload) or len(self.into or NO_BYTES)) + len(self.keys)
        operation = self.operation
        operation.parts.append(self)
        operation.parts_left += 1

    @property
    def reads(self) -> bool:
        """Whether it is a function that only reads: a VALUE answers."""
        return self.kind is Call and self.outbox is None

    def own(self) -> None:
        """Copy the payload: the lender wants its memory back and the part is not settled."""
        if not isinstance(self.payload, bytes):
            self.payload = bytes(self.payload)
