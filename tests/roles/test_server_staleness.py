"""SSP at one server: the gate in pull and push, who is told of whom, and workers that go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.errors import ConfigError
from aiops.roles.actions import Tell
from aiops.roles.bounded import SspRule
from aiops.roles.floor import Floor
from aiops_protocol.control import DeathQuery, DeathVerdict, RoundHeld, RoundHold, RoundRelease
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Ack, Flag, Parked, Value
from served import FINAL, Served, acked, closings, refusal, replies, reply, values_of

F = np.float32


def ssp(staleness: int, workers: tuple[int, ...] = (0, 1), **settings: Any) -> Served:
    return Served(2, workers=workers, consistency="ssp", staleness=staleness, **settings)


def floor_of(served: Served) -> int:
    rule = served.table.rule
    assert isinstance(rule, SspRule)
    return rule.floor.value


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_gate_opens_exactly_when_the_slowest_has_done_enough(staleness: int) -> None:
    served = ssp(staleness)
    for clock in range(staleness + 1):
        assert values_of(reply(served.pull(0, clock=clock))) == [clock, clock]
        assert acked(served.push(0, [1, 1], clock=clock)), "it takes effect at once"
        assert acked(served.seal(0, clock))
    ahead = staleness + 1
    assert served.pull(0, clock=ahead) == []
    assert served.push(0, [1, 1], clock=ahead) == []
    answers = served.seal(1, 0)
    assert floor_of(served) == 1
    assert [type(r) for r in replies(answers, 10)] == [Value, Ack]
    assert values_of(replies(answers, 10)[0]) == [ahead, ahead]
    assert closings(answers) == [], "there are no rounds"


def test_a_pull_of_another_version_later_never_goes_back() -> None:
    """Whoever waits sees all that was there when the gate opened, its own pushes included."""
    served = ssp(0)
    served.push(0, [1, 1], clock=0)
    served.seal(0, 0)
    assert served.pull(0, clock=1) == []
    served.push(1, [10, 10], clock=0)
    (value,) = replies(served.seal(1, 0), 10)
    assert values_of(value) == [11, 11]
    assert value.version == 2


def test_a_parked_push_that_is_sent_again_is_answered_once() -> None:
    served = ssp(0)
    served.seal(0, 0)
    assert served.push(0, [1, 1], clock=1) == []
    for _ in range(5):
        again: dict[str, Any] = {"seq": 2, "answered_below": 2, "request_id": 2, "clock": 1}
        assert served.push(0, [1, 1], **again) == []
    answers = served.seal(1, 0)
    assert [r.seq for r in replies(answers, 10)] == [2]
    assert values_of(reply(served.pull(1, clock=1))) == [1, 1]


def test_whoever_waits_is_told_of_the_slowest_and_by_how_much() -> None:
    served = ssp(1, workers=(0, 1, 2))
    served.seal(2, 0)
    for clock in range(3):
        served.seal(0, clock)
    served.pull(0, clock=3)
    (notice,) = replies(served.core.tick(2.0))
    assert isinstance(notice, Parked)
    assert notice.count == 2
    assert np.frombuffer(notice.payload, "<u4").tolist() == [1, 2, 3, 2]
    assert served.core.rounds() == {"w": (0, [1])}


@pytest.mark.parametrize("leaves", ["in order", "lost", "never opened it"])
def test_whoever_goes_is_waited_for_no_more(leaves: str) -> None:
    served = ssp(0)
    served.push(1, [5, 5], clock=0)
    served.seal(0, 0)
    assert served.pull(0, clock=1) == []
    if leaves == "in order":
        answers = served.seal(1, 0, FINAL)
    elif leaves == "lost":
        answers = served.core.order(DeathQuery(worker=1, incarnation=1), 1.0)
    else:
        verdict = DeathVerdict(worker=1, sealed={1: (0, 0)})
        answers = served.core.order(verdict, 1.0)
    served.core.validate()
    assert values_of(replies(answers, 10)[0]) == [5, 5], "what it has pushed stays"


def test_a_parked_push_of_a_lost_worker_is_not_applied_afterwards() -> None:
    served = ssp(0, workers=(0, 1))
    served.seal(0, 0)
    assert served.push(0, [1, 1], clock=1) == []
    served.core.order(DeathQuery(worker=0, incarnation=1), 1.0)
    served.seal(1, 0)
    served.core.order(DeathVerdict(worker=0, sealed={}), 1.0)
    served.core.validate()
    assert values_of(reply(served.pull(1, clock=1))) == [0, 0]


def test_who_comes_late_is_counted_from_an_agreed_clock_on() -> None:
    served = ssp(0, workers=(0, 1), members=(0,))
    served.seal(0, 0)
    held = served.core.order(RoundHold(table=1, worker=1), 0.0)
    assert [a.message for a in held if isinstance(a, Tell)] == [
        RoundHeld(table=1, worker=1, version=1, idle=False)
    ]
    assert served.push(1, [3, 3], clock=2) == [], "it has overtaken the scheduler's word"
    served.seal(0, 1)
    served.seal(0, 2)
    assert floor_of(served) == 2, "held there"
    assert served.pull(0, clock=3) == []
    answers = served.core.order(RoundRelease(table=1, worker=1, from_version=2), 0.0)
    assert [type(r) for r in replies(answers)] == [Ack]
    assert values_of(replies(served.seal(1, 2), 10)[0]) == [3, 3]


def test_a_subscriber_hears_of_pushes_that_had_waited() -> None:
    served = ssp(0, workers=(0, 1, 2), members=(0, 1))
    served.seal(0, 0)
    served.push(0, [1, 1], clock=1)
    assert served.pull(2, flags=int(Flag.BASE_VERSION), base_version=0) == []
    (value,) = replies(served.seal(1, 0), 12)
    assert values_of(value) == [1, 1]


def test_who_takes_no_part_can_pull_and_not_push() -> None:
    served = ssp(0, workers=(0, 1), members=(0,))
    assert values_of(reply(served.pull(1))) == [0, 0]
    assert refusal(served.push(1, [1, 1]))[0] is ErrorCode.NOT_A_MEMBER
    assert acked(served.seal(1, 0))


def test_a_push_to_a_sealed_clock_is_refused() -> None:
    served = ssp(2)
    served.seal(0, 0)
    assert refusal(served.push(0, [1, 1], clock=0))[0] is ErrorCode.ALREADY_SEALED


def test_a_rule_that_is_not_known_is_refused() -> None:
    served = Served(2, consistency="ssp", staleness=None)
    (told,) = served.opening
    assert isinstance(told, Tell)
    assert "not known here" in str(told.message)


@pytest.mark.parametrize("staleness", [-1, 1.5, True, "3", 10**7])
def test_nonsense_is_refused_where_it_is_written(staleness: Any) -> None:
    from aiops import SSP

    with pytest.raises(ConfigError, match="SSP: staleness is"):
        SSP(staleness=staleness)


# --- the floor against its definition ---

steps = st.lists(
    st.tuples(st.sampled_from(["complete", "remove", "hold", "admit"]), st.integers(0, 3)),
    max_size=40,
)


@given(steps=steps, workers=st.integers(0, 4))
def test_the_floor_is_the_least_of_those_who_take_part_and_never_falls(
    steps: list[tuple[str, int]], workers: int
) -> None:
    floor = Floor(list(range(workers)))
    model = dict.fromkeys(range(workers), 0)
    holds: dict[int, int] = {}
    former = 0
    for action, rank in steps:
        if action == "complete" and rank in model:
            floor.complete(rank)
            model[rank] += 1
        elif action == "remove":
            floor.remove(rank)
            model.pop(rank, None)
            holds.pop(rank, None)
        elif action == "hold" and rank not in model:
            at, idle = floor.hold(rank)
            assert (at, idle) == (floor.value, not model)
            holds.setdefault(rank, at if idle else at + 1)
        elif action == "admit" and rank in holds:
            model[rank] = holds.pop(rank)
            floor.admit(rank, model[rank])
        while floor.can_rise:
            floor.rise()
        floor.validate()
        least = min(model.values(), default=former)
        assert floor.value == max(former, min([least, *holds.values()]))
        former = floor.value
        assert floor.below(floor.value + 1).keys() == {
            rank for rank, at in model.items() if at == floor.value
        }
