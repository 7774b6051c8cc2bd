"""What waits at a server by rule of consistency, and what becomes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiops.roles.actions import Tell
from aiops.roles.parking import PARKED_BYTES_MAX
from aiops_protocol.control import (
    DeathQuery,
    DeathVerdict,
    LossReport,
    RoundHeld,
    RoundHold,
    RoundRelease,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Parked, Push, Seal, Value
from served import CONTRIBUTED, FINAL, Served, acked, closings, refusal, replies, reply, values_of

F = np.float32


def told(actions: list[Any]) -> Any:
    """The only message to the scheduler among actions."""
    (message,) = [action.message for action in actions if isinstance(action, Tell)]
    return message


def round_trip(served: Served, *ranks: int, clock: int, value: float = 1) -> list[Any]:
    """Push and seal for these workers; the actions of the last seal."""
    actions: list[Any] = []
    for rank in ranks:
        assert acked(served.push(rank, np.full(8, value), clock=clock))
        actions = served.seal(rank, clock)
    return actions


def test_pushes_take_effect_together_when_all_have_sealed() -> None:
    served = Served(workers=(0, 1))
    served.push(0, np.full(8, 1))
    served.push(0, np.full(8, 2))
    served.push(1, np.full(4, 5), begin=4)
    assert values_of(reply(served.pull(0))) == [0] * 8
    assert closings(served.seal(0, 0)) == []
    actions = served.seal(1, 0)
    assert closings(actions) == [(1, 2)]
    assert values_of(reply(served.pull(0, clock=1))) == [1.5] * 4 + [4] * 4


def test_contributions_can_be_summed_instead() -> None:
    served = Served(workers=(0, 1), reduce="sum")
    round_trip(served, 0, 1, clock=0, value=3)
    assert (served.values == 6).all()


def test_pulls_wait_for_the_version_that_they_name() -> None:
    served = Served(workers=(0, 1))
    round_trip(served, 0, clock=0)
    assert served.pull(0, clock=1) == []
    actions = round_trip(served, 1, clock=0)
    (value,) = replies(actions, 10)
    assert isinstance(value, Value)
    assert value.version == 1
    assert not served.table.pulls
    assert served.core._callers[10].pulls_waiting == 0


def test_a_push_to_the_next_round_waits_and_is_applied_in_order() -> None:
    served = Served(workers=(0, 1))
    round_trip(served, 0, clock=0)
    for value in (1.0, 1e8, -1e8):  # a sum that shows its order
        assert served.push(0, np.full(8, value), clock=1) == []
    assert served.seal(0, 1) == [], "behind its own pushes"
    actions = round_trip(served, 1, clock=0)
    assert [r.seq for r in replies(actions, 10)] == [3, 4, 5, 6]
    assert not served.table.parked
    round_trip(served, 1, clock=1, value=0)
    assert (served.values == 1 + F(F(1.0 + 1e8) - 1e8) / 2).all()


def test_a_seal_without_pushes_need_not_wait() -> None:
    served = Served(workers=(0, 1))
    for clock in range(3):
        assert acked(served.seal(0, clock, flags=0))
    actions = []
    for clock in range(3):
        actions += round_trip(served, 1, clock=clock)
    assert closings(actions) == [(1, 1), (2, 1), (3, 1)]


def test_one_seal_can_close_many_rounds_and_each_pull_gets_a_whole_version() -> None:
    """Values that are lent for an answer must not change before it is sent.

    Worker 1 dies while others are ahead, so several rounds close at once; momentum moves the
    values even where nobody pushed to this server.
    """
    served = Served(workers=(0, 1, 2), members=(0, 1), optimizer="momentum", settings={"lr": 1.0})
    served.push(0, np.full(8, 1))
    for clock in range(4):
        served.seal(0, clock)
        assert served.pull(2, clock=clock + 1) == []
    served.core.order(DeathQuery(worker=1, incarnation=1), 0.0)
    actions = served.core.order(DeathVerdict(worker=1, sealed={1: (0, 0)}), 0.0)
    assert closings(actions) == [(1, 1), (2, 1), (3, 1), (4, 1)]
    found = replies(actions, 12)
    assert [r.version for r in found] == [1, 2, 3, 4]
    velocity, value, expected = 1.0, -1.0, []
    for _ in found:
        expected.append(F(value))
        velocity *= 0.9
        value -= velocity
    for answer, wanted in zip(found, expected, strict=True):
        assert np.allclose(values_of(answer), wanted)


def test_assignments_come_before_gradients_and_the_highest_rank_last() -> None:
    served = Served(workers=(0, 1))
    served.assign(1, np.full(8, 20))
    served.assign(0, np.full(8, 10))
    served.assign(0, np.full(2, 11))
    served.push(0, np.full(8, 1))
    served.seal(0, 0)
    assert closings(served.seal(1, 0, flags=0)) == [(1, 1)]
    assert (served.values == 21).all()


def test_a_sealed_clock_takes_nothing_more() -> None:
    served = Served(workers=(0, 1))
    served.seal(0, 0)
    assert refusal(served.push(0, [1]))[0] is ErrorCode.ALREADY_SEALED
    assert refusal(served.assign(0, [1]))[0] is ErrorCode.ALREADY_SEALED
    assert refusal(served.seal(0, 0))[0] is ErrorCode.ALREADY_SEALED


def test_who_takes_no_part_may_read_and_seal_but_not_push() -> None:
    served = Served(workers=(0, 1), members=(0,))
    assert refusal(served.push(1, [1]))[0] is ErrorCode.NOT_A_MEMBER
    assert acked(served.seal(1, 0))
    served.seal(0, 0, flags=FINAL)
    assert refusal(served.push(0, [1]))[0] is ErrorCode.NOT_A_MEMBER
    assert values_of(reply(served.pull(0))) == [0] * 8


def test_what_was_not_sealed_before_leaving_is_discarded() -> None:
    served = Served(workers=(0, 1))
    served.push(0, np.full(8, 100))
    served.seal(0, 0, flags=FINAL)
    assert closings(round_trip(served, 1, clock=0)) == [(1, 1)]
    assert (served.values == 1).all()


# --- repeats ---


def test_a_waiting_push_that_is_sent_again_is_applied_and_answered_once() -> None:
    served = Served(workers=(0, 1))
    served.seal(0, 0, flags=0)
    push = served.mutation(Push, 0, clock=1, begin=0, end=8, payload=np.ones(8, F).tobytes())
    assert served.ask(10, push) == []
    served.core.disconnected(10)
    served.connect(0, peer=20)
    assert served.ask(20, push) == []
    actions = served.seal(1, 0, flags=0)
    assert [r.request_id for r in replies(actions, 20)] == [push.request_id]
    assert acked(served.ask(20, push))
    served.seal(1, 1, flags=0)
    served.ask(20, served.mutation(Seal, 0, clock=1, flags=CONTRIBUTED))
    assert (served.values == 1).all()


def test_late_bytes_of_a_lost_connection_do_not_take_the_answer_away() -> None:
    """The server may read the old connection after the new one, and then its end."""
    served = Served(workers=(0, 1))
    served.seal(0, 0, flags=0)
    push = served.mutation(Push, 0, clock=1, begin=0, end=8, payload=np.ones(8, F).tobytes())
    served.connect(0, peer=20)
    served.ask(20, push)
    served.ask(10, push)
    served.core.disconnected(10)
    assert [r.seq for r in replies(served.seal(1, 0, flags=0), 20)] == [2]


def test_a_push_that_its_worker_gave_up_waiting_for_still_takes_effect_once() -> None:
    """The next request says that its number counts as answered."""
    served = Served(workers=(0, 1))
    served.seal(0, 0, flags=0)
    served.push(0, np.full(8, 4), clock=1)
    served.push(0, np.full(8, 8), clock=1)
    actions = round_trip(served, 1, clock=0)
    assert [r.seq for r in replies(actions, 10)] == [2, 3]
    served.seal(0, 1)
    round_trip(served, 1, clock=1, value=0)
    assert (served.values == 1 + 12 / 2).all()


def test_parked_mutations_outlive_a_connection() -> None:
    served = Served(workers=(0, 1))
    served.seal(0, 0, flags=0)
    served.push(0, np.full(8, 4), clock=1)
    served.core.disconnected(10)
    round_trip(served, 1, clock=0)
    assert not served.table.parked
    served.connect(0)
    assert acked(served.push(0, np.full(8, 4), clock=1, seq=2, answered_below=2)), "the repeat"
    served.seal(0, 1)
    served.seal(1, 1, flags=0)
    assert (served.values == 5).all()


# --- limits and notices ---


def test_what_a_worker_may_have_waiting_is_bounded() -> None:
    size = PARKED_BYTES_MAX // 16
    served = Served(size, workers=(0, 1))
    served.seal(0, 0, flags=0)
    ones = np.ones(size, F)
    for _ in range(4):
        assert served.push(0, ones, clock=1) == []
    code, text = refusal(served.push(0, ones, clock=1))
    assert code is ErrorCode.OUT_OF_WINDOW
    assert str(PARKED_BYTES_MAX) in text
    round_trip(served, clock=0)
    served.seal(1, 0, flags=0)
    assert not served.table.parked
    assert acked(served.push(0, ones, clock=1))


def test_pulls_that_wait_are_bounded_per_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiops.roles.caller.PULLS_WAITING_MAX", 3)
    served = Served(workers=(0, 1))
    for number in range(3):
        assert served.pull(0, clock=1, request_id=number) == []
    assert refusal(served.pull(0, clock=1))[0] is ErrorCode.OUT_OF_WINDOW
    assert served.pull(1, clock=1) == []
    served.core.disconnected(10)
    assert len(served.table.pulls) == 1
    served.connect(0)
    assert served.pull(0, clock=1) == []


def test_who_waits_is_told_once_a_second_for_whom() -> None:
    served = Served(workers=(0, 1, 2))
    round_trip(served, 0, clock=0)
    served.pull(0, clock=1)
    served.push(0, [1], clock=1)
    assert served.core.tick(0.9) == []
    notices = served.core.tick(1.0)
    assert [type(r) for r in replies(notices)] == [Parked, Parked]
    assert {r.request_id for r in replies(notices)} == {901, 3}
    for notice in replies(notices):
        assert np.frombuffer(notice.payload, "<u4").tolist() == [1, 2, 1, 1]
        assert notice.count == 2
    assert served.core.tick(1.5) == []
    round_trip(served, 1, clock=0)
    (first, _) = replies(served.core.tick(2.0))
    assert np.frombuffer(first.payload, "<u4").tolist() == [2, 1]
    served.core.disconnected(10)
    assert served.core.tick(9.0) == []


def test_status_says_whom_the_open_round_waits_for() -> None:
    served = Served(workers=(0, 1))
    round_trip(served, 0, clock=0)
    assert served.core.rounds() == {"w": (0, [1])}


# --- coming and going ---


def test_a_latecomer_s_first_push_may_overtake_the_scheduler_s_word() -> None:
    """It hears from the scheduler at the same time as the servers, over another connection."""
    served = Served(workers=(0, 1), members=(0,))
    held = told(served.core.order(RoundHold(table=1, worker=1), 0.0))
    assert held == RoundHeld(table=1, worker=1, version=0)
    assert served.push(1, np.full(8, 3), clock=1) == []
    assert served.seal(1, 1) == []
    assert closings(round_trip(served, 0, clock=0)) == [(1, 1)]
    actions = served.core.order(RoundRelease(table=1, worker=1, from_version=1), 0.0)
    served.core.validate()
    assert [r.seq for r in replies(actions, 11)] == [1, 2]
    assert closings(round_trip(served, 0, clock=1)) == [(2, 2)]
    assert (served.values == 1 + 2).all()


def test_a_latecomer_to_an_idle_table_begins_with_the_open_round() -> None:
    served = Served(workers=(0,), members=())
    held = told(served.core.order(RoundHold(table=1, worker=0), 0.0))
    assert held == RoundHeld(table=1, worker=0, version=0, idle=True)
    served.core.order(RoundRelease(table=1, worker=0, from_version=0), 0.0)
    assert closings(round_trip(served, 0, clock=0)) == [(1, 1)]


def test_a_latecomer_that_is_lost_before_it_has_entered_holds_nothing_up() -> None:
    """It took part in nothing, so no verdict concerns this table."""
    served = Served(workers=(0,))
    served.core.order(RoundHold(table=1, worker=1), 0.0)
    assert closings(round_trip(served, 0, clock=0)) == [(1, 1)]
    assert closings(round_trip(served, 0, clock=1)) == []
    actions = served.core.order(DeathQuery(worker=1, incarnation=1), 0.0)
    assert closings(actions) == [(2, 1)]
    assert told(actions) == LossReport(worker=1, sealed={})


def test_a_lost_worker_is_not_heard_any_more_not_even_in_what_is_under_way() -> None:
    """A seal after the report would count here and nowhere else."""
    served = Served(workers=(0, 1))
    served.push(0, np.full(8, 7))
    report = told(served.core.order(DeathQuery(worker=0, incarnation=1), 0.0))
    assert report == LossReport(worker=0, sealed={1: (0, 0)})
    assert refusal(served.seal(0, 0))[0] is ErrorCode.STALE_INCARNATION
    assert closings(round_trip(served, 1, clock=0)) == []
    actions = served.core.order(DeathVerdict(worker=0, sealed={1: (0, 0)}), 0.0)
    assert closings(actions) == [(1, 1)]
    assert (served.values == 1).all()
    assert list(served.table.inboxes) == [(1, 0)]


def test_a_contribution_that_another_shard_has_sealed_counts_here_too() -> None:
    served = Served(workers=(0, 1))
    served.push(0, np.full(8, 7))
    round_trip(served, 1, clock=0)
    served.core.order(DeathQuery(worker=0, incarnation=1), 0.0)
    actions = served.core.order(DeathVerdict(worker=0, sealed={1: (1, 1)}), 0.0)
    assert closings(actions) == [(1, 2)]
    assert (served.values == 4).all()


def test_what_a_lost_worker_had_waiting_is_dropped() -> None:
    served = Served(workers=(0, 1))
    served.seal(0, 0, flags=0)
    served.push(0, np.full(8, 7), clock=1)
    served.core.order(DeathQuery(worker=0, incarnation=1), 0.0)
    served.core.order(DeathVerdict(worker=0, sealed={1: (1, 0)}), 0.0)
    assert not served.table.parked
    round_trip(served, 1, clock=0)
    round_trip(served, 1, clock=1)
    assert (served.values == 2).all()
    served.core.validate()


def test_a_verdict_may_concern_tables_of_which_this_server_has_no_part() -> None:
    served = Served(workers=(0, 1))
    served.core.order(DeathQuery(worker=0, incarnation=1), 0.0)
    served.core.order(DeathVerdict(worker=0, sealed={1: (0, 0), 2: (5, 1)}), 0.0)
    assert told(served.core.order(RoundHold(table=3, worker=0), 0.0)).idle
    assert served.core.order(RoundRelease(table=3, worker=0, from_version=0), 0.0) == []
    served.core.validate()


def test_who_comes_back_finds_its_session_empty_and_its_work_not_forgotten() -> None:
    """Its requests may come before the servers hear the verdict about its former self."""
    served = Served(consistency="asp", workers=(0,))
    served.push(0, np.full(8, 1))
    served.core.order(DeathQuery(worker=0, incarnation=1), 0.0)
    served.connect(0, incarnation=2, peer=20)
    push = Push(request_id=1, seq=1, answered_below=1, table=1, begin=0, end=1, payload=bytes(4))
    assert acked(served.ask(20, push))
    served.core.order(DeathVerdict(worker=0, sealed={}), 0.0)
    assert acked(served.ask(20, push))
    assert served.table.rule.version == 2, "the repeat is still known as one"


def test_a_worker_that_finished_without_opening_the_table_is_not_waited_for() -> None:
    served = Served(workers=(0, 1))
    round_trip(served, 0, clock=0)
    actions = served.core.order(DeathVerdict(worker=1, sealed={1: (0, 0)}), 0.0)
    assert closings(actions) == [(1, 1)]
    assert acked(served.push(0, [1], clock=1))


# --- memory ---


def test_latecomers_take_over_the_places_of_those_who_are_gone() -> None:
    size = 100
    limit = 4 * size + 5 * size  # values, and the place of one contribution
    served = Served(size, workers=(0,), limit=limit)
    ones = np.ones(size, F)
    for rank in range(1, 5):
        served.push(rank - 1, ones, clock=rank - 1)
        served.seal(rank - 1, rank - 1)
        served.seal(rank - 1, rank, flags=FINAL)
        assert told(served.core.order(RoundHold(table=1, worker=rank), 0.0)).idle
        served.core.order(RoundRelease(table=1, worker=rank, from_version=rank), 0.0)
        served.connect(rank)
    assert (served.values == 4).all()
    assert served.core.memory_bytes == limit


def test_what_a_round_needs_beyond_the_memory_is_refused_by_name() -> None:
    size = 100
    served = Served(size, workers=(0, 1), members=(0,), limit=4 * size + 5 * size + 1)
    served.core.order(RoundHold(table=1, worker=1), 0.0)
    served.core.order(RoundRelease(table=1, worker=1, from_version=1), 0.0)
    served.push(0, np.ones(size), clock=0)
    assert refusal(served.assign(0, [1], clock=0))[0] is ErrorCode.OUT_OF_MEMORY
    served.seal(0, 0)
    served.push(0, np.ones(size), clock=1)
    code, text = refusal(served.push(1, np.ones(size), clock=1))
    assert code is ErrorCode.OUT_OF_MEMORY
    assert "memory" in text


def test_assignments_give_their_memory_back() -> None:
    served = Served(8, workers=(0, 1))
    before = served.core.memory_bytes
    for clock in range(3):
        served.assign(0, np.ones(8), clock=clock)
        served.assign(1, np.ones(8), clock=clock)
        assert served.core.memory_bytes == before + 80
        served.seal(0, clock, flags=0)
        served.seal(1, clock, flags=0)
        assert served.core.memory_bytes == before
    served.assign(0, np.ones(8), clock=3)
    served.seal(0, 3, flags=FINAL)
    assert served.core.memory_bytes == before
