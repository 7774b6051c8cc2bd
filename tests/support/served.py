"""One server core and workers that talk to it frame by frame, for tests of what it answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiops.roles.actions import Action, RoundClosed, Send
from aiops.roles.served_table import ServedTable
from aiops.roles.server import ServerCore
from aiops_protocol.control import OpenShard
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Assign, Pull, Push, PushPull, Reject, Reply, Request, Seal
from aiops_protocol.payload import Float32Array
from core_tables import spec_of

CONTRIBUTED, FINAL, INITIAL = 16, 32, 8
F = np.float32


class Served:
    """A server with one table of `size` elements from `begin` on; peer 10 + r is worker r.

    With `width` and a `layout` it is a sparse one that may have so many keys.
    """

    def __init__(
        self,
        size: int = 8,
        *,
        begin: int = 0,
        workers: tuple[int, ...] = (0,),
        members: tuple[int, ...] | None = None,
        limit: int = 1 << 40,
        width: int = 0,
        **spec: Any,
    ) -> None:
        self.core = ServerCore(limit)
        self.seqs: dict[int, int] = {}
        self.now = 0.0
        order = OpenShard(
            table=1,
            spec=spec_of("w", width or begin + size, **spec),
            begin=begin,
            end=begin + size,
            workers=list(workers if members is None else members),
        )
        self.opening = self.core.order(order, 0.0)
        for rank in workers:
            self.connect(rank)

    @property
    def table(self) -> ServedTable:
        return self.core.tables[1]

    @property
    def values(self) -> Float32Array:
        return self.table.rule.shard.read(slice(None))

    def connect(
        self, rank: int, incarnation: int = 1, peer: int | None = None, customers: int = 3
    ) -> list[Action]:
        self.seqs.setdefault(rank, 0)
        peer = 10 + rank if peer is None else peer
        return self.core.connected(peer, rank, incarnation, customers)

    def ask(self, peer: int, request: Request) -> list[Action]:
        """Send a request; the server's invariants hold afterwards."""
        actions = self.core.request(peer, request, self.now)
        self.core.validate()
        return actions

    def mutation(self, kind: type[Request], rank: int, **fields: Any) -> Request:
        """The next mutation of a worker, numbered."""
        self.seqs[rank] = seq = self.seqs.get(rank, 0) + 1
        fields = {"seq": seq, "answered_below": seq, "table": 1, "request_id": seq} | fields
        return kind(**fields)

    def _change(
        self, kind: type[Request], rank: int, values: Any, begin: int, **fields: Any
    ) -> list[Action]:
        array = np.asarray(values, F)
        size = array.size if "end" not in fields else fields.pop("end") - begin
        request = self.mutation(
            kind, rank, begin=begin, end=begin + size, payload=array.tobytes(), **fields
        )
        return self.ask(10 + rank, request)

    def push(self, rank: int, values: Any, begin: int = 0, **fields: Any) -> list[Action]:
        return self._change(Push, rank, values, begin, **fields)

    def assign(self, rank: int, values: Any, begin: int = 0, **fields: Any) -> list[Action]:
        return self._change(Assign, rank, values, begin, **fields)

    def push_pull(self, rank: int, values: Any, begin: int = 0, **fields: Any) -> list[Action]:
        return self._change(PushPull, rank, values, begin, **fields)

    def seal(self, rank: int, clock: int, flags: int = CONTRIBUTED, **fields: Any) -> list[Action]:
        return self.ask(10 + rank, self.mutation(Seal, rank, clock=clock, flags=flags, **fields))

    def pull(
        self, rank: int, clock: int = 0, begin: int = 0, end: int | None = None, **fields: Any
    ) -> list[Action]:
        end = self.table.end if end is None else end
        fields = {"request_id": 900 + clock} | fields
        return self.ask(10 + rank, Pull(table=1, clock=clock, begin=begin, end=end, **fields))


def replies(actions: list[Action], peer: int | None = None) -> list[Reply]:
    """The replies among actions (to one peer)."""
    return [
        action.frame
        for action in actions
        if isinstance(action, Send)
        and isinstance(action.frame, Reply)
        and peer in (None, action.peer)
    ]


def reply(actions: list[Action]) -> Reply:
    """The only reply among actions."""
    (found,) = replies(actions)
    return found


def acked(actions: list[Action]) -> bool:
    """Whether the first reply is an acknowledgement."""
    return isinstance(replies(actions)[0], Ack)


def refusal(actions: list[Action]) -> tuple[ErrorCode, str]:
    """Code and text of the only reply, a refusal."""
    found = reply(actions)
    assert isinstance(found, Reject), found
    return ErrorCode(found.status), bytes(found.payload).decode()


def values_of(found: Reply) -> list[float]:
    """The values in a reply."""
    return np.frombuffer(found.payload, F).tolist()  # type: ignore[no-any-return]


def closings(actions: list[Action]) -> list[tuple[int, int]]:
    """Version and number of contributors of the rounds that were closed."""
    return [(a.version, a.contributors) for a in actions if isinstance(a, RoundClosed)]
