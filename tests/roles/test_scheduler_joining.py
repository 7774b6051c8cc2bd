"""Who may join, under which rank, and who has to wait for a name."""

from __future__ import annotations

import pytest

from aiops_protocol.control import (
    ClusterState,
    DeathQuery,
    Join,
    Joined,
    NodeReport,
    Refused,
    Shutdown,
    StatusReply,
    StatusRequest,
)
from aiops_protocol.errors import ErrorCode
from aiops_protocol.limits import SERVERS_MAX, WORKERS_MAX
from scheduled import Scheduled


def ranks(scheduled: Scheduled, *names: str) -> list[int]:
    return [scheduled.worker(50 + i, name).rank for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["", "", ""], [0, 1, 2]),
        (["a", "b"], [0, 1]),
        (["worker-2", "worker-0", "worker-1"], [2, 0, 1]),
        (["worker-1", "", ""], [1, 0, 2]),
        (["", "worker-0", "worker-1"], [0, 1, 2]),
        (["worker-7", "a"], [7, 0]),
        (["worker-007"], [0]),
        (["server-3"], [0]),
        (["worker-1024"], [0]),
        (["worker-1023"], [1023]),
    ],
)
def test_a_numbered_name_gets_its_rank_and_others_the_lowest_free_one(
    names: list[str], expected: list[int]
) -> None:
    assert ranks(Scheduled(), *names) == expected


def test_a_name_made_up_by_the_scheduler_is_in_nobody_s_way() -> None:
    """Somebody connects by hand, and then a launcher's workers come with their names."""
    scheduled = Scheduled()
    unnamed = scheduled.worker(10)
    named = scheduled.worker(11, "worker-0")
    assert (unnamed.rank, named.rank) == (0, 1)
    assert len({unnamed.name, named.name}) == 2


def test_a_restart_keeps_the_rank_and_raises_the_incarnation() -> None:
    scheduled = Scheduled(on_worker_loss="continue")
    first = scheduled.worker(10, "a")
    scheduled.worker(11, "b")
    scheduled.say(10, NodeReport(clock=7))
    scheduled.lose(10)
    scheduled.report(1, 0)
    second = scheduled.worker(12, "a")
    assert (first.rank, first.incarnation, first.clock) == (0, 1, 0)
    assert (second.rank, second.incarnation, second.clock) == (0, 2, 7)


def test_who_takes_the_name_of_one_that_has_finished_is_new() -> None:
    scheduled = Scheduled()
    scheduled.worker(10, "a")
    scheduled.finish(10, 9)
    scheduled.leave(10)
    again = scheduled.worker(11, "a")
    assert (again.rank, again.incarnation, again.clock) == (0, 2, 0)


@pytest.mark.parametrize("lost", [False, True])
def test_a_rank_without_a_name_is_given_out_again(lost: bool) -> None:
    scheduled = Scheduled(on_worker_loss="continue")
    scheduled.worker(10)
    scheduled.worker(11, "b")
    if lost:
        scheduled.lose(10)
        assert scheduled.worker(12).rank == 2, "the servers do not know of the loss yet"
        scheduled.report(1, 0)
    else:
        scheduled.finish(10)
        scheduled.leave(10)
    third = scheduled.worker(13)
    assert (third.rank, third.incarnation) == (0, 2)


def test_everybody_hears_of_every_change_under_a_new_epoch() -> None:
    scheduled = Scheduled(workers=2)
    scheduled.worker(10, "a")
    scheduled.worker(11, "b")
    states = scheduled.heard(1, ClusterState)
    assert [state.ready for state in states] == [False, False, True]
    assert [state.epoch for state in states] == [1, 2, 3]
    scheduled.finish(10)
    scheduled.leave(10)
    finished, left = scheduled.heard(11, ClusterState)[-2:]
    assert [m.state for m in finished.members] == ["alive", "finished", "alive"]
    assert [m.state for m in left.members] == ["alive", "left", "alive"]
    assert left.epoch == 5
    assert left.ready, "a job that was complete once stays so"


# --- names ---


