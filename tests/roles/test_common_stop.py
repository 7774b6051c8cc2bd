"""How all workers come to stop at one step boundary."""

from __future__ import annotations

from aiops_protocol.control import (
    DeathQuery,
    NodeReport,
    StopAt,
    StopProposal,
    StopRequest,
    StopVote,
)
from scheduled import Scheduled


def cluster(workers: int = 3) -> Scheduled:
    scheduled = Scheduled(on_worker_loss="continue")
    for index in range(workers):
        scheduled.worker(10 + index, f"worker-{index}")
    return scheduled


def test_the_highest_vote_is_the_boundary_for_all() -> None:
    scheduled = cluster()
    scheduled.say(11, StopRequest(reason="enough"))
    for peer in (10, 11, 12):
        assert scheduled.only(peer, StopProposal).reason == "enough"
    scheduled.say(10, StopVote(clock=7))
    scheduled.say(12, StopVote(clock=9))
    assert not scheduled.heard(10, StopAt)
    scheduled.say(11, StopVote(clock=8))
    for peer in (1, 10, 11, 12):
        assert scheduled.only(peer, StopAt) == StopAt(clock=9, reason="enough")


def test_an_observer_may_ask_and_later_requests_change_nothing() -> None:
    scheduled = cluster(1)
    scheduled.say(99, StopRequest(reason="first"))
    scheduled.say(10, StopRequest(reason="second"))
    assert scheduled.only(10, StopProposal).reason == "first"
    scheduled.say(10, StopVote(clock=3))
    assert scheduled.only(10, StopAt).reason == "first"
    scheduled.say(10, StopVote(clock=30))
    scheduled.say(10, StopRequest(reason="third"))
    assert not scheduled.heard(10, StopAt)
    assert not scheduled.heard(10, StopProposal)


def test_the_finished_and_the_lost_have_no_vote() -> None:
    scheduled = cluster(4)
    scheduled.finish(10)
    scheduled.perform(scheduled.core.stop("enough"))
    assert not scheduled.heard(10, StopProposal)
    scheduled.say(11, StopVote(clock=5))
    scheduled.finish(12)
    scheduled.say(12, StopVote(clock=50))
    assert not scheduled.heard(11, StopAt)
    scheduled.lose(13)
    assert scheduled.only(11, StopAt).clock == 5
    assert scheduled.heard(1, DeathQuery)


def test_a_vote_counts_also_when_its_worker_is_lost_afterwards() -> None:
    """The others may have heard of it already; a later boundary harms nobody."""
    scheduled = cluster(2)
    scheduled.perform(scheduled.core.stop("enough"))
    scheduled.say(10, StopVote(clock=9))
    scheduled.lose(10)
    scheduled.say(11, StopVote(clock=4))
    assert scheduled.only(11, StopAt).clock == 9


def test_who_arrives_during_the_agreement_is_asked_too() -> None:
    scheduled = cluster(1)
    scheduled.perform(scheduled.core.stop("enough"))
    scheduled.worker(20)
    assert scheduled.only(20, StopProposal)
    scheduled.say(10, StopVote(clock=5))
    assert not scheduled.heard(10, StopAt)
    scheduled.say(20, StopVote(clock=0))
    assert scheduled.only(20, StopAt).clock == 5


def test_who_arrives_after_the_agreement_does_not_begin_and_who_comes_back_goes_on() -> None:
    scheduled = cluster(2)
    scheduled.perform(scheduled.core.stop("enough"))
    for peer in (10, 11):
        scheduled.say(peer, StopVote(clock=5))
    scheduled.worker(20)
    assert scheduled.only(20, StopAt).clock == 0
    scheduled.say(10, NodeReport(clock=4))
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.worker(21, "worker-0")
    assert scheduled.only(21, StopAt).clock == 5


def test_a_stop_of_nobody_waits_for_the_first_who_comes() -> None:
    scheduled = cluster(0)
    scheduled.perform(scheduled.core.stop("enough"))
    scheduled.worker(10)
    assert scheduled.only(10, StopProposal)
    scheduled.say(10, StopVote(clock=0))
    assert scheduled.only(10, StopAt).clock == 0


def test_when_the_last_voter_is_gone_the_agreement_stands() -> None:
    scheduled = cluster(2)
    scheduled.perform(scheduled.core.stop("enough"))
    scheduled.say(10, StopVote(clock=6))
    scheduled.lose(11)
    assert scheduled.only(10, StopAt).clock == 6
    assert scheduled.core.stopping.agreed == StopAt(clock=6, reason="enough")


def test_a_stop_is_for_those_who_were_there() -> None:
    """A second run of a local cluster is not stopped by the first one; status shows the last."""
    scheduled = cluster(2)
    scheduled.perform(scheduled.core.stop("enough"))
    for peer in (10, 11):
        scheduled.say(peer, StopVote(clock=5))
    for peer in (10, 11):
        scheduled.finish(peer, 5)
        scheduled.leave(peer)
    assert scheduled.core.stopping.reason == "enough"
    scheduled.worker(20, "worker-0")
    scheduled.worker(21, "worker-1")
    assert not scheduled.heard(20, StopAt)
    assert not scheduled.heard(21, StopAt)
    scheduled.say(20, StopRequest(reason="again"))
    assert scheduled.only(21, StopProposal).reason == "again"


def test_who_comes_back_alone_after_a_loss_is_still_one_of_those() -> None:
    scheduled = cluster(1)
    scheduled.perform(scheduled.core.stop("enough"))
    scheduled.say(10, StopVote(clock=5))
    scheduled.say(10, NodeReport(clock=4))
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.worker(20, "worker-0")
    assert scheduled.only(20, StopAt).clock == 5
