"""One connection for each session: the newest that speaks, and what becomes of the others."""

from __future__ import annotations

from typing import Any

from aiops.roles.actions import Drop
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Push, Query
from aiops_protocol.queries import OWN_CONNECTION, ask
from served import Served, acked, refusal


def asp(size: int = 8, **options: Any) -> Served:
    return Served(size, consistency="asp", **options)


def test_a_session_that_speaks_over_another_connection_leaves_the_former_one() -> None:
    """A dead connection that nothing has told of holds no answers, and nobody waits in it."""
    served = Served(2, workers=(0, 1))
    served.push(0, [1], session=1, seq=1, answered_below=1)
    assert served.pull(0, clock=1, session=1) == [], "it waits by rule"
    assert served.table.pulls
    assert served.connect(0, peer=20) == [], "a probe is a connection, too"
    push = served.mutation(Push, 0, session=1, begin=0, end=1, payload=bytes(4))
    drop, answer = served.ask(20, push)
    assert isinstance(drop, Drop)
    assert (drop.peer, drop.code) == (10, ErrorCode.TOO_MANY_CONNECTIONS)
    assert acked([answer])
    assert not served.table.pulls
    assert refusal(served.push(0, [1], session=1))[0] is ErrorCode.STALE_INCARNATION
    assert acked(
        served.ask(20, served.mutation(Push, 0, session=1, begin=0, end=1, payload=bytes(4)))
    )


def test_what_is_read_late_from_a_former_connection_does_not_end_the_newest() -> None:
    served = asp()
    served.connect(0, peer=20)
    served.connect(0, peer=30)
    push = served.mutation(Push, 0, begin=0, end=1, payload=bytes(4))
    assert acked(served.ask(30, push))
    drop, answer = served.ask(20, push)
    assert isinstance(drop, Drop)
    assert drop.peer == 20
    assert refusal([answer])[0] is ErrorCode.STALE_INCARNATION
    assert acked(served.ask(30, push)), "a repeat is answered where it is asked"


def test_other_sessions_workers_and_questions_leave_a_connection_as_it_is() -> None:
    served = asp(workers=(0, 1))
    assert acked(served.push(0, [1]))
    served.connect(0, peer=20)
    served.connect(0, peer=30)
    payload = ask(OWN_CONNECTION, [(1, 1)])
    served.core.query(30, Query(request_id=1, table=1, payload=payload), {OWN_CONNECTION: 1})
    assert acked(served.push(1, [1]))
    other = Push(
        request_id=1, seq=1, answered_below=1, table=1, session=2, begin=0, end=1, payload=bytes(4)
    )
    assert acked(served.ask(20, other))
    assert acked(served.push(0, [1])), "the session 0 of worker 0 has this connection still"