def test_a_join_under_the_name_of_a_live_worker_is_refused_after_a_while() -> None:
    scheduled = Scheduled()
    scheduled.worker(10, "a")
    scheduled.join(11, name="a")
    assert not scheduled.heard(11, Refused)
    scheduled.tick()
    refused = scheduled.refused(11)
    assert refused.code == ErrorCode.NAME_IN_USE
    assert "a live worker has the name a" in refused.text
    scheduled.tick()
    assert not scheduled.heard(11, Refused)


def test_a_restart_of_one_that_was_never_heard_of_waits_until_that_is_a_death() -> None:
    """Killed while it joined, behind a link that tells nobody: nothing but silence speaks of it."""
    scheduled = Scheduled(on_worker_loss="continue", heartbeat_s=0.5)
    scheduled.worker(10, "a")
    scheduled.worker(11, "b")
    scheduled.join(12, name="a")
    for _ in range(28):
        scheduled.core.heartbeat("server", 0, 1, scheduled.now + 0.5)
        scheduled.core.heartbeat("worker", 1, 1, scheduled.now + 0.5)
        scheduled.tick(scheduled.now + 0.5)
    assert not scheduled.heard(12, Refused)
    scheduled.report(1, 0)
    assert scheduled.only(12, Joined).incarnation == 2


def test_a_restart_that_comes_before_the_news_of_the_death_gets_in() -> None:
    scheduled = Scheduled(on_worker_loss="continue")
    scheduled.worker(10, "a")
    scheduled.worker(11, "b")
    scheduled.join(12, name="a")
    scheduled.lose(10)
    assert not scheduled.heard(12, Joined), "the servers still hear the former one"
    scheduled.tick(scheduled.now + 60)
    assert not scheduled.heard(12, Refused), "it will get in for sure"
    scheduled.report(1, 0)
    assert scheduled.only(12, Joined).incarnation == 2


def test_who_asks_for_a_name_while_its_loss_is_not_settled_waits() -> None:
    scheduled = Scheduled(2, on_worker_loss="continue")
    scheduled.worker(10, "a")
    scheduled.worker(11, "b")
    scheduled.lose(10)
    scheduled.join(12, name="a")
    scheduled.report(1, 0)
    assert not scheduled.heard(12, Joined)
    scheduled.report(2, 0)
    assert scheduled.only(12, Joined).incarnation == 2


def test_of_several_who_wait_for_a_name_the_first_gets_it() -> None:
    scheduled = Scheduled()
    scheduled.worker(10, "a")
    scheduled.join(11, name="a")
    scheduled.join(12, name="a")
    scheduled.lose(11)
    scheduled.join(13, name="a")
    scheduled.finish(10)
    scheduled.leave(10)
    assert scheduled.only(12, Joined).incarnation == 2
    scheduled.tick()
    assert scheduled.refused(13).code == ErrorCode.NAME_IN_USE


def test_names_of_servers_and_workers_are_apart() -> None:
    scheduled = Scheduled()
    assert scheduled.worker(10, "server-0").rank == 0


# --- refusals ---


def test_a_server_too_many_is_refused() -> None:
    scheduled = Scheduled(2)
    scheduled.join(9, "server", "server-9")
    refused = scheduled.refused(9)
    assert refused.code == ErrorCode.CLUSTER_FULL
    assert "2 servers" in refused.text
    for peer in range(10, 15):
        assert scheduled.worker(peer).rank == peer - 10, "workers may come at any time"


def test_a_job_has_a_bounded_number_of_workers() -> None:
    scheduled = Scheduled()
    scheduled.core._broadcast = lambda message: []  # type: ignore[method-assign]  # n * n messages
    for index in range(WORKERS_MAX):
        scheduled.worker(10 + index)
    scheduled.join(9999)
    assert scheduled.refused(9999).code == ErrorCode.CLUSTER_FULL


def test_an_unknown_role_is_refused() -> None:
    scheduled = Scheduled()
    scheduled.join(9, "king")
    assert scheduled.refused(9).code == ErrorCode.WRONG_ROLE


