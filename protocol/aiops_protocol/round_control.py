"""Control messages of rounds: who takes part from when, who is gone, and what is decided.

They travel like those in `control.py` and are part of its union.
"""

from __future__ import annotations

import msgspec

from aiops_protocol.message import (
    SCHEDULER,
    SERVER,
    Count,
    Histogram,
    Message,
    Name,
    Sealed,
    Shares,
    Slowness,
    Tally,
    Weights,
)

__all__ = [
    "DeathQuery",
    "DeathVerdict",
    "LossReport",
    "RoundDecided",
    "RoundHeld",
    "RoundHold",
    "RoundRelease",
    "TableReport",
]


class RoundHold(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: a worker wants to enter this table; close at most one more round."""

    senders = SCHEDULER

    table: Count
    worker: Count


class RoundHeld(Message, frozen=True, tag=True, kw_only=True):
    """Server to scheduler: my part is at this version and closes at most one more round.

    `idle`: nobody takes part in it at the moment, so no round will close by itself.
    """

    senders = SERVER

    table: Count
    worker: Count
    version: Count
    idle: bool = False


class RoundRelease(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: the worker takes part from this round on."""

    senders = SCHEDULER

    table: Count
    worker: Count
    from_version: Count


class RoundDecided(Message, frozen=True, tag=True, kw_only=True):
    """Lead server to scheduler, and that to the other servers: a round closes with these shares.

    `version` is that before the close. A share is (worker, round of its contribution, weight);
    with weight 0 the worker has pushed nothing, and what it has assigned takes effect.
    """

    senders = SERVER | SCHEDULER

    table: Count
    version: Count
    shares: Shares


class TableReport(Message, frozen=True, tag=True, kw_only=True):
    """Server to scheduler: what was counted at its part of a table, after it has changed.

    `staleness`: gradients by the changes of others between read and push (below 16 one by one,
    then under powers of two). `late`: contributions that came after their round had closed, at
    the lead. `slow`: workers for which others have waited most of the last seconds.
    """

    senders = SERVER

    table: Name
    staleness: Histogram = msgspec.field(default_factory=dict)
    late: Tally = msgspec.field(default_factory=dict)
    slow: Slowness = msgspec.field(default_factory=dict)


class DeathQuery(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to servers: this worker is gone; tell up to which rounds it sealed your parts."""

    senders = SCHEDULER

    worker: Count
    incarnation: Count


class LossReport(Message, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Server to scheduler: what the worker had sealed here, in answer to `DeathQuery`."""

    senders = SERVER

    worker: Count
    sealed: Sealed
    weights: Weights = msgspec.field(default_factory=dict)


class DeathVerdict(Message, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Scheduler to servers: rounds below these numbers count with the lost worker."""

    senders = SCHEDULER

    worker: Count
    sealed: Sealed
    weights: Weights = msgspec.field(default_factory=dict)
