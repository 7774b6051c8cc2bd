"""What the scheduler knows of one table: settings, range map, who takes part, who waits for it.

Records and the messages made from them; what happens when is `catalogue.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from aiops.errors import ConfigError
from aiops.roles.actions import Action, Tell
from aiops.wording import shown
from aiops_protocol.control import (
    ControlMessage,
    Refused,
    RoundHeld,
    ShardPart,
    TableOpened,
    TableSpec,
)
from aiops_protocol.limits import ROW_WIDTH_MAX

__all__ = [
    "Applicant",
    "Hold",
    "Peers",
    "TableEntry",
    "TableState",
    "Waiter",
    "Who",
    "check_layout",
    "difference",
]

Who: TypeAlias = tuple[int, int]
"""Rank and incarnation of a worker."""

Peers: TypeAlias = Mapping[int, int]
"""The peer of each rank."""


class TableState(Enum):
    """How far a table is."""

    OPENING = "opening"
    INITIALISING = "initialising"
    OPEN = "open"


class Applicant(msgspec.Struct, frozen=True):
    """A worker that asks for a table: where to answer, and who it is."""

    peer: int
    rank: int
    incarnation: int
    takes_part: bool


class Waiter(msgspec.Struct, frozen=True):
    """A call that waits for a table. Who gave a whole spec can give the initial values."""

    applicant: Applicant
    call: int
    creates: bool

    @property
    def who(self) -> Who:
        """Rank and incarnation."""
        return self.applicant.rank, self.applicant.incarnation

    def as_observer(self) -> Waiter:
        """Return the same call of a worker that takes no part in rounds any more."""
        applicant = msgspec.structs.replace(self.applicant, takes_part=False)
        return msgspec.structs.replace(self, applicant=applicant)

    def refuse(self, code: int, text: str) -> Tell:
        """Answer no."""
        return Tell(Refused(code=code, text=text[:1024], call=self.call), self.applicant.peer)


class Hold(msgspec.Struct):
    """A worker that enters the rounds of a table: who asked, what the servers answered."""

    waiters: list[Waiter]
    initialise: bool
    answers: dict[int, RoundHeld]


class TableEntry(msgspec.Struct):
    """One table of the job.

    `members` has the first round of everybody who takes part; those among them who are in
    `opened` know of the table and will seal its rounds.
    """

    table: int
    spec: TableSpec
    parts: list[ShardPart]
    state: TableState
    members: dict[Who, int]
    opened: dict[Who, None]
    unready: dict[int, None]  # servers that have not answered OpenShard
    waiters: list[Waiter]
    initialiser: Applicant | None = None
    holds: dict[int, Hold] = {}  # by rank
    offset: int | None = None  # the clock of the job at round 0, as those in the rounds have it

    def tell_servers(self, message: ControlMessage, servers: Peers) -> list[Action]:
        """Send a message to every server that holds a part."""
        return [Tell(message, servers[part.server]) for part in self.parts]

    def tell_opened(
        self, waiter: Waiter, from_version: int, *, initialise: bool = False, late: bool = False
    ) -> Tell:
        """Answer a call with the table; `late`: the others are in its rounds already."""
        if waiter.applicant.takes_part:
            self.opened[waiter.who] = None
        message = TableOpened(
            call=waiter.call,
            table=self.table,
            spec=self.spec,
            parts=self.parts,
            from_version=from_version,
            initialise=initialise,
            job_clock=self.offset + from_version if late and self.offset is not None else None,
        )
        return Tell(message, waiter.applicant.peer)

    def describe(self) -> dict[str, object]:
        """Return the table with its settings and range map; for status."""
        return {
            "name": self.spec.name,
            "id": self.table,
            "shape": list(self.spec.shape),
            "layout": self.spec.layout,
            "optimizer": self.spec.optimizer,
            "consistency": self.spec.consistency,
            "compression": self.spec.compression,
            "pull_compression": self.spec.pull_compression,
            "state": self.state.value,
            "ranges": [self._describe_part(part) for part in self.parts],
        }

    def _describe_part(self, part: ShardPart) -> dict[str, int]:
        described = {"server": part.server, "begin": part.begin, "end": part.end}
        if self.spec.layout == "dense":  # what a sparse part takes is the server's to tell
            described["bytes"] = 4 * (part.end - part.begin)
        return described


def check_layout(spec: TableSpec) -> None:
    """Refuse a table whose keys would be spread in a way that is not known here.

    Raises
    ------
    ConfigError
        Unknown layout; or of a sparse table, a width or initial values that do not go with it.
    """
    if spec.layout == "dense":
        return
    if spec.layout not in ("hashed", "range"):
        raise ConfigError(
            f'table {spec.name}: layout {shown(spec.layout)} is not known here; there is "hashed" '
            'and "range" for sparse tables'
        )
    if len(spec.shape) != 1 or not 1 <= spec.shape[0] <= ROW_WIDTH_MAX:
        raise ConfigError(
            f"table {spec.name}: a row of a sparse table has 1 to {ROW_WIDTH_MAX} values, "
            f"not {spec.shape}"
        )
    if spec.init_kind == "values":
        raise ConfigError(f"table {spec.name}: init of a sparse table is a rule, not an array")


def difference(first: TableSpec, second: TableSpec) -> str:
    """Say in which settings two specs differ, existing value first.

    Between a sparse and a dense table that is all: what else differs follows from it.
    """
    if (first.layout == "dense") != (second.layout == "dense"):
        call = "table" if first.layout == "dense" else "sparse_table"
        return f"it is {_kind(first)}, not {_kind(second)}; open it by worker.{call}"
    return "; ".join(
        f"{field} is {getattr(first, field)}, not {getattr(second, field)}"
        for field in first.__struct_fields__
        if getattr(first, field) != getattr(second, field)
    )


def _kind(spec: TableSpec) -> str:
    if spec.layout == "dense":
        return f"a dense table of shape {spec.shape}"
    return f"a sparse table of width {spec.shape[0]} and layout {spec.layout}"
