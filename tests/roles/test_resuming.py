"""Where a worker goes on that comes back after a loss, or comes late to several tables."""

from __future__ import annotations

import pytest

from aiops_protocol.control import Joined, RoundRelease, StopAt, TableEntered
from scheduled import Scheduled


class Job(Scheduled):
    """Two workers that take part in tables `a` and `b` from clock 0 of the job on."""

    def __init__(self) -> None:
        super().__init__(1, on_worker_loss="continue")
        self.tables = {}
        for peer in (10, 11):
            self.worker(peer, f"worker-{peer - 10}")
        for name in "ab":
            self.attach(10, name)
            self.open_shards(1)
            self.attach(11, name)
            for peer in (10, 11):
                opened = self.opened(peer)
                assert opened.job_clock is None, "it is there from the beginning"
                self.tables[name] = opened.table
                self.enter(peer, name, 0, 0)

    def enter(self, peer: int, name: str, version: int, clock: int, ahead: int = 0) -> None:
        table = self.tables[name]
        self.say(peer, TableEntered(table=table, version=version, clock=clock, ahead=ahead))

    def come(self, peer: int, name: str, version: int) -> int | None:
        """Let a latecomer open a table of this version; returns the clock it is told."""
        self.attach(peer, name)
        self.hold(1, version)
        self.heard(1, RoundRelease)
        opened = self.opened(peer)
        assert opened.from_version == version + 1
        return opened.job_clock


def test_a_lost_worker_resumes_at_the_clock_that_it_had_sealed() -> None:
    """Not at that of its last report, which may be a second old."""
    job = Job()
    job.lose(10)
    job.report(1, 0, {job.tables["a"]: (57, 0), job.tables["b"]: (56, 0)})
    joined = job.worker(20, "worker-0")
    assert (joined.incarnation, joined.resumes, joined.clock, joined.ahead) == (2, True, 57, 0)


def test_one_that_has_left_begins_anew() -> None:
    job = Job()
    job.finish(10, clock=57)
    job.leave(10)
    joined = job.worker(20, "worker-0")
    assert (joined.resumes, joined.clock, joined.ahead) == (False, 0, 0)


def test_a_latecomer_is_told_where_the_others_are_in_each_table() -> None:
    job = Job()
    job.worker(12, "worker-2")
    assert job.come(12, "a", 40) == 41
    job.enter(12, "a", 41, 41, ahead=41)
    assert job.come(12, "b", 42) == 43
    job.enter(12, "a", 43, 43, ahead=43)
    job.enter(12, "b", 43, 43, ahead=43)
    job.worker(13, "worker-3")
    assert job.come(13, "a", 50) == 51, "the same for all"


def test_its_own_clock_goes_on_after_a_loss() -> None:
    """It came when the job was at clock 41, and has sealed nine rounds since."""
    job = Job()
    job.worker(12, "worker-2")
    job.come(12, "a", 40)
    job.enter(12, "a", 41, 41, ahead=41)
    job.lose(12)
    job.report(1, 2, {job.tables["a"]: (50, 0)})
    joined = job.worker(20, "worker-2")
    assert (joined.resumes, joined.clock, joined.ahead) == (True, 9, 41)


def test_a_table_that_nobody_has_entered_yet_tells_no_clock() -> None:
    job = Scheduled(1, on_worker_loss="continue")
    job.worker(10)
    job.attach(10)
    job.open_shards(1)
    job.worker(11)
    job.attach(11)
    job.hold(1, 0, idle=True)
    assert job.opened(11).job_clock is None


@pytest.mark.parametrize("later", [0, 30])
def test_of_workers_that_disagree_the_furthest_counts(later: int) -> None:
    """As when a table is created in the middle of a job by workers at different steps."""
    job = Job()
    for clock in (20, 52, later):
        job.enter(10, "a", 0, clock)
    job.worker(12)
    assert job.come(12, "a", 5) == 58


def test_who_resumes_while_a_stop_is_agreed_on_goes_on_to_the_boundary() -> None:
    job = Job()
    job.lose(10)
    job.report(1, 0, {job.tables["a"]: (57, 0)})
    job.perform(job.core.stop("enough"))
    job.perform([*job.core._agree(job.core.stopping.vote(1, 61))])
    assert job.heard(11, StopAt) == [StopAt(clock=61, reason="enough")]
    job.join(20, "worker", "worker-0")
    assert job.only(20, Joined).clock == 57
    assert job.heard(20, StopAt) == [StopAt(clock=61, reason="enough")]
