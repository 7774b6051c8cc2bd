"""What control messages are made of: bounded field types, and who may send a message.

`msgspec` checks the bounds while it decodes, a length before its items. Each collection has
one, so that a message of 1 MiB cannot become 50 MB of small objects.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from aiops_protocol.greeting import Role
from aiops_protocol.limits import (
    CONTROL_BYTES_MAX,
    DIMENSIONS_MAX,
    HISTOGRAM_BUCKETS_MAX,
    KEY_CHARS_MAX,
    NAME_CHARS_MAX,
    REPORT_HISTOGRAMS_MAX,
    REPORT_NAMES_MAX,
    REPORT_SPANS_MAX,
    SETTINGS_MAX,
    TABLES_MAX,
    TEXT_BYTES_MAX,
    WINDOW_MUTATIONS,
    WORKERS_MAX,
)

_NAME = r"[A-Za-z0-9._:-]"

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=NAME_CHARS_MAX, pattern=rf"^{_NAME}+\Z")
]
"""Names of nodes, tables and barriers: printable, safe in a log line, no line end."""

NewName: TypeAlias = Annotated[str, Meta(max_length=NAME_CHARS_MAX, pattern=rf"^{_NAME}*\Z")]
"""A name, or empty where the receiver is to make one."""

Host: TypeAlias = Annotated[str, Meta(max_length=255, pattern=r"^[A-Za-z0-9._:%-]*\Z")]
"""A host name, an IPv4 or an IPv6 address; or empty."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
KeyMark: TypeAlias = Annotated[int, Meta(ge=0)]
"""A key, or the end of a range of keys: msgpack itself ends at 2**64-1."""
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]  # which NaN is not
Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_BYTES_MAX)]
Word: TypeAlias = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Key: TypeAlias = Annotated[str, Meta(max_length=KEY_CHARS_MAX)]
Settings: TypeAlias = Annotated[
    dict[Key, float | int | bool | Text | None], Meta(max_length=SETTINGS_MAX)
]
Shape: TypeAlias = Annotated[list[Count], Meta(max_length=DIMENSIONS_MAX)]
Ranks: TypeAlias = Annotated[list[Count], Meta(max_length=WORKERS_MAX)]
Document: TypeAlias = Annotated[bytes, Meta(max_length=CONTROL_BYTES_MAX)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]

Sealed: TypeAlias = Annotated[dict[Count, tuple[Count, Count]], Meta(max_length=TABLES_MAX)]
"""Per table: rounds below the first number are sealed; bit i of the second says whether the
worker had pushed in round `first - 1 - i`."""

Weights: TypeAlias = Annotated[
    dict[Count, Annotated[list[float], Meta(max_length=WINDOW_MUTATIONS)]],
    Meta(max_length=TABLES_MAX),
]
"""Per table: weights of the contributions to the rounds that `Sealed` tells of, newest first."""

Tally: TypeAlias = Annotated[dict[Count, Count], Meta(max_length=WORKERS_MAX)]
"""Worker rank to count."""

Slowness: TypeAlias = Annotated[dict[Count, tuple[Count, Seconds]], Meta(max_length=WORKERS_MAX)]
"""Worker rank: clocks that it is behind, seconds for which others have waited for it lately."""

Shares: TypeAlias = Annotated[
    list[tuple[Count, Count, float]], Meta(max_length=WINDOW_MUTATIONS * WORKERS_MAX)
]
"""Of each contribution to a round: worker rank, the round that it was meant for, weight."""

Span: TypeAlias = tuple[Key, int, int, int | None]
"""Name, start and duration in ns of the host's monotonic clock, step."""

Spans: TypeAlias = Annotated[list[Span], Meta(max_length=REPORT_SPANS_MAX)]
Counters: TypeAlias = Annotated[dict[Key, int], Meta(max_length=REPORT_NAMES_MAX)]
Metrics: TypeAlias = Annotated[dict[Key, float], Meta(max_length=REPORT_NAMES_MAX)]
Choices: TypeAlias = Annotated[dict[Key, Text], Meta(max_length=REPORT_NAMES_MAX)]

Histogram: TypeAlias = Annotated[dict[int, int], Meta(max_length=HISTOGRAM_BUCKETS_MAX)]
"""Bucket number to count."""

Latency: TypeAlias = Annotated[dict[Key, Histogram], Meta(max_length=REPORT_HISTOGRAMS_MAX)]

Rounds: TypeAlias = Annotated[dict[Name, tuple[Count, Ranks]], Meta(max_length=TABLES_MAX)]
"""Per table: version, and the worker ranks that its open round waits for."""

SCHEDULER = frozenset({Role.SCHEDULER})
SERVER = frozenset({Role.SERVER})
WORKER = frozenset({Role.WORKER})
OBSERVER = frozenset({Role.OBSERVER})
MEMBER = SERVER | WORKER


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base: the class name travels as the tag. Nobody sends a part of another message alone."""

    senders: ClassVar[frozenset[Role]] = frozenset()
