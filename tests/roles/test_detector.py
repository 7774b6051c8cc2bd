"""Failure detection: who is suspected, fenced and dead, after how much silence."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.detector import FIRST_BEAT_S, FailureDetector, Lease

H = 0.5


def test_silence_is_suspected_after_three_periods_and_death_after_six() -> None:
    detector = FailureDetector(H)
    detector.watch(1, 0.0)
    detector.heard(1, 10.0)
    assert detector.judge(10.0 + 2.9 * H) == ([], [])
    assert detector.judge(10.0 + 3 * H) == ([1], [])
    assert detector.judge(10.0 + 4 * H) == ([], []), "a suspicion is told once"
    assert detector.judge(10.0 + 6 * H) == ([], [1])


def test_a_heartbeat_clears_a_suspicion() -> None:
    detector = FailureDetector(H)
    detector.watch(1, 0.0)
    detector.heard(1, 0.0)
    detector.judge(3 * H)
    assert detector.heard(1, 3.5 * H)
    assert detector.judge(6 * H) == ([], [])
    assert not detector.heard(1, 6 * H)


def test_a_newcomer_has_time_for_its_first_heartbeat() -> None:
    detector = FailureDetector(H)
    detector.watch(1, 0.0)
    assert detector.judge(FIRST_BEAT_S) == ([], [])
    assert detector.judge(FIRST_BEAT_S + 6 * H) == ([], [1])


def test_a_scheduler_that_was_held_up_does_not_blame_the_others() -> None:
    """Its own process was stopped for a minute: heartbeats lie unread before its door."""
    detector = FailureDetector(H)
    for peer in (1, 2):
        detector.watch(peer, 0.0)
        detector.heard(peer, 0.0)
    detector.excuse(60.0)
    assert detector.judge(60.0) == ([], [])


def test_who_is_forgotten_is_not_judged() -> None:
    detector = FailureDetector(H)
    detector.watch(1, 0.0)
    detector.heard(1, 0.0)
    detector.forget(1)
    assert detector.judge(100.0) == ([], [])
    assert detector.silent_s(1, 100.0) is None
    assert not detector.heard(1, 100.0)


@given(st.lists(st.floats(0.01, 20 * H), min_size=1, max_size=30))
def test_death_comes_exactly_when_a_gap_is_too_long(gaps: list[float]) -> None:
    detector = FailureDetector(H)
    detector.watch(1, 0.0)
    detector.heard(1, 0.0)
    now = 0.0
    for gap in gaps:
        _, dead = detector.judge(now + gap * 0.999)
        assert (dead == [1]) == (gap * 0.999 >= 6 * H)
        now += gap
        detector.heard(1, now)


def test_a_lease_runs_from_the_sending_of_the_answered_heartbeat() -> None:
    """A one-way link: answers come late, and the lease must not be longer for it."""
    lease = Lease(H, 0.0)
    lease.renew(5.0)
    assert not lease.expired(5.0 + 3.9 * H)
    assert lease.expired(5.0 + 4 * H)
    assert not lease.orphaned(5.0 + 19 * H)
    assert lease.orphaned(5.0 + 20 * H)
    assert lease.silent_s(7.0) == 2.0


def test_a_lease_ends_before_the_scheduler_buries_the_node() -> None:
    lease, detector = Lease(H, 0.0), FailureDetector(H)
    detector.watch(1, 0.0)
    lease.renew(10.0)
    detector.heard(1, 10.0)
    steps = [10.0 + index * H / 10 for index in range(100)]
    fenced = next(now for now in steps if lease.expired(now))
    buried = next(now for now in steps if detector.judge(now)[1])
    assert buried - fenced >= 2 * H - H / 10


def test_a_node_that_was_held_up_waits_for_news_before_it_judges() -> None:
    lease = Lease(H, 0.0)
    lease.renew(10.0)
    lease.excuse(100.0)
    assert not lease.expired(100.0)
    assert not lease.orphaned(101.9)
    assert lease.orphaned(102.0)


@given(st.floats(1.1, 60), st.floats(0, 1.9))
def test_a_node_whose_loop_is_held_up_again_and_again_gives_its_scheduler_up_all_the_same(
    stalls_s: float, runs_s: float
) -> None:
    """Such as a server with large rounds, cut off: excuses must not go on for ever."""
    lease = Lease(H, 0.0)
    lease.renew(10.0)
    now, moments = 10.0, 0
    while not lease.orphaned(now):
        now += stalls_s * H
        lease.excuse(now)
        now += runs_s
        moments += 1
        assert moments < 100
    lease.renew(now)
    lease.excuse(now + 30.0)
    assert not lease.orphaned(now + 31.0), "and after an answer it is excused as before"
