"""Rings at the scheduler: who is let in, and one verdict for all when a generation ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.actions import Action, Tell
from aiops.roles.membership import Node
from aiops.roles.rings import Rings
from aiops_protocol.limits import RINGS_MAX
from aiops_protocol.ring_control import (
    RingEnter,
    RingFormed,
    RingHalt,
    RingHalted,
    RingMissing,
    RingVerdict,
    RingWanted,
)


def node(rank: int) -> Node:
    made = Node("worker", rank, f"worker-{rank}", automatic=False)
    made.peer, made.incarnation = 100 + rank, 1
    return made


def enter(name: str = "r", timeout_s: float = 10.0) -> RingEnter:
    return RingEnter(name=name, host="127.0.0.1", port=1, timeout_s=timeout_s)


def halted(generation: int, done: int, cause: str = "") -> RingHalted:
    return RingHalted(name="r", generation=generation, done=done, cause=cause, text=cause)


def told(actions: list[Action], kind: type[Any]) -> dict[int, Any]:
    """Messages of a kind by the rank that gets them; nobody gets two."""
    found = [
        (action.peer - 100, action.message)
        for action in actions
        if isinstance(action, Tell) and isinstance(action.message, kind)
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


class Bench:
    """Rings with so many live workers."""

    def __init__(self, workers: int) -> None:
        self.rings = Rings(lambda rank: f"worker {rank}")
        self.active = list(range(workers))
        self.now = 0.0

    def enter(self, rank: int, name: str = "r", timeout_s: float = 10.0) -> list[Action]:
        message = enter(name, timeout_s)
        return self._checked(self.rings.enter(node(rank), message, self.active, 5, self.now))

    def form(self) -> RingFormed:
        """Let all live workers enter."""
        actions = [action for rank in self.active for action in self.enter(rank)]
        (formed, *others) = told(actions, RingFormed).values()
        assert all(other == formed for other in others)
        return formed  # type: ignore[no-any-return]

    def halted(self, rank: int, message: RingHalted) -> list[Action]:
        return self._checked(self.rings.halted(rank, message, self.active, 5))

    def leave(self, rank: int, *, lost: bool = False, gone: bool = True) -> list[Action]:
        if rank in self.active:
            self.active.remove(rank)
        text = f"worker {rank} {'is lost' if lost else 'has left'}"
        return self._checked(self.rings.leave(rank, text, self.active, 5, lost=lost, gone=gone))

    def _checked(self, actions: list[Action]) -> list[Action]:
        self.rings.validate()
        return actions


def test_a_ring_is_formed_when_all_workers_have_entered() -> None:
    bench = Bench(3)
    assert bench.enter(2) == bench.enter(0) == []
    formed = told(bench.enter(1), RingFormed)
    assert set(formed) == {0, 1, 2}
    assert [member.rank for member in formed[0].members] == [0, 1, 2]
    assert (formed[0].generation, formed[0].ring, formed[0].epoch) == (1, 1, 5)
    assert not any(member.newcomer for member in formed[0].members)


def test_the_last_one_may_also_be_the_one_who_goes() -> None:
    bench = Bench(3)
    bench.enter(0)
    bench.enter(1)
    assert set(told(bench.leave(2, lost=True), RingFormed)) == {0, 1}


def test_a_newcomer_is_announced_and_comes_in_with_the_next_generation() -> None:
    bench = Bench(2)
    bench.form()
    bench.active.append(7)
    wanted = told(bench.enter(7), RingWanted)
    assert set(wanted) == {0, 1}
    assert wanted[0].generation == 1
    assert bench.enter(0) == []
    formed = told(bench.enter(1), RingFormed)
    assert [(m.rank, m.newcomer) for m in formed[7].members] == [
        (0, False),
        (1, False),
        (7, True),
    ]
    assert formed[7].generation == 2


def test_who_takes_its_entry_back_is_not_in() -> None:
    bench = Bench(2)
    bench.enter(0)
    bench.enter(0, timeout_s=0.0)
    assert bench.enter(1) == []
    assert set(told(bench.enter(0), RingFormed)) == {0, 1}


def test_who_waits_for_a_ring_of_another_name_is_told_so() -> None:
    bench = Bench(3)
    bench.enter(0, "gradients")
    bench.enter(1, "grads")
    missing = told(bench.rings.expire(bench.active, 10.0), RingMissing)
    assert missing[0].missing == ["worker 1, waiting in ring grads", "worker 2"]
    assert missing[1].missing == ["worker 0, waiting in ring gradients", "worker 2"]


def test_who_is_late_is_told_who_is_missing() -> None:
    bench = Bench(3)
    bench.enter(1)
    assert bench.rings.next_deadline() == 10.0
    assert bench.rings.expire(bench.active, 9.9) == []
    missing = told(bench.rings.expire(bench.active, 10.0), RingMissing)
    assert missing[1].missing == ["worker 0", "worker 2"]
    assert bench.rings.next_deadline() is None
    bench.enter(0)
    bench.enter(2)
    assert set(told(bench.enter(1), RingFormed)) == {0, 1, 2}


def test_names_are_bounded() -> None:
    bench = Bench(2)
    for number in range(RINGS_MAX):
        bench.enter(0, f"ring-{number}")
    assert str(RINGS_MAX) in told(bench.enter(0, "one-more"), RingMissing)[0].missing[0]


@pytest.mark.parametrize("dones", [(3, 3, 3), (3, 2, 3), (2, 3, 2)])
def test_the_highest_answer_is_the_verdict(dones: tuple[int, int, int]) -> None:
    bench = Bench(4)
    bench.form()
    halt = told(bench.leave(3, lost=True), RingHalt)
    assert {0, 1, 2} <= set(halt)
    assert (halt[0].cause, halt[0].lost, halt[0].text) == ("lost", [3], "worker 3 is lost")
    assert bench.halted(0, halted(1, dones[0])) == []
    assert bench.halted(1, halted(1, dones[1])) == []
    verdict = told(bench.halted(2, halted(1, dones[2])), RingVerdict)
    assert set(verdict) == {0, 1, 2}
    assert (verdict[0].done, verdict[0].lost) == (max(dones), [3])


def test_a_member_that_stops_for_its_own_reason_is_an_answer_too() -> None:
    bench = Bench(2)
    bench.form()
    halt = told(bench.halted(0, halted(1, 4, "mismatch")), RingHalt)
    assert halt[1].cause == "mismatch"
    verdict = told(bench.halted(1, halted(1, 5)), RingVerdict)
    assert (verdict[0].done, verdict[1].cause) == (5, "mismatch")
    assert bench.halted(1, halted(1, 9)) == [], "it is over"
    assert bench.form().generation == 2
    assert bench.halted(1, halted(1, 9)) == [], "of an earlier generation"


def test_nobody_waits_for_those_who_die_meanwhile() -> None:
    bench = Bench(3)
    bench.form()
    bench.halted(0, halted(1, 4, "connection"))
    bench.halted(1, halted(1, 4))
    verdict = told(bench.leave(2, lost=True), RingVerdict)
    assert (verdict[0].cause, verdict[0].lost) == ("lost", [2])


def test_who_has_finished_is_asked_how_far_it_was() -> None:
    bench = Bench(2)
    bench.form()
    bench.halted(1, halted(1, 8, "left"))
    bench.leave(1, gone=False)
    verdict = told(bench.halted(0, halted(1, 7)), RingVerdict)
    assert verdict[0].done == 8
    assert bench.form().members[0].rank == 0


def test_after_the_verdict_those_who_are_left_form_the_ring() -> None:
    bench = Bench(3)
    bench.form()
    bench.leave(0, lost=True)
    bench.halted(1, halted(1, 0))
    assert told(bench.enter(1), RingFormed) == {}, "not before the verdict"
    bench.halted(2, halted(1, 0))
    formed = told(bench.enter(2), RingFormed)
    assert [member.rank for member in formed[1].members] == [1, 2]


@given(st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_whatever_happens_there_is_one_verdict_and_a_next_generation(size: int, seed: int) -> None:
    """Deaths, reports and entries in any order; those who are left always come together."""
    chance = random.Random(seed)
    bench = Bench(size)
    bench.form()
    done = {rank: chance.randint(3, 4) for rank in range(size)}
    stopped: set[int] = set()
    verdicts: dict[int, RingVerdict] = {}
    actions: list[Action] = []
    for rank in chance.sample(range(size), size):
        if chance.random() < 0.4 and len(bench.active) > 1:
            actions += bench.leave(rank, lost=True)
        elif rank in bench.active:
            actions += bench.halted(rank, halted(1, done[rank], chance.choice(["", "timeout"])))
            stopped.add(rank)
    for rank in list(bench.active):
        if rank not in stopped:
            actions += bench.halted(rank, halted(1, done[rank]))
    verdicts = told(actions, RingVerdict)
    assert set(bench.active) <= set(verdicts)
    assert len({verdict.done for verdict in verdicts.values()}) == 1
    assert verdicts[bench.active[0]].done >= max(done[rank] for rank in bench.active)
    formed = bench.form()
    assert [member.rank for member in formed.members] == bench.active
