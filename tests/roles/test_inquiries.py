"""What a server says when it is asked what has become of requests."""

from __future__ import annotations

import pytest

from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Known, Query
from aiops_protocol.queries import OWN_CONNECTION, UNKNOWN, WAITS, Told, ask, told
from served import Served, refusal, replies, reply

OK = int(ErrorCode.OK)
Entries = list[tuple[int, int]]


def asked(
    served: Served, peer: int, entries: Entries, connection: int = OWN_CONNECTION, table: int = 1
) -> Told:
    """Ask over a connection; 7 bytes have come over it, 70 over the one with mark 5."""
    query = Query(request_id=77, table=table, payload=ask(connection, entries))
    found = reply(served.core.query(peer, query, {OWN_CONNECTION: 7, 5: 70}))
    served.core.validate()
    assert isinstance(found, Known)
    assert (found.request_id, found.count) == (77, len(entries))
    return told(found.payload)


@pytest.fixture
def served() -> Served:
    """A table with rounds and two workers."""
    return Served(4, workers=(0, 1))


def test_each_mutation_is_applied_refused_waiting_or_unknown(served: Served) -> None:
    served.push(0, [1, 1, 1, 1])
    served.push(0, [float("nan")] * 4)
    served.seal(0, 0)
    served.push(0, [1, 1, 1, 1], clock=1)  # of a round that is not open
    entries = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]
    not_finite = int(ErrorCode.NOT_FINITE)
    assert asked(served, 10, entries).outcomes == [OK, not_finite, OK, WAITS, UNKNOWN]


def test_pulls_wait_or_are_unknown(served: Served) -> None:
    served.pull(0, clock=1, request_id=40)
    assert asked(served, 10, [(40, 0), (41, 0)]).outcomes == [WAITS, UNKNOWN]
    served.connect(0, peer=30)
    assert asked(served, 30, [(40, 0)]).outcomes == [UNKNOWN], "its answer goes elsewhere"
    assert asked(served, 30, [(40, 0)], connection=5).outcomes == [WAITS]
    assert asked(served, 11, [(40, 0)], connection=5).outcomes == [UNKNOWN], "another worker's"


def test_who_asks_about_its_own_connection_gets_the_answers_of_what_waits(served: Served) -> None:
    served.seal(0, 0)
    served.push(0, [1, 1, 1, 1], clock=1)
    for peer, connection in ((30, 5), (31, OWN_CONNECTION), (10, OWN_CONNECTION)):
        if peer != 10:
            served.connect(0, peer=peer)
        assert asked(served, peer, [(2, 2)], connection).outcomes == [WAITS]
    actions = served.seal(1, 0)
    assert any(isinstance(found, Ack) for found in replies(actions, 31)), "the newest that asked"
    assert not replies(actions, 30)
    assert not replies(actions, 10)


def test_nothing_is_known_of_another_incarnation_or_table(served: Served) -> None:
    served.push(0, [1, 1, 1, 1])
    assert asked(served, 10, [(1, 1)], table=9).outcomes == [UNKNOWN]
    served.connect(0, incarnation=2, peer=30)
    assert asked(served, 30, [(1, 1)]).outcomes == [UNKNOWN]
    assert asked(served, 10, [(1, 1)]).outcomes == [UNKNOWN], "it has been dropped"


def test_bytes_are_those_of_the_connection_that_was_named(served: Served) -> None:
    assert asked(served, 10, []).received == 7
    assert asked(served, 10, [], connection=5).received == 70
    assert asked(served, 10, [], connection=6).received == 0


def test_a_question_of_a_wrong_size_is_refused(served: Served) -> None:
    query = Query(request_id=1, table=1, payload=bytes(12))
    code, text = refusal(served.core.query(10, query, {}))
    assert code is ErrorCode.SIZE_MISMATCH
    assert "12 bytes" in text
