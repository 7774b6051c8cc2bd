"""Histories written by hand: a few lines of a test become the recorded run of several workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from aiops.testing.history.format import (
    Closed,
    Ended,
    Event,
    Header,
    Invoked,
    Kind,
    Opened,
    Outcome,
    PartAsked,
    PartEnded,
    encode,
    file_name,
)
from aiops.testing.history.run import Run, assemble, build

ASP, BSP, SSP, QUORUM = 1, 2, 3, 4
MODES = {ASP: "asp", BSP: "bsp", SSP: "ssp", QUORUM: "quorum"}
SIZE = 4  # elements of a shard


def checksum(values: list[float] | None) -> int:
    """Return a checksum that tells values apart."""
    return crc32c(repr(values).encode()) if values is not None else 0


@dataclass
class Author:
    """Writes the history of one incarnation of one worker; its tables are open from the start.

    Every method takes the times at which a call begins and ends (`None`: it never does).
    """

    rank: int = 0
    incarnation: int = 1
    host: str = "here"
    shards: int = 1
    values: bool = True
    first: int = 0
    reduce: str = "sum"
    staleness: int = 1
    keeps_late: bool = False
    tables: tuple[int, ...] = (ASP, BSP)
    members: list[int] = field(default_factory=list)
    at: int = 0
    clock: int = 0
    events: list[Event] = field(default_factory=list)
    _next: int = 1
    _seq: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.header = Header(
            at=self.at,
            format=1,
            job="c0ffee00aa",
            worker=self.rank,
            incarnation=self.incarnation,
            name=f"worker-{self.rank}",
            host=self.host,
            workers=self.members,
            clock=self.clock,
        )
        self.events.append(self.header)
        for table in self.tables:
            mode = MODES[table]
            rounds = table in (BSP, QUORUM)
            self.events.append(
                Opened(
                    at=self.at,
                    table=table,
                    name=mode,
                    mode=mode,
                    reduce=self.reduce if rounds else "",
                    staleness=self.staleness if table == SSP else 0,
                    keeps_late=self.keeps_late if table == QUORUM else False,
                    optimizer="add",
                    first=self.first if table != ASP else 0,
                    shards=[(s, s * SIZE, (s + 1) * SIZE) for s in range(self.shards)],
                    init=0.0,
                    values=self.values,
                )
            )

    # --- raw ---

    def invoke(self, at: int, kind: Kind, **fields: object) -> int:
        """Note the beginning of a call and return its number."""
        op, self._next = self._next, self._next + 1
        self.events.append(Invoked(at=at, op=op, kind=kind, **fields))  # type: ignore[arg-type]
        return op

    def end(
        self,
        at: int | None,
        op: int,
        outcome: Outcome = "ok",
        parts: list[PartEnded] | None = None,
        generation: int = 0,
    ) -> None:
        """Note its end."""
        if at is not None:
            self.events.append(
                Ended(at=at, op=op, outcome=outcome, parts=parts or [], generation=generation)
            )

    def asked(self, shard: int, values: list[float] | None = None, clock: int = 0) -> PartAsked:
        """Return a part that is about a whole shard."""
        return PartAsked(
            shard=shard,
            begin=shard * SIZE,
            end=(shard + 1) * SIZE,
            clock=clock,
            checksum=checksum(values),
            values=values if self.values else None,
        )

    def answer(
        self,
        version: int,
        values: list[float] | None = None,
        *,
        outcome: Outcome = "ok",
        seq: int = 0,
        resent: bool = False,
    ) -> PartEnded:
        """Return the answer to a part."""
        return PartEnded(
            outcome=outcome,
            version=version,
            seq=seq,
            request=1,
            resent=resent,
            checksum=checksum(values),
            values=values if self.values else None,
        )

    def number(self, table: int, shard: int) -> int:
        """Return the next number of a mutation."""
        self._seq[table, shard] = self._seq.get((table, shard), 0) + 1
        return self._seq[table, shard]

    # --- calls about one shard ---

    def push(
        self,
        begin: int,
        end: int | None,
        values: list[float],
        version: int = 0,
        *,
        table: int = ASP,
        shard: int = 0,
        clock: int = 0,
        outcome: Outcome = "ok",
        resent: bool = False,
        kind: Kind = "push",
    ) -> None:
        """Push to one shard."""
        op = self.invoke(begin, kind, table=table, parts=[self.asked(shard, values, clock)])
        seq = self.number(table, shard)
        part = self.answer(version, outcome=outcome, seq=seq, resent=resent)
        self.end(end, op, outcome, [part])

    def pull(
        self,
        begin: int,
        end: int | None,
        version: int,
        values: list[float],
        *,
        table: int = ASP,
        shard: int = 0,
        clock: int = 0,
        verb: str = "",
    ) -> None:
        """Pull one shard."""
        op = self.invoke(
            begin, "pull", table=table, parts=[self.asked(shard, clock=clock)], verb=verb
        )
        self.end(end, op, "ok", [self.answer(version, values)])

    def seal(
        self,
        begin: int,
        end: int | None,
        clock: int,
        *,
        contributed: bool = True,
        final: bool = False,
        outcome: Outcome = "ok",
        table: int = BSP,
        weight: float = 1.0,
        version: int | None = None,
    ) -> None:
        """Seal a clock at every shard."""
        shards = range(self.shards)
        op = self.invoke(
            begin,
            "seal",
            table=table,
            weight=weight,
            parts=[PartAsked(shard=shard, begin=0, end=0, clock=clock) for shard in shards],
            contributed=contributed,
            final=final,
        )
        answers = [
            self.answer(
                clock if version is None else version,
                outcome=outcome,
                seq=self.number(table, shard),
            )
            for shard in shards
        ]
        self.end(end, op, outcome, answers)

    def tick(self, begin: int, end: int | None, clock: int) -> None:
        """Complete a clock."""
        self.end(end, self.invoke(begin, "tick", clock=clock))

    def barrier(
        self, begin: int, end: int | None, generation: int = 1, outcome: Outcome = "ok"
    ) -> None:
        """Wait at the barrier `b`."""
        self.end(end, self.invoke(begin, "barrier", name="b"), outcome, generation=generation)

    def finish(self, begin: int, end: int | None) -> None:
        """Contribute no more."""
        self.end(end, self.invoke(begin, "finish"))

    def close(self, at: int, *, clean: bool = True) -> None:
        """Leave."""
        self.events.append(Closed(at=at, clean=clean))

    # --- what becomes of it ---

    def write(self, folder: Path) -> Path:
        """Write the file of this worker."""
        path = folder / file_name(self.header)
        path.write_bytes(b"".join(encode(event) for event in self.events))
        return path


def run_of(*authors: Author) -> Run:
    """Put the histories of several workers together."""
    return assemble(
        "c0ffee00aa",
        [build(Path(file_name(author.header)), author.events) for author in authors],
    )
