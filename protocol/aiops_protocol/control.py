"""Control messages: everything that is not data, as typed msgpack in a CONTROL frame.

Each class names its sender and receiver. `msgspec` validates types while decoding and runs
no code from the wire. Unknown fields are ignored, so later versions may add some.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from aiops_protocol.limits import NAME_CHARS_MAX

__all__ = [
    "AttachTable",
    "BarrierDone",
    "BarrierEnter",
    "ClusterState",
    "ControlMessage",
    "DeathQuery",
    "DeathVerdict",
    "FinishWorker",
    "Join",
    "Joined",
    "Leave",
    "LossReport",
    "Member",
    "Name",
    "NodeReport",
    "OpenShard",
    "Refused",
    "RoundHeld",
    "RoundHold",
    "RoundRelease",
    "ShardPart",
    "ShardReady",
    "Shutdown",
    "Span",
    "StatusReply",
    "StatusRequest",
    "StopAt",
    "StopProposal",
    "StopRequest",
    "StopVote",
    "TableInitialised",
    "TableOpened",
    "TableSpec",
]

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=NAME_CHARS_MAX, pattern=r"^[A-Za-z0-9._:-]+$")
]
"""Names of nodes, tables and barriers: printable, safe in a log line."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Text: TypeAlias = Annotated[str, Meta(max_length=1024)]
Settings: TypeAlias = dict[str, float | int | bool | str | None]


class _Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base: the class name travels as the tag."""


# --- registration -------------------------------------------------------------------------


class Join(_Message, frozen=True, tag=True, kw_only=True):
    """Server or worker to scheduler: take me in.

    `name` may be empty: the scheduler then makes one. `host` and `port` are where a server
    listens; an empty host means the address that the scheduler sees.
    """

    role: str
    name: Annotated[str, Meta(max_length=NAME_CHARS_MAX)] = ""
    host: Annotated[str, Meta(max_length=255)] = ""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    process_id: int = 0
    memory_bytes: Count = 0


class Member(_Message, frozen=True, tag=True, kw_only=True):
    """One node as everybody knows it; part of `ClusterState`."""

    role: str
    rank: Count
    name: str
    incarnation: Count
    host: str = ""
    port: int = 0
    state: str = "alive"
    from_clock: Count = 0


class Joined(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a joining node: you are in, as this rank and incarnation."""

    rank: Count
    name: str
    incarnation: Count
    job: str
    heartbeat_s: float
    clock: Count = 0
    trace: bool = False
    report_period_s: float = 1.0


