"""Barriers: named, in generations, and never open without somebody who should be there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops_protocol.control import BarrierDone, NodeReport, Refused
from aiops_protocol.errors import ErrorCode
from scheduled import Scheduled


def cluster(workers: int = 3) -> Scheduled:
    scheduled = Scheduled(on_worker_loss="continue")
    for index in range(workers):
        scheduled.worker(10 + index, f"worker-{index}")
    return scheduled


def done(scheduled: Scheduled, *peers: int) -> list[tuple[str, int, list[str]]]:
    """What each of these peers was told, one message each."""
    return [
        (m.name, m.generation, m.missing)
        for m in (scheduled.only(peer, BarrierDone) for peer in peers)
    ]


def nobody(scheduled: Scheduled, *peers: int) -> bool:
    return not any(scheduled.heard(peer, BarrierDone) for peer in peers)


def test_a_barrier_opens_when_the_last_has_come() -> None:
    scheduled = cluster()
    scheduled.barrier(10)
    scheduled.barrier(12)
    assert nobody(scheduled, 10, 12)
    scheduled.barrier(11)
    assert done(scheduled, 10, 11, 12) == [("b", 1, [])] * 3


def test_uses_of_a_name_are_counted_and_names_are_apart() -> None:
    scheduled = cluster(2)
    for generation in (1, 2, 3):
        scheduled.barrier(10, generation=generation)
        scheduled.barrier(11, "other", generation=generation)
        assert nobody(scheduled, 10, 11)
        scheduled.barrier(11, generation=generation)
        assert done(scheduled, 10, 11) == [("b", generation, [])] * 2
        scheduled.barrier(10, "other", generation=generation)
        assert done(scheduled, 10, 11) == [("other", generation, [])] * 2


def test_a_repeat_for_one_that_has_opened_is_answered_at_once() -> None:
    scheduled = cluster(1)
    scheduled.barrier(10)
    done(scheduled, 10)
    scheduled.barrier(10, generation=1)
    assert done(scheduled, 10) == [("b", 1, [])]


def test_a_latecomer_s_first_use_is_the_one_that_the_others_are_at() -> None:
    scheduled = cluster(2)
    for generation in (1, 2):
        scheduled.barrier(10, generation=generation)
        scheduled.barrier(11, generation=generation)
    scheduled.heard(10, BarrierDone)
    scheduled.barrier(10, generation=3)
    scheduled.worker(20)
    scheduled.barrier(11, generation=3)
    assert nobody(scheduled, 10), "the latecomer is needed as well"
    scheduled.barrier(20, generation=0)
    assert done(scheduled, 10, 20) == [("b", 3, [])] * 2


def test_a_deadline_names_all_who_are_missing_and_how_they_are() -> None:
    scheduled = cluster(4)
    scheduled.say(12, NodeReport(clock=17))
    scheduled.barrier(10, timeout_s=5)
    scheduled.barrier(11, timeout_s=8)
    scheduled.lose(13)
    assert scheduled.core.next_deadline() == scheduled.now + 5
    scheduled.tick()
    assert done(scheduled, 10) == [("b", 1, ["worker 2 (worker-2): alive, at clock 17"])]
    assert nobody(scheduled, 11)
    scheduled.tick()
    ((_, _, missing),) = done(scheduled, 11)
    assert missing == [
        "worker 0 (worker-0): alive, at clock 0",
        "worker 2 (worker-2): alive, at clock 17",
    ]
    assert not scheduled.core.barriers.waiting()


def test_after_a_deadline_the_same_use_can_be_tried_again() -> None:
    scheduled = cluster(2)
    scheduled.barrier(10, timeout_s=5)
    scheduled.tick()
    scheduled.heard(10, BarrierDone)
    scheduled.barrier(11)
    scheduled.barrier(10)
    assert done(scheduled, 10, 11) == [("b", 1, [])] * 2


def test_who_waits_in_another_barrier_is_said_to() -> None:
    """Two scripts that name it differently would otherwise look for a slow worker."""
    scheduled = cluster(3)
    scheduled.barrier(10, "epoch-1", timeout_s=5)
    scheduled.barrier(11, "epoch-2", timeout_s=5)
    scheduled.tick()
    for peer, own, other in ((10, "epoch-1", "epoch-2"), (11, "epoch-2", "epoch-1")):
        [(name, _, [first, last])] = done(scheduled, peer)
        assert name == own
        assert first.endswith(f", waiting in barrier {other}")
        assert "worker 2 (worker-2)" in last
        assert "waiting" not in last


@pytest.mark.parametrize("how", ["finish", "leave", "lose"])
def test_nobody_waits_for_the_finished_and_the_gone(how: str) -> None:
    scheduled = cluster()
    scheduled.barrier(10)
    scheduled.barrier(11)
    getattr(scheduled, how)(12)
    assert done(scheduled, 10, 11) == [("b", 1, [])] * 2


def test_who_was_at_a_barrier_and_is_lost_is_not_there_any_more() -> None:
    scheduled = cluster()
    scheduled.barrier(10)
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.worker(20, "worker-0")
    scheduled.barrier(11)
    scheduled.barrier(12)
    assert nobody(scheduled, 11, 12)
    scheduled.barrier(20)
    assert done(scheduled, 11, 12, 20) == [("b", 1, [])] * 3


def test_the_finished_may_come_but_are_not_needed() -> None:
    scheduled = cluster(2)
    scheduled.finish(10)
    scheduled.barrier(10)
    assert nobody(scheduled, 10)
    scheduled.barrier(11)
    assert done(scheduled, 10, 11) == [("b", 1, [])] * 2


def test_the_number_of_barriers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiops.roles.barrier.BARRIERS_MAX", 3)
    scheduled = cluster(2)
    scheduled.barrier(10, "a")
    scheduled.barrier(11, "a")
    for name in ("b", "c"):
        scheduled.barrier(10, name)
    scheduled.barrier(10, "d")
    refused = scheduled.refused(10)
    assert refused.code == ErrorCode.OUT_OF_WINDOW
    assert "use names again" in refused.text
    for name in ("b", "c"):
        scheduled.barrier(11, name)
    scheduled.barrier(10, "a", generation=2)
    assert not scheduled.heard(10, Refused), "a name that is known is not one more"


@given(data=st.data())
def test_a_barrier_opens_exactly_when_all_who_should_be_there_are(data: st.DataObject) -> None:
    """Against the plain rule, whatever the order of comings and goings."""
    scheduled = cluster(4)
    at: set[int] = set()
    needed = {10, 11, 12, 13}
    generation = 1
    for _ in range(data.draw(st.integers(1, 15))):
        peer = data.draw(st.sampled_from(sorted(needed)))
        deed: Any = data.draw(st.sampled_from(["enter", "enter", "enter", "finish", "lose"]))
        if deed == "enter":
            scheduled.barrier(peer, generation=generation)
            at.add(peer)
        elif deed == "finish":
            scheduled.finish(peer)
            needed.discard(peer)
        else:
            scheduled.lose(peer)
            needed.discard(peer)
            at.discard(peer)
        opens = bool(at) and needed <= at
        assert all((len(scheduled.heard(p, BarrierDone)) == 1) is opens for p in at)
        if opens:
            at = set()
            generation += 1
        if not needed:
            return
