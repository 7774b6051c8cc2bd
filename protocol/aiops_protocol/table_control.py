"""Control messages of tables: creating one, joining it, and where a worker is in its rounds.

They travel like those in `control.py`, are part of its union and can be had from there. What the
scheduler makes of them is `aiops.roles.catalogue`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aiops_protocol.limits import PARTS_MAX
from aiops_protocol.message import (
    SCHEDULER,
    SERVER,
    WORKER,
    Count,
    KeyMark,
    Message,
    Name,
    Ranks,
    Settings,
    Shape,
    Text,
    Word,
)

__all__ = [
    "AttachTable",
    "DropShard",
    "OpenShard",
    "ShardPart",
    "ShardReady",
    "TableEntered",
    "TableInitialised",
    "TableOpened",
    "TableSpec",
]


class TableSpec(Message, frozen=True, tag=True, kw_only=True):
    """All settings of a table that every worker must agree on.

    `layout` is `dense`, or of a sparse table, whose shape is the width of a row, how its keys are
    spread: `hashed` or `range`.
    """

    name: Name
    shape: Shape
    init_kind: Word
    init: Settings
    optimizer: Word
    optimizer_settings: Settings
    consistency: Word
    consistency_settings: Settings
    allow_nonfinite: bool = False
    layout: Word = "dense"
    compression: Text = ""
    pull_compression: Text = ""


class ShardPart(Message, frozen=True, tag=True, kw_only=True):
    """One part of a table's partition: this server rank holds [begin, end)."""

    server: Count
    begin: KeyMark
    end: KeyMark


class AttachTable(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: create this table or join it. Without `spec`: only join it."""

    senders = WORKER

    call: Count
    name: Name
    spec: TableSpec | None = None
    observer: bool = False


class OpenShard(Message, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Scheduler to a server: hold this part of a new table.

    `workers` are the ranks that take part in its rounds from version 0 on. Part 0 of so many
    `parts` is the lead: where rounds close without late workers, it decides.
    """

    senders = SCHEDULER

    table: Count
    spec: TableSpec
    begin: KeyMark
    end: KeyMark
    workers: Ranks
    part: Count = 0
    parts: Count = 1


class ShardReady(Message, frozen=True, tag=True, kw_only=True):
    """Server to scheduler: the part is allocated, or why not (`code` not 0)."""

    senders = SERVER

    table: Count
    code: int = 0
    text: Text = ""


class DropShard(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to a server: the table was not created after all; free its part."""

    senders = SCHEDULER

    table: Count


class TableOpened(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: here is the table.

    With `initialise` the worker sends the initial values to the servers and then
    `TableInitialised`; the others are answered after that. `from_version` is the first
    round this worker takes part in; of one that enters late, `job_clock` is the clock at which
    the others are in that round, if it is known.
    """

    senders = SCHEDULER

    call: Count
    table: Count
    spec: TableSpec
    parts: Annotated[list[ShardPart], Meta(max_length=PARTS_MAX)]
    from_version: Count
    initialise: bool = False
    job_clock: Count | None = None


class TableEntered(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I am in this round of the table at this clock of the job.

    Its own clocks are `ahead` fewer.
    """

    senders = WORKER

    table: Count
    version: Count
    clock: Count
    ahead: Count = 0


class TableInitialised(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: the initial values are in."""

    senders = WORKER

    table: Count
