"""A worker that dies every few seconds is kept out for a while, longer each time, and told so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.restarts import (
    FORGIVEN_S,
    LOSSES_MAX,
    REFUSED_FIRST_S,
    REFUSED_MAX_S,
    WINDOW_S,
    Restarts,
)
from aiops.roles.status import status
from aiops_protocol.control import Joined
from aiops_protocol.errors import ErrorCode
from scheduled import Scheduled


class Flapping(Scheduled):
    """One worker that is started again at once whenever it is lost, and another that stays."""

    def __init__(self) -> None:
        super().__init__(1, on_worker_loss="continue")
        self.worker(1000, "calm")
        self.peer = 10

    def start(self) -> int:
        """Start it; returns its incarnation, or 0 if it is refused."""
        self.peer += 1
        self.join(self.peer, "worker", "mad")
        joined = self.heard(self.peer, Joined)
        return joined[0].incarnation if joined else 0

    def die(self, after_s: float = 0.0) -> None:
        self.now += after_s
        node = self.core.members.of_peer(self.peer)
        assert node is not None
        self.lose(self.peer)
        self.report(1, node.rank)


def test_a_flapping_worker_is_refused_for_growing_times_and_let_in_again() -> None:
    job = Flapping()
    for incarnation in range(1, LOSSES_MAX + 2):
        assert job.start() == incarnation
        job.die(after_s=5.0)
    for round_ in range(7):
        assert not job.start()
        refused = job.refused(job.peer)
        assert refused.code == ErrorCode.TOO_MANY_RESTARTS
        seconds = min(REFUSED_FIRST_S * 2**round_, REFUSED_MAX_S)
        assert refused.text == (
            f"mad was lost more than 5 times within 60 s; it may join again in {seconds:g} s, "
            "or under another name now"
        )
        document: Any = status(job.core, job.now)
        shown = {w["name"]: w.get("refused_for_s") for w in document["workers"]}
        assert shown == {"calm": None, "mad": seconds}
        job.now += seconds - 0.5
        assert not job.start()
        job.now += 0.5
        for _ in range(LOSSES_MAX + 1):
            if not job.start():
                break
            job.die()
    assert job.ended is None


def test_another_name_joins_and_the_others_notice_nothing() -> None:
    job = Flapping()
    for _ in range(LOSSES_MAX + 1):
        job.start()
        job.die()
    assert not job.start()
    assert job.worker(500, "sane").incarnation == 1
    assert job.worker(501).incarnation == 1


def test_one_that_waits_for_the_settling_of_its_last_loss_is_judged_too() -> None:
    job = Flapping()
    for _ in range(LOSSES_MAX):
        job.start()
        job.die()
    job.start()
    dying, rank = job.peer, 1
    job.join(99, "worker", "mad")
    job.lose(dying)
    job.report(1, rank)
    assert job.refused(99).code == ErrorCode.TOO_MANY_RESTARTS


def test_an_orderly_leave_is_no_loss() -> None:
    job = Flapping()
    for incarnation in range(1, 20):
        assert job.start() == incarnation
        job.finish(job.peer)
        job.leave(job.peer)


@given(st.lists(st.floats(0.0, 2 * WINDOW_S), max_size=40))
def test_only_more_than_the_limit_within_the_window_is_refused(pauses: list[float]) -> None:
    restarts, now, times = Restarts(), 0.0, []
    for pause in pauses:
        now += pause
        before = restarts.refused_for_s("w", now)
        restarts.lost("w", now)
        times.append(now)
        after = restarts.refused_for_s("w", now)
        recent = times[-LOSSES_MAX - 1 :]
        if len(recent) > LOSSES_MAX and now - recent[0] <= WINDOW_S:
            assert REFUSED_FIRST_S <= round(after, 6) <= REFUSED_MAX_S
        else:
            assert after == before
        assert bool(restarts.refusal("w", now)) == (after > 0)
        assert not restarts.refused_for_s("other", now)


def test_all_is_forgotten_in_the_end() -> None:
    restarts = Restarts()
    for now in range(LOSSES_MAX + 3):
        restarts.lost("w", float(now))
    assert restarts.refused_for_s("w", 8.0) == pytest.approx(4 * REFUSED_FIRST_S - 1.0)
    later = LOSSES_MAX + 3 + FORGIVEN_S
    for _ in range(LOSSES_MAX):
        restarts.lost("w", later)
    assert not restarts.refused_for_s("w", later)
    restarts.lost("w", later)
    assert restarts.refused_for_s("w", later) == REFUSED_FIRST_S
