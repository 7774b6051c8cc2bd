"""A node whose connections to the scheduler end: when it may come back, and when it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from aiops.roles.actions import Drop
from aiops.roles.connections import CONTROL_ABSENT_MAX_S, SEVERED_PERIODS
from aiops_protocol.control import ClusterState, DeathQuery
from aiops_protocol.errors import ErrorCode
from scheduled import Scheduled

H = 0.5
WHY = "the connection to worker at h:1 ended: reset"


class Watched(Scheduled):
    """A scheduler of two workers that hears hearts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(1, heartbeat_s=H, workers=2, **settings)
        for peer in (10, 11):
            self.worker(peer, f"worker-{peer - 10}")
            self.heart(peer, opened=True)
        self.heart(1, opened=True)

    def heart(self, peer: int, *, opened: bool) -> None:
        node = self.core.members.of_peer(peer)
        assert node is not None
        self.core.heart(node.role, node.rank, node.incarnation, self.now, opened=opened)

    def sever(self, peer: int) -> None:
        self.perform(self.core.severed(peer, WHY, self.now))

    def wait(self, seconds: float, *beating: int) -> list[Drop]:
        """Let time pass, with the heartbeats of these peers; returns whom the core drops."""
        drops = []
        for _ in range(round(seconds / (H / 2))):
            self.now += H / 2
            for peer in beating:
                node = self.core.members.of_peer(peer)
                if node is not None:
                    self.core.heartbeat(node.role, node.rank, node.incarnation, self.now)
            actions = self.perform(self.core.tick(self.now))
            drops += [action for action in actions if isinstance(action, Drop)]
        return drops

    def events(self) -> list[str]:
        return [note.event for note in self.notes]


def test_a_control_connection_that_ends_is_no_loss_by_itself() -> None:
    job = Watched()
    job.sever(10)
    assert not job.wait(20 * H, 1, 10, 11)
    job.perform(job.core.back(10, job.now))
    assert job.events()[-2:] == ["control_lost", "control_resumed"]
    assert job.ended is None
    assert not job.wait(20 * H, 1, 10, 11)


def test_who_has_no_connection_at_all_is_lost_after_two_periods() -> None:
    """A killed process: the kernel closes both."""
    job = Watched()
    job.sever(10)
    job.heart(10, opened=False)
    assert not job.wait((SEVERED_PERIODS - 0.5) * H, 1, 11)
    (drop,) = job.wait(H, 1, 11)
    assert (drop.peer, drop.code) == (10, ErrorCode.STALE_INCARNATION)
    assert job.ended is not None
    assert job.ended.reason == f"worker 0 (worker-0) is lost: {WHY}"


@pytest.mark.parametrize("back", ["control", "heart"])
def test_one_of_the_two_that_is_opened_again_is_enough(back: str) -> None:
    job = Watched()
    job.sever(10)
    job.heart(10, opened=False)
    job.wait(H, 1, 11)
    if back == "control":
        job.perform(job.core.back(10, job.now))
    else:
        job.heart(10, opened=True)
    assert not job.wait(4 * H, 1, 11)


def test_a_new_heartbeat_connection_may_come_before_the_end_of_the_old_one() -> None:
    job = Watched()
    job.sever(10)
    job.heart(10, opened=True)
    job.heart(10, opened=False)
    assert not job.wait(10 * H, 1, 10, 11)


def test_a_node_that_never_opens_its_control_connection_again_is_lost_in_the_end() -> None:
    job = Watched(on_worker_loss="continue")
    job.sever(10)
    assert not job.wait(CONTROL_ABSENT_MAX_S - H, 1, 10, 11)
    (drop,) = job.wait(2 * H, 1, 10, 11)
    assert "it was not opened again within 150 s" in drop.text


def test_an_open_heartbeat_connection_that_is_silent_means_death_as_ever() -> None:
    job = Watched(on_worker_loss="continue")
    job.wait(H, 1, 10, 11)
    job.sever(10)
    assert not job.wait(5 * H, 1, 11)
    (drop,) = job.wait(2 * H, 1, 11)
    assert "no heartbeat for" in drop.text


def test_the_time_in_which_the_scheduler_itself_stood_still_does_not_count() -> None:
    job = Watched(on_worker_loss="continue")
    job.wait(H, 1, 10, 11)
    job.sever(10)
    job.heart(10, opened=False)
    job.now += 60.0
    actions = job.perform(job.core.tick(job.now))
    assert not [action for action in actions if isinstance(action, Drop)]
    job.perform(job.core.back(10, job.now))
    assert not job.wait(H, 1, 10, 11)


def test_a_node_that_comes_under_the_name_of_a_severed_one_has_been_started_again() -> None:
    """It need not wait: of the former process not even a connection is left."""
    job = Watched(on_worker_loss="continue")
    job.sever(10)
    job.heart(10, opened=False)
    job.join(20, "worker", "worker-0")
    assert job.heard(1, DeathQuery) == [DeathQuery(worker=0, incarnation=1)]
    job.report(1, 0)
    node = job.core.members.of_peer(20)
    assert node is not None
    assert (node.rank, node.incarnation) == (0, 2)
    assert "node_lost" in job.events()


def test_what_is_said_meanwhile_is_said_to_the_node_that_has_no_connection() -> None:
    """The core tells it all the same; its shell keeps it until the node is back."""
    job = Watched(on_worker_loss="continue")
    job.sever(10)
    job.heard(10, ClusterState)
    job.lose(11)
    (state,) = job.heard(10, ClusterState)
    assert [m.state for m in state.members if m.role == "worker"] == ["alive", "lost"]