@pytest.mark.parametrize("waiting", [False, True])
def test_a_connection_is_one_node(waiting: bool) -> None:
    scheduled = Scheduled()
    scheduled.worker(10, "a")
    if waiting:
        scheduled.join(11, name="a")
    peer = 11 if waiting else 10
    scheduled.say(peer, Join(role="worker", name="b"))
    assert not scheduled.heard(peer, Joined)
    assert scheduled.notes[-1].event == "unexpected_message"
    assert [node.name for node in scheduled.core.members.nodes("worker")] == ["a"]


@pytest.mark.parametrize("ok", [False, True])
def test_a_job_that_has_ended_takes_nobody_in(ok: bool) -> None:
    scheduled = Scheduled()
    scheduled.worker(10, "a")
    scheduled.join(11, name="a")
    scheduled.perform(scheduled.core.end(ok, "enough"))
    code = ErrorCode.SHUTTING_DOWN if ok else ErrorCode.JOB_FAILED
    scheduled.join(12)
    for peer in (11, 12):
        refused = scheduled.refused(peer)
        assert refused.code == code
        assert "enough" in refused.text


# --- being complete ---


def test_a_job_that_does_not_become_complete_in_time_ends() -> None:
    scheduled = Scheduled(2, start=False, workers=3, join_timeout_s=5.0)
    scheduled.join(1, "server")
    scheduled.worker(10)
    scheduled.tick(105.0)
    assert scheduled.ended is not None
    assert not scheduled.ended.ok
    assert scheduled.ended.reason == (
        "after 5 s only 1 of 2 servers and 1 of 3 workers have registered"
    )
    assert scheduled.core.next_deadline() is None


def test_the_time_to_become_complete_does_not_run_again() -> None:
    """A local cluster expects other workers in each run."""
    scheduled = Scheduled(workers=1, join_timeout_s=5.0)
    scheduled.worker(10)
    scheduled.core.members.expect_workers(3)
    assert not scheduled.core.members.ready
    scheduled.tick(200.0)
    assert scheduled.ended is None


def ready(scheduled: Scheduled, peer: int) -> bool:
    return scheduled.heard(peer, ClusterState)[-1].ready


def begun(scheduled: Scheduled) -> bool:
    return "cluster_ready" in [note.event for note in scheduled.notes]


def test_the_start_goes_on_without_a_worker_that_was_lost_before_it() -> None:
    scheduled = Scheduled(workers=3, on_worker_loss="continue")
    for peer, name in ((10, "a"), (11, "b")):
        scheduled.worker(peer, name)
    scheduled.lose(10)
    assert not ready(scheduled, 11), "one more may come"
    scheduled.worker(12, "c")
    assert ready(scheduled, 11)
    assert ready(scheduled, 12)
    assert begun(scheduled)


def test_the_start_waits_for_a_lost_worker_that_is_back_only_once() -> None:
    scheduled = Scheduled(workers=3, on_worker_loss="continue")
    scheduled.worker(10, "a")
    scheduled.lose(10)
    scheduled.report(1, 0)
    scheduled.worker(11, "a")
    scheduled.worker(12, "b")
    assert not ready(scheduled, 12)
    scheduled.worker(13, "c")
    assert ready(scheduled, 12)


def test_a_loss_ends_what_waits_for_the_start_if_all_others_are_there() -> None:
    scheduled = Scheduled(workers=3, on_worker_loss="continue")
    for peer in (10, 11):
        scheduled.worker(peer)
    scheduled.perform(scheduled.core.will_not_come("worker", "w", "exit code 7", clean=False))
    assert ready(scheduled, 10)
    assert begun(scheduled)


def test_nobody_begins_alone_where_all_are_lost_before_the_start() -> None:
    scheduled = Scheduled(workers=2, on_worker_loss="continue")
    scheduled.worker(10)
    scheduled.lose(10)
    scheduled.perform(scheduled.core.will_not_come("worker", "worker-1", "why", clean=False))
    assert not scheduled.core.members.ready
    assert scheduled.ended is None


@pytest.mark.parametrize("registered", [False, True])
def test_who_is_to_come_counts_before_the_start(registered: bool) -> None:
    """Two are needed: of four that are expected two may be lost, whoever has come so far."""
    scheduled = Scheduled(workers=4, min_workers=2, on_worker_loss="continue")

    def lose(index: int) -> None:
        if registered:
            scheduled.worker(10 + index, f"worker-{index}")
            scheduled.lose(10 + index)
        else:
            name = f"worker-{index}"
            scheduled.perform(scheduled.core.will_not_come("worker", name, "why", clean=False))

    lose(0)
    lose(1)
    assert scheduled.ended is None
    lose(2)
    assert scheduled.ended is not None
    assert not scheduled.ended.ok
    assert "1 workers are left, 2 are needed" in scheduled.ended.reason


