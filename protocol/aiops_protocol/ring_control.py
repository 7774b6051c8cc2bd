"""Control messages of rings: who enters, who is in, and what is done when an operation stops.

They travel like those in `control.py` and are part of its union. What the scheduler makes of
them is `aiops.roles.rings`.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from aiops_protocol.limits import WORKERS_MAX
from aiops_protocol.message import (
    SCHEDULER,
    WORKER,
    Count,
    Host,
    Message,
    Name,
    Port,
    Ranks,
    Seconds,
    Text,
    Word,
)

__all__ = [
    "RingEnter",
    "RingFormed",
    "RingHalt",
    "RingHalted",
    "RingMember",
    "RingMissing",
    "RingVerdict",
    "RingWanted",
]


class RingEnter(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I am ready for the next generation of this ring; answer in `timeout_s`.

    Peers reach me at `host` and `port`. With `shared` I offer memory to those of the same host: a
    text that is the same for all processes that can share memory, a `/`, and where I am found; see
    SPEC.md, "Shared memory". A `timeout_s` of 0 takes an earlier message back.
    """

    senders = WORKER

    name: Name
    host: Host
    port: Port
    timeout_s: Seconds
    shared: Text = ""


class RingMember(Message, frozen=True, tag=True, kw_only=True):
    """One member of a ring; part of `RingFormed`."""

    rank: Count
    incarnation: Count
    name: Name
    host: Host
    port: Port
    newcomer: bool = False
    shared: Text = ""


class RingFormed(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: this generation of the ring has these members, in order of rank."""

    senders = SCHEDULER

    name: Name
    ring: Count
    generation: Count
    epoch: Count
    members: Annotated[list[RingMember], Meta(max_length=WORKERS_MAX)]


class RingMissing(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: your time to enter is over, and these have not come (one text each)."""

    senders = SCHEDULER

    name: Name
    missing: Annotated[list[Text], Meta(max_length=WORKERS_MAX)]


class RingWanted(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: somebody waits to enter this generation's successor."""

    senders = SCHEDULER

    name: Name
    generation: Count


class RingHalt(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: this generation is over; stop, and say how far you are.

    `cause` is one word for programs: lost, left, mismatch, timeout, cancelled or connection.
    """

    senders = SCHEDULER

    name: Name
    generation: Count
    cause: Word
    text: Text
    lost: Ranks


class RingHalted(Message, frozen=True, tag=True, kw_only=True):
    """Worker to scheduler: I have stopped after `done` operations, or must: for this `cause`.

    Without a `cause` it answers `RingHalt`. What comes after operation `done` is not in effect
    here, and will not be unless `RingVerdict` says so.
    """

    senders = WORKER

    name: Name
    generation: Count
    done: Count
    cause: Word = ""
    text: Text = ""


class RingVerdict(Message, frozen=True, tag=True, kw_only=True):
    """Scheduler to worker: operations up to `done` are in effect everywhere, later ones nowhere."""

    senders = SCHEDULER

    name: Name
    generation: Count
    done: Count
    cause: Word
    text: Text
    lost: Ranks
