"""What a role asks its shell to do. A core returns these; it never does them itself."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aiops_protocol.control import ControlMessage
from aiops_protocol.frames import Frame

__all__ = ["Action", "Drop", "Ended", "Note", "RoundClosed", "Send", "Tell"]


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send a frame to a peer."""

    peer: int
    frame: Frame


class Tell(msgspec.Struct, frozen=True):
    """Send a control message. The only such peer of a server or worker, 0, is the scheduler."""

    message: ControlMessage
    peer: int = 0


class Drop(msgspec.Struct, frozen=True):
    """Say goodbye to a peer with this code and close its connection."""

    peer: int
    code: int
    text: str


class Note(msgspec.Struct, frozen=True):
    """A fact for the log, as an event name and fields. `level` is a logging level name."""

    event: str
    fields: dict[str, object]
    level: str = "info"


class RoundClosed(msgspec.Struct, frozen=True):
    """A table reached this version; what follows in the list publishes it."""

    table: int
    version: int
    contributors: int


class Ended(msgspec.Struct, frozen=True):
    """The part of this node in the job is over."""

    ok: bool
    reason: str


Action: TypeAlias = Send | Tell | Drop | Note | RoundClosed | Ended