class Refused(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a node: no, for this reason. `call` names the request (0: the join)."""

    code: int
    text: Text
    call: Count = 0


class ClusterState(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node, after each change of membership."""

    epoch: Count
    members: list[Member]
    expected_servers: Count
    expected_workers: Count
    ready: bool


class Leave(_Message, frozen=True, tag=True, kw_only=True):
    """Worker or server to scheduler, before GOODBYE: I go, cleanly or because of an error."""

    clean: bool
    reason: Text = ""


class FinishWorker(_Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: no more clocks from me; barriers need not wait for me."""

    clock: Count


class Shutdown(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node: the job is over; `failed` says whether it failed."""

    reason: Text
    failed: bool = False
    node: Text = ""


# --- tables -------------------------------------------------------------------------------


class TableSpec(_Message, frozen=True, tag=True, kw_only=True):
    """All settings of a table that every worker must agree on."""

    name: Name
    shape: list[Count]
    init_kind: str
    init: Settings
    optimizer: str
    optimizer_settings: Settings
    consistency: str
    consistency_settings: Settings
    allow_nonfinite: bool = False


class ShardPart(_Message, frozen=True, tag=True, kw_only=True):
    """One part of a table's partition: this server rank holds [begin, end)."""

    server: Count
    begin: Count
    end: Count


class AttachTable(_Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: create this table or join it. Without `spec`: only join it."""

    call: Count
    name: Name
    spec: TableSpec | None = None
    observer: bool = False


class OpenShard(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a server: hold this part of a new table.

    `workers` are the ranks that take part in its rounds from version 0 on.
    """

    table: Count
    spec: TableSpec
    begin: Count
    end: Count
    workers: list[Count]


class ShardReady(_Message, frozen=True, tag=True, kw_only=True):
    """Server to scheduler: the part is allocated, or why not (`code` not 0)."""

    table: Count
    code: int = 0
    text: Text = ""


class TableOpened(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: here is the table.

    With `initialise` the worker sends the initial values to the servers and then
    `TableInitialised`; the others are answered after that. `from_version` is the first
    round this worker takes part in.
    """

    call: Count
    table: Count
    spec: TableSpec
    parts: list[ShardPart]
    from_version: Count
    initialise: bool = False


class TableInitialised(_Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: the initial values are in."""

    table: Count


# --- rounds: who takes part from when, agreed by all shards ---------------------------------


class RoundHold(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: a worker wants to enter this table; close at most one more round."""

    table: Count
    worker: Count


class RoundHeld(_Message, frozen=True, tag=True, kw_only=True):
    """Server to scheduler: my part is at this version and closes at most one more round."""

    table: Count
    worker: Count
    version: Count


class RoundRelease(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: the worker takes part from this round on."""

    table: Count
    worker: Count
    from_version: Count


class DeathQuery(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: this worker is gone; tell up to which rounds it sealed your parts."""

    worker: Count
    incarnation: Count


class LossReport(_Message, frozen=True, tag=True, kw_only=True):
    """Server to scheduler, in answer: rounds sealed per table."""

    worker: Count
    sealed: dict[int, int]


class DeathVerdict(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: per table, rounds below this count with the lost worker."""

    worker: Count
    sealed: dict[int, int]


# --- barriers and the common stop -----------------------------------------------------------


class BarrierEnter(_Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I am at this barrier; answer within `timeout_s`."""

    name: Name
    generation: Count
    timeout_s: float


class BarrierDone(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: all are here, or `missing` are not (one text each)."""

    name: Name
    generation: Count
    missing: list[str] = []


class StopRequest(_Message, frozen=True, tag=True, kw_only=True):
    """Worker or observer to scheduler: let all stop at one step boundary."""

    reason: Text


class StopProposal(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to workers: at which clock could you stop? Do not pass it until told."""

    reason: Text


class StopVote(_Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I can stop at the end of this many clocks."""

    clock: Count


class StopAt(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node: all stop when they have completed this many clocks."""

    clock: Count
    reason: Text


# --- observation ----------------------------------------------------------------------------

Span: TypeAlias = tuple[str, int, int, int]
"""Name, start and duration in ns of the host's monotonic clock, step."""


class NodeReport(_Message, frozen=True, tag=True, kw_only=True):
    """Node to scheduler, about once a second and at its end: what it counted.

    `clock_offset_ns` is wall clock minus monotonic clock, to lay spans of several hosts on
    one axis.
    """

    clock: Count = 0
    counters: dict[str, int] = {}
    latency: dict[str, dict[int, int]] = {}
    metrics: dict[str, float] = {}
    rounds: dict[str, tuple[int, list[int]]] = {}
    spans: list[Span] = []
    spans_dropped: Count = 0
    clock_offset_ns: int = 0


class StatusRequest(_Message, frozen=True, tag=True, kw_only=True):
    """Observer to scheduler: tell how the job is doing."""


class StatusReply(_Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to observer: the status as one JSON document."""

    status: msgspec.Raw


ControlMessage: TypeAlias = (
    Join
    | Joined
    | Refused
    | ClusterState
    | Leave
    | FinishWorker
    | Shutdown
    | AttachTable
    | OpenShard
    | ShardReady
    | TableOpened
    | TableInitialised
    | RoundHold
    | RoundHeld
    | RoundRelease
    | DeathQuery
    | LossReport
    | DeathVerdict
    | BarrierEnter
    | BarrierDone
    | StopRequest
    | StopProposal
    | StopVote
    | StopAt
    | NodeReport
    | StatusRequest
    | StatusReply
)
