"""What a server answers to requests: right ones, repeated ones and wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiops.roles.actions import Drop, Ended, Note, Tell
from aiops_protocol.control import (
    ClusterState,
    DropShard,
    Member,
    OpenShard,
    ShardReady,
    Shutdown,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import (
    Ack,
    AckLevel,
    Assign,
    Flag,
    Pull,
    Push,
    PushPull,
    Request,
    Seal,
    Value,
)
from aiops_protocol.limits import CUSTOMERS_MAX, PAYLOAD_BYTES_MAX, WINDOW_MUTATIONS
from core_tables import spec_of
from served import INITIAL, Served, acked, refusal, replies, reply, values_of

F = np.float32


def asp(size: int = 8, **options: Any) -> Served:
    return Served(size, consistency="asp", **options)


# --- in ASP ---


def test_a_push_takes_effect_at_once_and_counts_as_a_version() -> None:
    served = asp()
    first = reply(served.push(0, np.arange(8)))
    assert isinstance(first, Ack)
    assert (first.version, first.seq) == (1, 1)
    assert values_of(reply(served.pull(0))) == list(range(8))
    assert acked(served.assign(0, [9, 9], begin=2))
    assert values_of(reply(served.pull(0, begin=1, end=5))) == [1, 9, 9, 4]


def test_push_pull_answers_with_the_values_after_the_push() -> None:
    served = asp()
    served.push(0, np.ones(8))
    found = reply(served.push_pull(0, [5, 5], begin=6))
    assert isinstance(found, Value)
    assert values_of(found) == [6, 6]
    assert found.version == 2


def test_a_repeat_is_answered_as_before_and_changes_nothing() -> None:
    served = asp()
    request = served.mutation(Push, 0, begin=0, end=8, payload=np.ones(8, F).tobytes())
    for _ in range(3):
        assert acked(served.ask(10, request))
    bad = served.mutation(Push, 0, begin=0, end=8, payload=np.full(8, np.nan, F).tobytes())
    for _ in range(3):
        assert refusal(served.ask(10, bad))[0] is ErrorCode.NOT_FINITE
    assert (served.values == 1).all()


def test_a_repeated_push_pull_is_answered_with_the_newest_values() -> None:
    served = asp(2)
    first = served.mutation(Push, 0, begin=0, end=2, payload=np.ones(2, F).tobytes())
    served.ask(10, first)
    served.push(0, [10, 10])
    assert values_of(reply(served.push_pull(0, [100, 100], seq=3, answered_below=3))) == [111, 111]
    assert values_of(reply(served.push_pull(0, [100, 100], seq=3, answered_below=3))) == [111, 111]


def test_many_ranges_are_taken_and_given_in_their_order() -> None:
    served = asp(32, begin=64)
    ranges = np.array([[66, 68], [70, 71], [90, 96]], "<u8").tobytes()
    where: dict[str, Any] = {"begin": 66, "end": 96, "ranges": ranges}
    payload = np.arange(9, dtype=F).tobytes()
    assert acked(served.ask(10, served.mutation(Push, 0, payload=payload, **where)))
    found = reply(served.ask(10, Pull(request_id=1, table=1, **where)))
    assert values_of(found) == list(range(9))
    assert served.values.sum() == sum(range(9))


def test_a_subscriber_waits_for_the_next_change() -> None:
    served = asp(2, workers=(0, 1))
    knows = int(Flag.BASE_VERSION)
    assert served.pull(1, flags=knows, base_version=0) == []
    assert served.pull(1, flags=knows, base_version=1, request_id=7) == []
    answers = served.push(0, [3, 4])
    assert [r.request_id for r in replies(answers, 11)] == [900]
    assert values_of(replies(answers, 11)[0]) == [3, 4]


def test_a_seal_means_nothing_where_there_are_no_rounds() -> None:
    served = asp()
    assert acked(served.seal(0, 5))
    assert served.table.rule.version == 0


def test_an_empty_table_answers() -> None:
    served = asp(0)
    assert acked(served.push(0, []))
    assert values_of(reply(served.pull(0))) == []
    bsp = Served(0)
    assert acked(bsp.push(0, []))
    assert acked(bsp.seal(0, 0))
    assert bsp.table.rule.version == 1


# --- refusals ---


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"table": 2}, ErrorCode.UNKNOWN_TABLE),
        ({"begin": 15, "end": 17}, ErrorCode.KEY_RANGE_NOT_OWNED),
        ({"begin": 23, "end": 25}, ErrorCode.KEY_RANGE_NOT_OWNED),
        ({"begin": 0, "end": 0}, ErrorCode.KEY_RANGE_NOT_OWNED),
        ({"begin": 20, "end": 20}, ErrorCode.KEY_RANGE_NOT_OWNED),
        ({"begin": 0, "end": 2**64 - 1}, ErrorCode.KEY_RANGE_NOT_OWNED),
        ({"flags": int(Flag.KEY_LIST)}, ErrorCode.KEY_RANGE_NOT_OWNED),
    ],
)
@pytest.mark.parametrize("kind", [Push, Assign, Pull])
def test_what_this_server_does_not_hold_is_refused(
    kind: Any, fields: dict[str, int], code: ErrorCode
) -> None:
    served = asp(begin=16)
    given: dict[str, Any] = {"request_id": 5, "table": 1, "begin": 16, "end": 18} | fields
    if kind is not Pull:
        given |= {"seq": 1, "answered_below": 1, "payload": np.ones(2, F).tobytes()}
    found, text = refusal(served.ask(10, kind(**given)))
    assert found is code
    if code is ErrorCode.KEY_RANGE_NOT_OWNED:
        assert "[16, 24) of table w" in text
    assert not served.values.any()


@pytest.mark.parametrize("size", [0, 4, 12])
def test_a_payload_of_another_size_than_the_keys_is_refused(size: int) -> None:
    served = asp()
    payload = bytes(size)
    request = served.mutation(Push, 0, begin=0, end=2, payload=payload)
    assert refusal(served.ask(10, request))[0] is ErrorCode.SIZE_MISMATCH
    ranges = np.array([[0, 1], [3, 4]], "<u8").tobytes()
    request = served.mutation(Push, 0, begin=0, end=4, ranges=ranges, payload=payload)
    assert refusal(served.ask(10, request))[0] is ErrorCode.SIZE_MISMATCH


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("consistency", ["asp", "bsp"])
def test_what_is_not_finite_is_refused_unless_the_table_lets_it_pass(
    value: float, consistency: str
) -> None:
    served = Served(consistency=consistency)
    assert refusal(served.push(0, [1, value]))[0] is ErrorCode.NOT_FINITE
    assert refusal(served.assign(0, [1, value]))[0] is ErrorCode.NOT_FINITE
    assert acked(served.push(0, [3e38, -3e38])), "finite, though its square is not"
    liberal = Served(consistency=consistency)
    liberal.table._nonfinite = True
    assert acked(liberal.push(0, [1, value]))


@pytest.mark.parametrize("many", [False, True])
def test_a_pull_of_more_than_one_answer_holds_is_refused(many: bool) -> None:
    size = PAYLOAD_BYTES_MAX // 4 + 2
    served = asp(size)
    fields: dict[str, Any] = {"begin": 0, "end": size}
    if many:
        fields["ranges"] = np.array([[0, 1], [2, size]], "<u8").tobytes()
        fields["end"] = size
    else:
        fields["end"] = size - 1
    request = Pull(request_id=1, table=1, **fields)
    assert len(reply(served.ask(10, request)).payload) <= PAYLOAD_BYTES_MAX
    fields["end"] = size
    if many:
        fields["ranges"] = np.array([[0, 1], [1, size]], "<u8").tobytes()
    code, text = refusal(served.ask(10, Pull(request_id=1, table=1, **fields)))
    assert code is ErrorCode.SIZE_MISMATCH
    assert str(PAYLOAD_BYTES_MAX) in text


def test_push_pull_is_not_for_tables_with_rounds() -> None:
    served = Served()
    code, text = refusal(served.push_pull(0, np.ones(8)))
    assert code is ErrorCode.INVALID_SETTING
    assert "seal" in text


def test_numbers_beyond_the_window_are_refused() -> None:
    served = asp()
    beyond = WINDOW_MUTATIONS + 1
    assert refusal(served.push(0, [1], seq=beyond, answered_below=1))[0] is ErrorCode.OUT_OF_WINDOW
    assert acked(served.push(0, [1], seq=beyond - 1, answered_below=1))
    assert refusal(served.push(0, [1], seq=0, answered_below=0))[0] is ErrorCode.OUT_OF_WINDOW
    assert served.values[0] == 1


@pytest.mark.parametrize("customers", [1, 5, CUSTOMERS_MAX])
def test_a_worker_has_the_customers_that_it_has_told_of(customers: int) -> None:
    """Each session costs a record of deliveries: no more than were agreed."""
    served = asp(workers=())
    served.connect(0, customers=customers)
    for session in (customers, 65_535):
        code, text = refusal(served.push(0, [1], session=session, seq=1, answered_below=1))
        assert code is ErrorCode.OUT_OF_WINDOW
        assert f"session {session} of a worker with {customers}" in text
    assert acked(served.push(0, [1], session=customers - 1, seq=1, answered_below=1))
    assert len(served.table.inboxes) == 1


@pytest.mark.parametrize("level", [AckLevel.REPLICATED, AckLevel.DURABLE, 4, 255])
@pytest.mark.parametrize("kind", [Push, PushPull, Assign, Seal])
def test_no_more_is_promised_than_can_be_kept(kind: type[Request], level: int) -> None:
    """An ACK at APPLIED in place of DURABLE would be a lie; a repeat is refused as well."""
    served = asp()
    where = {"begin": 0, "end": 1, "payload": F(1).tobytes()} if kind is not Seal else {}
    request = served.mutation(kind, 0, ack_level=level, **where)
    code, text = refusal(served.ask(10, request))
    assert code is ErrorCode.INVALID_SETTING
    assert "no more than APPLIED" in text
    assert refusal(served.ask(10, request))[0] is ErrorCode.INVALID_SETTING
    assert served.values[0] == 0
    for level_kept in (AckLevel.RECEIVED, AckLevel.APPLIED):
        assert acked(served.push(0, [1], ack_level=level_kept))
    assert served.values[0] == 2


def test_sessions_of_one_worker_are_numbered_apart() -> None:
    served = asp()
    for session in range(3):
        assert acked(served.push(0, [1], session=session, seq=1, answered_below=1))
    assert served.values[0] == 3


# --- incarnations ---


def test_an_older_incarnation_changes_nothing_any_more() -> None:
    served = asp()
    served.push(0, [1])
    (drop,) = served.connect(0, incarnation=2, peer=20)
    assert isinstance(drop, Drop)
    assert drop.peer == 10
    assert refusal(served.push(0, [1]))[0] is ErrorCode.STALE_INCARNATION
    assert refusal(served.pull(0))[0] is ErrorCode.STALE_INCARNATION
    assert served.core.admit(0, 1) is ErrorCode.STALE_INCARNATION
    assert served.core.admit(0, 2) is ErrorCode.OK
    again = Push(request_id=1, seq=1, answered_below=1, table=1, begin=0, end=1, payload=bytes(4))
    assert acked(served.ask(20, again)), "numbers begin again"
    assert served.values[0] == 1


def test_the_scheduler_s_news_fences_a_worker_that_has_been_started_again() -> None:
    served = asp()
    member = Member(role="worker", rank=0, name="w", incarnation=2)
    state = ClusterState(
        epoch=7, members=[member], expected_servers=1, expected_workers=1, ready=True
    )
    (drop,) = served.core.order(state, 0.0)
    assert isinstance(drop, Drop)
    assert refusal(served.push(0, [1]))[0] is ErrorCode.STALE_INCARNATION
    served.connect(0, incarnation=2)
    assert reply(served.pull(0)).epoch == 7


def test_a_connection_that_was_welcomed_just_before_the_loss_is_dropped() -> None:
    served = asp()
    served.connect(0, incarnation=3, peer=20)
    (drop,) = served.connect(0, incarnation=2, peer=30)
    assert isinstance(drop, Drop)
    assert drop.peer == 30


def test_a_request_of_a_connection_that_has_ended_changes_nothing() -> None:
    served = asp()
    served.core.disconnected(10)
    assert refusal(served.push(0, [1]))[0] is ErrorCode.STALE_INCARNATION
    served.core.disconnected(10)


def left(rank: int, incarnation: int) -> ClusterState:
    member = Member(role="worker", rank=rank, name="w", incarnation=incarnation, state="left")
    return ClusterState(
        epoch=2, members=[member], expected_servers=1, expected_workers=1, ready=True
    )


def test_nothing_is_kept_of_a_worker_that_has_left() -> None:
    served = asp(workers=(0, 1))
    served.push(0, [1])
    served.core.order(left(0, 1), 0.0)
    assert acked(served.push(0, [1])), "its last bytes may come after the news"
    served.core.disconnected(10)
    assert not served.table.inboxes
    assert served.core.admit(0, 1) is ErrorCode.STALE_INCARNATION
    assert acked(served.push(1, [1]))
    served.core.order(left(0, 1), 0.0)
    served.core.validate()


def test_a_worker_that_left_and_came_back_is_not_forgotten_with_its_former_self() -> None:
    served = asp()
    served.push(0, [1])
    served.core.order(left(0, 1), 0.0)
    served.connect(0, incarnation=2, peer=20)
    first = Push(request_id=1, seq=1, answered_below=1, table=1, begin=0, end=1, payload=bytes(4))
    served.ask(20, first)
    served.core.disconnected(10)
    assert list(served.table.inboxes) == [(0, 0)]
    assert acked(served.ask(20, first))
    assert served.table.rule.version == 2


# --- initial values ---


def test_a_table_without_values_waits_for_them() -> None:
    served = asp(init="values", workers=(0, 1))
    assert refusal(served.pull(1))[0] is ErrorCode.NOT_INITIALISED
    assert refusal(served.push(1, [1]))[0] is ErrorCode.NOT_INITIALISED
    assert acked(served.assign(0, np.arange(4), flags=INITIAL))
    assert refusal(served.pull(1))[0] is ErrorCode.NOT_INITIALISED
    assert acked(served.assign(0, np.arange(4), begin=4, flags=INITIAL))
    assert values_of(reply(served.pull(1))) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert reply(served.pull(1)).version == 0


@pytest.mark.parametrize("init", ["values", "constant"])
def test_a_table_in_use_takes_no_initial_values(init: str) -> None:
    served = asp(init=init, workers=(0, 1))
    if init == "values":
        served.assign(0, np.zeros(8), flags=INITIAL)
        served.push(0, np.zeros(8))
    assert acked(served.assign(1, np.full(8, 9), flags=INITIAL))
    assert not served.values.any()


def test_values_that_are_whole_here_but_not_elsewhere_are_given_again() -> None:
    """The first initialiser died before it could say that all servers have them."""
    served = asp(init="values", workers=(0, 1))
    served.assign(0, np.full(8, 1), flags=INITIAL)
    served.assign(1, np.full(4, 2), flags=INITIAL)
    assert refusal(served.pull(1))[0] is ErrorCode.NOT_INITIALISED
    served.assign(1, np.full(4, 2), begin=4, flags=INITIAL)
    assert values_of(reply(served.pull(1))) == [2] * 8


@pytest.mark.parametrize("same_rank", [False, True])
def test_a_second_initialiser_starts_from_nothing(same_rank: bool) -> None:
    """The first one died half-way; perhaps it is the second one, started again."""
    served = asp(init="values", workers=(0, 1))
    served.assign(0, np.full(5, 1), flags=INITIAL)
    rank = 0 if same_rank else 1
    if same_rank:
        served.core.disconnected(10)
        served.connect(0, incarnation=2)
        served.seqs[0] = 0
    assert acked(served.assign(rank, np.full(4, 2), flags=INITIAL))
    assert refusal(served.pull(rank))[0] is ErrorCode.NOT_INITIALISED
    assert acked(served.assign(rank, np.full(4, 2), begin=4, flags=INITIAL))
    assert values_of(reply(served.pull(rank))) == [2] * 8


# --- orders ---


def opening(table: int = 2, **spec: Any) -> OpenShard:
    return OpenShard(table=table, spec=spec_of("v", 8, **spec), begin=0, end=8, workers=[0, 1])


def test_a_table_beyond_the_memory_is_refused_with_the_sum() -> None:
    served = Served(8, consistency="asp", limit=8 * 4 + 8 * 4 * 3 + 2 * 8 * 5)
    (ready, _) = served.core.order(opening(optimizer="adam"), 0.0)
    assert isinstance(ready, Tell)
    assert ready.message == ShardReady(table=2)
    assert served.core.memory_bytes == served.core.memory_limit_bytes
    (refused,) = served.core.order(opening(table=3, consistency="asp"), 0.0)
    assert isinstance(refused, Tell)
    assert isinstance(refused.message, ShardReady)
    assert refused.message.code == ErrorCode.OUT_OF_MEMORY
    assert refused.message.text == (
        "table v needs 32 bytes on this server (values 32); 208 of 208 are taken: add servers or "
        "raise the memory limit"
    )
    served.core.order(DropShard(table=2), 0.0)
    served.core.order(DropShard(table=2), 0.0)
    assert served.core.memory_bytes == 32
    (ready, _) = served.core.order(opening(table=4, consistency="asp"), 0.0)
    served.core.validate()


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"optimizer": "mine"}, "mine"),
        ({"optimizer": "sgd", "settings": {"lr": -1.0}}, "lr"),
        ({"init": "dice"}, "dice"),
        ({"consistency": "xyz"}, "xyz"),
        ({"reduce": "max"}, "max"),
    ],
)
def test_settings_that_this_server_does_not_understand_are_refused(
    fields: dict[str, Any], what: str
) -> None:
    served = asp()
    (refused,) = served.core.order(opening(**fields), 0.0)
    assert isinstance(refused, Tell)
    assert isinstance(refused.message, ShardReady)
    assert refused.message.code == ErrorCode.INVALID_SETTING
    assert what in refused.message.text
    assert list(served.core.tables) == [1]


def test_after_the_end_nobody_is_let_in_and_nothing_is_answered() -> None:
    """The goodbye tells the rest, after the scheduler knows."""
    served = asp()
    (ended,) = served.core.order(Shutdown(reason="all is done"), 0.0)
    assert ended == Ended(True, "all is done")
    assert served.push(0, [1]) == served.pull(0) == []
    assert served.core.admit(0, 1) is ErrorCode.SHUTTING_DOWN
    assert not served.values.any()


def test_a_message_that_a_server_does_not_know_is_noted() -> None:
    (note,) = asp().core.order(ShardReady(table=1), 0.0)
    assert isinstance(note, Note)
    assert note.fields == {"message": "ShardReady"}


def test_a_seal_may_not_name_keys_of_others() -> None:
    served = Served(begin=16)
    seal = Seal(request_id=1, seq=1, answered_below=1, table=1, begin=1, end=5)
    assert refusal(served.ask(10, seal))[0] is ErrorCode.KEY_RANGE_NOT_OWNED
    assert acked(served.seal(0, 0))
