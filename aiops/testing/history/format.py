"""The format of a history: what one worker did and saw, one JSON object per line.

A file begins with a `Header` and has the events of one incarnation of one worker in the order in
which they happened. `at` is nanoseconds of the monotonic clock, which all processes of one
machine share. Whoever writes it is `recorder`, whoever reads it `run`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

__all__ = [
    "FORMAT",
    "Closed",
    "Ended",
    "Event",
    "Header",
    "Invoked",
    "Opened",
    "PartAsked",
    "PartEnded",
    "decode",
    "encode",
    "file_name",
]

FORMAT: Final = 1
"""Rises when a reader of the former format would misunderstand a file."""

Kind = Literal[
    "push", "pull", "push_pull", "assign", "seal", "initialise", "tick", "barrier", "finish"
]
Outcome = Literal["ok", "fail", "unknown"]
"""`fail` took no effect. `unknown` may take effect at any later time, or never."""


class _Line(msgspec.Struct, omit_defaults=True, tag_field="type", kw_only=True):
    at: int


class Header(_Line, tag="history"):
    """Who wrote this file.

    Attributes
    ----------
    worker, incarnation, name
        Rank of the worker, how often the rank has been taken, its name.
    host
        Names the machine since its last start; only clocks of one host can be compared.
    workers
        Ranks of the workers that were in the job when this one had joined.
    clock
        Completed clocks when it joined.
    """

    format: int
    job: str
    worker: int
    incarnation: int
    name: str
    host: str
    workers: list[int] = []
    clock: int = 0


class Opened(_Line, tag="table"):
    """The worker has opened a table.

    Attributes
    ----------
    mode, reduce, trim
        Consistency of the table (`quorum` also for BSP that drops the slowest); what becomes of a
        round's contributions.
    staleness
        By how many clocks workers may be apart, in SSP.
    keeps_late
        Whether what comes too late for its round counts in the next one.
    optimizer
        Name of what a push does at the servers.
    first
        The first round that this worker takes part in.
    takes_part
        Whether it takes part in rounds at all.
    shards
        [server, begin, end] of each.
    init
        The value of every element at version 0, where that is one number.
    values
        Whether events of this table have whole values, besides their checksums.
    """

    table: int
    name: str
    mode: str
    optimizer: str
    shards: list[tuple[int, int, int]]
    reduce: str = ""
    trim: int = 0
    staleness: int = 0
    keeps_late: bool = False
    first: int = 0
    takes_part: bool = True
    init: float | None = None
    values: bool = False


class PartAsked(msgspec.Struct, array_like=True, omit_defaults=True):
    """One frame of an operation, as it was asked for: what it covers, and what it carries.

    Attributes
    ----------
    keys
        Checksum of the key ranges where they are several, else 0.
    clock
        Of a mutation the round, of a pull the least version that may answer it.
    checksum
        CRC-32C of the values that it carries, 0 if none.
    ranges
        The key ranges, where they are several and the values are recorded.
    """

    shard: int
    begin: int
    end: int
    clock: int = 0
    keys: int = 0
    checksum: int = 0
    values: list[float] | None = None
    ranges: list[tuple[int, int]] | None = None


class Invoked(_Line, tag="invoke"):
    """An operation begins.

    Attributes
    ----------
    op
        Number of the operation in this file, from 1.
    verb
        What the user called, where that is not the kind: a `pull` may be part of `updates`.
    table
        Its id, 0 for operations without one.
    clock
        Of a tick the clock that it completes.
    name
        Of a barrier.
    contributed, final, weight
        Of a seal: whether something was pushed in the clock; whether it is the last; how much
        what was pushed counts.
    """

    op: int
    kind: Kind
    table: int = 0
    verb: str = ""
    parts: list[PartAsked] = []
    clock: int = 0
    name: str = ""
    contributed: bool = False
    final: bool = False
    weight: float = 1.0


class PartEnded(msgspec.Struct, array_like=True, omit_defaults=True):
    """What became of one frame of an operation.

    Attributes
    ----------
    version
        Version of the shard in the answer.
    seq, request
        Number of the mutation in its session; id of the request. 0: it was never sent.
    resent
        Whether it was sent more than once, so that the answer may be that of a repeat.
    checksum, values
        Of the values in the answer.
    """

    outcome: Outcome
    version: int = 0
    seq: int = 0
    request: int = 0
    resent: bool = False
    checksum: int = 0
    values: list[float] | None = None


class Ended(_Line, tag="end"):
    """An operation has ended; one without this line has not, and its outcome is unknown."""

    op: int
    outcome: Outcome
    parts: list[PartEnded] = []
    error: str = ""
    generation: int = 0


class Closed(_Line, tag="closed"):
    """The worker has left the job."""

    clean: bool
    reason: str = ""


Event = Header | Opened | Invoked | Ended | Closed

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Return the line of an event, its newline included."""
    return _encoder.encode(event) + b"\n"


def decode(line: bytes) -> Event:
    """Return the event of a line; `msgspec.MsgspecError` if it is none."""
    event: Event = _decoder.decode(line)
    return event


def file_name(header: Header) -> str:
    """Return the name of the file of this worker, unique in a folder of many jobs."""
    return f"{header.job[:8]}-worker-{header.worker}-{header.incarnation}.jsonl"