def test_a_worker_that_will_not_come_fails_a_job_that_needs_all() -> None:
    scheduled = Scheduled(workers=2)
    scheduled.worker(10, "worker-0")
    scheduled.perform(scheduled.core.will_not_come("worker", "worker-1", "it fell", clean=False))
    assert scheduled.ended is not None
    assert scheduled.ended.reason == "worker-1 has ended before it registered: it fell"
    assert scheduled.only(10, Shutdown).failed


def test_a_worker_that_has_nothing_to_do_is_not_waited_for() -> None:
    scheduled = Scheduled(workers=2)
    scheduled.worker(10, "worker-0")
    scheduled.perform(scheduled.core.will_not_come("worker", "worker-1", "exit 0", clean=True))
    assert scheduled.ended is None
    assert ready(scheduled, 10)


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_without_a_server_nothing_begins(policy: str) -> None:
    scheduled = Scheduled(2, start=False, workers=1, on_worker_loss=policy)
    scheduled.join(1, "server", "server-0")
    scheduled.worker(10)
    scheduled.perform(scheduled.core.will_not_come("server", "server-1", "no port", clean=False))
    assert scheduled.ended is not None
    assert scheduled.ended.reason == "server-1 has ended before it registered: no port"


@pytest.mark.parametrize("clean", [False, True])
def test_of_a_member_nothing_is_believed_but_its_connections(clean: bool) -> None:
    """Its process may have ended, and what it has said last is still on its way."""
    scheduled = Scheduled(workers=2)
    scheduled.worker(10, "worker-0")
    for role, name in (("worker", "worker-0"), ("server", "server-0")):
        assert scheduled.core.will_not_come(role, name, "gone", clean=clean) == []
    scheduled.worker(11, "worker-1")
    assert ready(scheduled, 10)
    assert scheduled.core.will_not_come("worker", "worker-2", "gone", clean=clean) == []
    assert scheduled.ended is None


def test_a_worker_that_left_is_not_waited_for_by_those_of_the_next_run() -> None:
    """A cluster expects other workers in each run, and one of those that were there leaves."""
    scheduled = Scheduled()
    scheduled.worker(10)
    scheduled.core.members.expect_workers(3)
    scheduled.worker(11)
    scheduled.leave(10)
    scheduled.worker(12)
    assert ready(scheduled, 11)


def test_status_can_be_asked_by_anybody() -> None:
    scheduled = Scheduled()
    scheduled.worker(10, "a")
    scheduled.say(99, StatusRequest())
    document = scheduled.only(99, StatusReply).status
    assert b'"name":"a"' in bytes(document)


def test_a_server_that_left_without_shards_can_be_replaced() -> None:
    """And a server's rank is never beyond what a job may have."""
    scheduled = Scheduled(2)
    for round_ in range(SERVERS_MAX + 5):
        scheduled.leave(2 + round_)
        scheduled.join(3 + round_, "server")
        joined = scheduled.only(3 + round_, Joined)
        assert joined.rank in (1, 2)
    assert scheduled.ended is None


def test_messages_of_strangers_and_of_the_gone_are_ignored() -> None:
    scheduled = Scheduled(on_worker_loss="continue")
    scheduled.worker(10)
    scheduled.lose(10)
    scheduled.heard(1, DeathQuery)
    for peer in (10, 77):
        scheduled.attach(peer)
        scheduled.barrier(peer)
        scheduled.leave(peer)
    assert scheduled.told.get(77) is None
    assert scheduled.ended is None


def test_what_a_node_may_not_say_is_noted() -> None:
    scheduled = Scheduled()
    scheduled.say(
        1, ClusterState(epoch=1, members=[], expected_servers=1, expected_workers=1, ready=True)
    )
    assert scheduled.notes[-1].fields["message"] == "ClusterState"
