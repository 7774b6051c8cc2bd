"""When a quorum closes a round, and with whom: the cases one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiops import BSP, Quorum
from aiops.consistency import consistency_from
from aiops.errors import ConfigError
from aiops.roles.actions import Action, Tell
from aiops.roles.quorum import FIRST_GRACE_S, GRACE_MAX_S, Patience, Policy, QuorumRounds, Share
from aiops_protocol.control import DeathQuery, DeathVerdict, RoundDecided, RoundHold, RoundRelease
from aiops_protocol.errors import ErrorCode
from served import CONTRIBUTED, FINAL, Served, acked, closings, refusal, replies, reply, values_of

F = np.float32


def rounds_of(workers: int, minimum: int = 2, grace_s: float | None = 1.0, **more: Any) -> Any:
    policy = Policy(minimum, more.get("spared", 0), grace_s, more.get("keeps_late", False))
    return QuorumRounds(list(range(workers)), policy)


def closed(rounds: QuorumRounds, now: float) -> list[list[int]]:
    found = []
    while rounds.is_due(now):
        shares = rounds.decide()
        rounds.close(shares)
        rounds.validate()
        found.append([share.rank for share in shares])
    return found


def test_enough_and_the_grace_or_all() -> None:
    rounds = rounds_of(3)
    rounds.seal(0, 0, 1.0, 10.0)
    assert closed(rounds, 99.0) == []
    assert rounds.deadline is None
    rounds.seal(1, 0, 1.0, 100.0)
    assert closed(rounds, 100.0) == []
    assert rounds.deadline == 101.0
    assert closed(rounds, 100.9) == []
    assert closed(rounds, 101.0) == [[0, 1]]
    assert rounds.missing == [0, 1, 2]
    for rank in range(3):
        rounds.seal(rank, 1, 1.0, 102.0)
    assert closed(rounds, 102.0) == [[0, 1, 2]], "all are there: nobody is waited for"


def test_who_pushed_nothing_is_done_but_not_a_contributor() -> None:
    rounds = rounds_of(3, grace_s=0.0)
    rounds.seal(0, 0, 1.0, 0.0)
    rounds.seal(1, 0, 0.0, 0.0)
    assert closed(rounds, 9.0) == []
    rounds.seal(2, 0, 0.0, 9.0)
    assert closed(rounds, 9.0) == [[0, 1, 2]]


def test_with_fewer_workers_than_the_minimum_all_of_them_are_enough() -> None:
    rounds = rounds_of(3, minimum=3)
    rounds.seal(0, 0, 1.0, 0.0)
    rounds.leave(1)
    rounds.leave(2)
    assert closed(rounds, 0.0) == [[0]]


def test_all_but_the_slowest() -> None:
    rounds = rounds_of(4, minimum=0, spared=1, grace_s=0.0)
    for rank in (3, 1):
        rounds.seal(rank, 0, 1.0, 0.0)
        assert closed(rounds, 5.0) == []
    rounds.seal(0, 0, 0.0, 5.0)
    assert closed(rounds, 5.0) == [[0, 1, 3]]


@pytest.mark.parametrize("keeps_late", [False, True])
def test_what_is_late_is_dropped_or_counts_in_the_next(keeps_late: bool) -> None:
    rounds = rounds_of(3, grace_s=0.0, keeps_late=keeps_late)
    rounds.seal(0, 0, 1.0, 0.0)
    rounds.seal(1, 0, 1.0, 0.0)
    assert closed(rounds, 0.0) == [[0, 1]]
    rounds.seal(2, 0, 4.0, 1.0)
    assert rounds.late == {2: 1}
    assert closed(rounds, 1.0) == [], "a late one does not make a quorum"
    rounds.seal(0, 1, 1.0, 2.0)
    rounds.seal(1, 1, 1.0, 2.0)
    assert rounds.is_due(2.0)
    late = [Share(2, 0, 4.0)] if keeps_late else []
    assert rounds.decide() == [Share(0, 1, 1.0), Share(1, 1, 1.0), *late]


def test_who_was_away_goes_on_with_the_newest_round() -> None:
    rounds = rounds_of(3, grace_s=0.0)
    for number in range(5):
        for rank in (0, 1):
            rounds.seal(rank, number, 1.0, 0.0)
        assert closed(rounds, 0.0) == [[0, 1]]
    rounds.seal(2, 5, 1.0, 0.0)
    assert rounds.missing == [0, 1]
    rounds.seal(0, 5, 1.0, 0.0)
    assert closed(rounds, 0.0) == [[0, 2]]


def test_patience_is_the_95th_percentile_of_lateness() -> None:
    patience = Patience(None)
    assert patience.grace_s == FIRST_GRACE_S
    for late_s in range(1, 21):
        patience.note(late_s / 10)
    assert patience.grace_s == 1.9
    for _ in range(64):
        patience.note(0.0)
    assert patience.grace_s == 0.0
    for _ in range(64):
        patience.note(1e6)
    assert patience.grace_s == GRACE_MAX_S
    assert Patience(0.25).grace_s == 0.25


def test_patience_learns_from_those_who_come_too_late() -> None:
    rounds = rounds_of(3, minimum=2, grace_s=None)
    for number in range(40):
        now = 10.0 * number
        rounds.seal(0, number, 1.0, now)
        rounds.seal(1, number, 1.0, now)
        assert not rounds.is_due(now) or number > 7
        closed(rounds, now + rounds.patience.grace_s)
        rounds.seal(2, number, 1.0, now + 3.0)
        closed(rounds, now + 3.0)
    assert rounds.patience.grace_s == 3.0, "a third of all come 3 s late: it waits for them"


# --- at a server ---


def quorum(workers: tuple[int, ...] = (0, 1, 2), **settings: Any) -> Served:
    return Served(2, workers=workers, consistency="quorum", quorum={"minimum": 2} | settings)


def decided(actions: list[Action]) -> list[RoundDecided]:
    return [
        action.message
        for action in actions
        if isinstance(action, Tell) and isinstance(action.message, RoundDecided)
    ]


def test_the_grace_ends_by_itself() -> None:
    served = quorum(grace_s=0.5)
    for rank in (0, 1):
        served.push(rank, [rank + 1] * 2)
        served.seal(rank, 0)
    assert served.core.next_deadline() == 0.5
    assert served.pull(0, clock=1) == []
    assert served.core.tick(0.4) == []
    actions = served.core.tick(0.5)
    assert closings(actions) == [(1, 2)]
    assert decided(actions) == [], "there is no other part to be told"
    assert values_of(replies(actions, 10)[0]) == [1.5, 1.5]
    assert served.core.next_deadline() is None


@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_late_push_is_answered_with_the_newer_version(late: str) -> None:
    served = quorum(grace_s=0, late=late)
    served.push(2, [30, 30])
    for rank in (0, 1):
        served.push(rank, [rank + 1] * 2)
        served.seal(rank, 0)
    served.core.tick(0.0)
    answer = reply(served.push(2, [3, 3]))
    assert answer.version == 1
    assert acked(served.seal(2, 0))
    for rank in (0, 1):
        served.push(rank, [6, 6], clock=1)
        served.seal(rank, 1)
    expected = 1.5 + (6 if late == "drop" else (6 + 6 + 33) / 3)
    assert values_of(reply(served.pull(0, clock=2))) == [expected] * 2
    assert served.table.rule.late == {2: 1}


def test_a_round_that_others_decide_on_waits_for_their_word() -> None:
    served = quorum(grace_s=0)
    rule: Any = served.table.rule
    rule.rounds.leads = False
    for rank in (0, 1, 2):
        served.push(rank, [rank + 1] * 2)
        served.seal(rank, 0)
    assert served.core.tick(9.0) == []
    assert served.push(0, [9, 9], clock=1) == []
    told = RoundDecided(table=1, version=0, shares=[(0, 0, 3.0), (2, 0, 1.0)])
    actions = served.core.order(told, 9.0)
    assert closings(actions) == [(1, 2)]
    assert [r.seq for r in replies(actions)] == [3], "the push to the round after it"
    assert values_of(reply(served.pull(0, clock=1))) == [1.5, 1.5]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_a_lost_worker_has_sealed_at_the_lead_counts(sealed: bool) -> None:
    served = quorum(workers=(0, 1), minimum=2)
    served.push(0, [1, 1])
    served.push(1, [5, 5])
    if sealed:
        served.seal(1, 0)
    served.core.order(DeathQuery(worker=1, incarnation=1), 0.0)
    served.core.order(DeathVerdict(worker=1, sealed={1: (int(sealed), 0)}), 0.0)
    served.core.validate()
    served.seal(0, 0)
    assert values_of(reply(served.pull(0, clock=1))) == [3.0 if sealed else 1.0] * 2


@pytest.mark.parametrize("lead_knows", [True, False])
def test_who_has_left_here_may_not_have_left_at_the_lead(lead_knows: bool) -> None:
    """Its last seals came here, and it died before they came to the lead."""
    served = quorum(workers=(0, 1), minimum=2)
    rule: Any = served.table.rule
    rule.rounds.leads = False
    served.push(1, [5, 5])
    served.seal(1, 0)
    served.seal(1, 1, FINAL)
    served.core.order(DeathQuery(worker=1, incarnation=1), 0.0)
    verdict = {} if lead_knows else {1: (0, 0)}
    served.core.order(DeathVerdict(worker=1, sealed=verdict), 0.0)
    assert list(rule._contributions) == ([(1, 0)] if lead_knows else [])
    served.core.order(DeathVerdict(worker=1, sealed={1: (0, 0)}), 0.0)  # another one, that finished
    assert list(rule._contributions) == ([(1, 0)] if lead_knows else [])


def test_who_comes_late_enters_at_an_agreed_round() -> None:
    served = quorum(workers=(0, 1), minimum=1, grace_s=0)
    served.core.order(RoundHold(table=1, worker=2), 0.0)
    served.connect(2)
    for clock in range(3):
        served.push(0, [1, 1], clock=clock)
        served.seal(0, clock)
    assert served.table.rule.version == 1, "at most the open one closes meanwhile"
    assert served.push(2, [1, 1], clock=1) == []
    served.core.order(RoundRelease(table=1, worker=2, from_version=1), 0.0)
    assert served.table.rule.version == 3, "and now those that had waited"
    assert refusal(served.push(0, [1, 1], clock=0))[0] is ErrorCode.ALREADY_SEALED


def test_assignments_and_leaving() -> None:
    served = quorum(workers=(0, 1), minimum=2, grace_s=0)
    served.assign(0, [7, 7])
    served.push(1, [1, 1])
    served.seal(0, 0, 0)
    served.seal(1, 0, CONTRIBUTED)
    assert values_of(reply(served.pull(0, clock=1))) == [8, 8]
    served.seal(0, 1, FINAL)
    served.push(1, [1, 1], clock=1)
    served.seal(1, 1)
    assert values_of(reply(served.pull(1, clock=2))) == [9, 9]
    assert served.core.rounds() == {"w": (2, [1])}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quorum(minimum=0), "minimum is 0"),
        (lambda: Quorum(minimum=2, grace_s=-1), "grace_s is -1"),
        (lambda: Quorum(minimum=2, grace_s=np.nan), "grace_s is nan"),
        (lambda: Quorum(minimum=2, late="never"), "late is 'never'; it must be \"drop\""),  # type: ignore[arg-type]
        (lambda: Quorum(minimum=4).check_workers(3), "can never be reached"),
        (lambda: Quorum(4, reduce="trimmed_mean", trim=2).check_workers(9), "nothing of 4"),
        (lambda: BSP(drop_slowest=-1), "drop_slowest is -1"),
        (lambda: BSP(drop_slowest=2).check_workers(2), "leaves nobody"),
        (lambda: consistency_from("quorum"), "or quorum:N"),
    ],
)
def test_nonsense_is_refused_in_the_words_of_the_call(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_what_is_written_is_what_travels() -> None:
    assert consistency_from("quorum:3") == Quorum(minimum=3)
    assert Quorum(3).settings() == {
        "minimum": 3,
        "grace_s": None,
        "late": "drop",
        "reduce": "mean",
    }
    assert BSP(drop_slowest=1).settings() == {"reduce": "mean", "drop_slowest": 1}
    Quorum(3).check_workers(3)
    Quorum(3).check_workers(0)
    BSP(drop_slowest=1).check_workers(2)
