"""Control messages: everything that is not data, as typed msgpack in a CONTROL frame.

Each class names its senders, and its docstring the receiver. `msgspec` validates types and
bounds while decoding and runs no code from the wire. Unknown fields are ignored, so later
versions may add some.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from aiops_protocol.dialogue_control import DialogueOpen, Heard, OpenDialogue
from aiops_protocol.limits import (
    MEMBERS_MAX,
    WORKERS_MAX,
)
from aiops_protocol.message import (
    MEMBER,
    OBSERVER,
    SCHEDULER,
    WORKER,
    Choices,
    Count,
    Counters,
    Document,
    Host,
    Latency,
    Message,
    Metrics,
    Name,
    NewName,
    Port,
    Rounds,
    Seconds,
    Span,
    Spans,
    Text,
    Word,
)
from aiops_protocol.ring_control import (
    RingEnter,
    RingFormed,
    RingHalt,
    RingHalted,
    RingMissing,
    RingVerdict,
    RingWanted,
)
from aiops_protocol.round_control import (
    DeathQuery,
    DeathVerdict,
    LossReport,
    RoundDecided,
    RoundHeld,
    RoundHold,
    RoundRelease,
    TableReport,
)
from aiops_protocol.table_control import (
    AttachTable,
    DropShard,
    OpenShard,
    ShardPart,
    ShardReady,
    TableEntered,
    TableInitialised,
    TableOpened,
    TableSpec,
)

__all__ = [
    "AttachTable",
    "BarrierDone",
    "BarrierEnter",
    "ClusterChange",
    "ClusterState",
    "ControlMessage",
    "DeathQuery",
    "DeathVerdict",
    "DropShard",
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
    "RoundDecided",
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
    "TableEntered",
    "TableInitialised",
    "TableOpened",
    "TableReport",
    "TableSpec",
]

# --- registration -------------------------------------------------------------------------


class Join(Message, frozen=True, tag=True, kw_only=True):
    """Server or worker to scheduler: take me in.

    `name` may be empty: the scheduler then makes one. `host` and `port` are where a server
    listens; an empty host means the address that the scheduler sees.
    """

    senders = MEMBER

    role: Word
    name: NewName = ""
    host: Host = ""
    port: Port = 0
    process_id: int = 0
    memory_bytes: Count = 0


class Member(Message, frozen=True, tag=True, kw_only=True):
    """One node as everybody knows it; part of `ClusterState`."""

    role: Word
    rank: Count
    name: Name
    incarnation: Count
    host: Host = ""
    port: Port = 0
    state: Word = "alive"
    from_clock: Count = 0


class Joined(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a joining node: you are in, as this rank and incarnation."""

    senders = SCHEDULER

    rank: Count
    name: Name
    incarnation: Count
    job: Word
    heartbeat_s: Seconds
    clock: Count = 0
    trace: bool = False
    report_period_s: Seconds = 1.0
    resumes: bool = False
    ahead: Count = 0


class Refused(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a node: no, for this reason. `call` names the request (0: the join)."""

    senders = SCHEDULER

    code: int
    text: Text
    call: Count = 0


class ClusterState(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node: who is in the job, after each change."""

    senders = SCHEDULER

    epoch: Count
    members: Annotated[list[Member], Meta(max_length=MEMBERS_MAX)]
    expected_servers: Count
    expected_workers: Count
    ready: bool


class ClusterChange(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node: who is in the job, as what differs from the last time."""

    senders = SCHEDULER

    since: Count
    epoch: Count
    members: Annotated[list[Member], Meta(max_length=MEMBERS_MAX)]
    expected_servers: Count
    expected_workers: Count
    ready: bool


class Leave(Message, frozen=True, tag=True, kw_only=True):
    """Worker or server to scheduler: I go, cleanly or because of an error; GOODBYE follows."""

    senders = MEMBER

    clean: bool
    reason: Text = ""


class FinishWorker(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: no more clocks from me; barriers need not wait for me."""

    senders = WORKER

    clock: Count


class Shutdown(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node: the job is over; `failed` says whether it failed."""

    senders = SCHEDULER

    reason: Text
    failed: bool = False
    node: Text = ""


# --- barriers and the common stop -----------------------------------------------------------


class BarrierEnter(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I am at this barrier; answer within `timeout_s`."""

    senders = WORKER

    name: Name
    generation: Count
    timeout_s: Seconds


class BarrierDone(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: all are here, or `missing` are not (one text each)."""

    senders = SCHEDULER

    name: Name
    generation: Count
    missing: Annotated[list[Text], Meta(max_length=WORKERS_MAX)] = msgspec.field(
        default_factory=list
    )


class StopRequest(Message, frozen=True, tag=True, kw_only=True):
    """Worker or observer to scheduler: let all stop at one step boundary."""

    senders = WORKER | OBSERVER

    reason: Text


class StopProposal(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to workers: at which clock could you stop? Do not pass it until told."""

    senders = SCHEDULER

    reason: Text


class StopVote(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I can stop at the end of this many clocks."""

    senders = WORKER

    clock: Count


class StopAt(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to every node: all stop when they have completed this many clocks."""

    senders = SCHEDULER

    clock: Count
    reason: Text


# --- observation ----------------------------------------------------------------------------


class NodeReport(Message, frozen=True, tag=True, kw_only=True):
    """Server or worker to scheduler: what it counted, about once a second and at its end.

    `choices` tells what a worker has chosen by itself, and why, by what was to be chosen: for
    `weights push` a codec. `clock_offset_ns` is wall clock minus monotonic clock, to lay spans of
    several hosts on one axis.
    """

    senders = MEMBER

    clock: Count = 0
    counters: Counters = msgspec.field(default_factory=dict)
    latency: Latency = msgspec.field(default_factory=dict)
    metrics: Metrics = msgspec.field(default_factory=dict)
    choices: Choices = msgspec.field(default_factory=dict)
    rounds: Rounds = msgspec.field(default_factory=dict)
    spans: Spans = msgspec.field(default_factory=list)
    spans_dropped: Count = 0
    clock_offset_ns: int = 0


class StatusRequest(Message, frozen=True, tag=True, kw_only=True):
    """Observer, server or worker to scheduler: tell how the job is doing."""

    senders = MEMBER | OBSERVER


class StatusReply(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to whoever asked: the status as one JSON document, in UTF-8."""

    senders = SCHEDULER

    status: Document


ControlMessage: TypeAlias = (
    OpenDialogue
    | DialogueOpen
    | Heard
    | Join
    | Joined
    | Refused
    | ClusterState
    | ClusterChange
    | Leave
    | FinishWorker
    | Shutdown
    | AttachTable
    | OpenShard
    | ShardReady
    | DropShard
    | TableOpened
    | TableEntered
    | TableInitialised
    | RoundHold
    | RoundHeld
    | RoundRelease
    | RoundDecided
    | TableReport
    | DeathQuery
    | LossReport
    | DeathVerdict
    | BarrierEnter
    | BarrierDone
    | StopRequest
    | StopProposal
    | StopVote
    | StopAt
    | RingEnter
    | RingFormed
    | RingMissing
    | RingWanted
    | RingHalt
    | RingHalted
    | RingVerdict
    | NodeReport
    | StatusRequest
    | StatusReply
)
