"""Everything a worker does, called plainly."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import aiops.blocking
from aiops import ASP, BSP
from aiops.errors import Closed, ConfigError, DialFailed, RequestTimeout, TableMismatch, UsageError
from aiops.optim import SGD, Add


def test_train_and_leave(cluster: aiops.blocking.LocalCluster) -> None:
    with aiops.blocking.connect(cluster.address, name="alone") as worker:
        assert (worker.rank, worker.name, worker.incarnation) == (0, "alone", 1)
        weights = worker.table("weights", shape=(8, 3), init=1.0, optimizer=SGD(lr=0.5))
        for step in worker.steps(4):
            assert step == worker.clock
            values = weights.pull()
            assert weights.version == step
            result = weights.push(np.ones_like(values))
            assert result.status == "applied"
        worker.barrier("end")
        np.testing.assert_array_equal(weights.pull(), np.full((8, 3), -1.0, np.float32))
        assert worker.clock == 4
        assert weights.worker is worker
    assert [member.role for member in worker.members].count("worker") == 1  # as it knew them last


def test_a_connected_worker_needs_no_with(cluster: aiops.blocking.LocalCluster) -> None:
    worker = cluster.connect()
    worker.close()
    worker.close()
    assert cluster.status()["workers"][-1]["state"] == "left"


def test_the_rest_of_the_table(cluster: aiops.blocking.LocalCluster) -> None:
    with cluster.connect() as worker:
        table = worker.table("t", 10, optimizer=Add(), consistency=ASP())
        assert worker.table("t") is table
        table.assign(np.arange(10, dtype=np.float32))
        out = np.empty(10, np.float32)
        assert table.pull(out=out) is out
        np.testing.assert_array_equal(table.pull(rows=[9, 0, 9]), [9.0, 0.0, 9.0])
        after = table.push_pull(np.ones(10, np.float32))
        np.testing.assert_array_equal(after, np.arange(1, 11))
        future = table.push_soon(np.ones(10, np.float32))
        table.flush()
        assert future.result().status == "applied"
        table.prefetch()
        np.testing.assert_array_equal(table.pull(), np.arange(2, 12))
        assert (table.shards, table.has_rounds, table.allow_nonfinite) == (1, False, False)
        assert table.partition[0]["bytes"] == 40


def test_the_local_copy(cluster: aiops.blocking.LocalCluster) -> None:
    with cluster.connect() as worker:
        table = worker.table("t", (), optimizer=Add(), consistency=ASP())
        with pytest.raises(UsageError, match="no local copy yet"):
            _ = table.local.values
        table.pull()
        table.local.use(SGD(lr=1.0))
        table.local.apply(np.float32(-2.0))  # type: ignore[arg-type]  # a number is an array ()
        table.local.push_delta()
        assert table.pull() == table.local.values == 2.0
        table.local.pull_every(60.0)
        table.local.check()
        table.local.stop()
        assert table.local.age_s >= 0.0
        assert table.local.version == table.version


def test_local_steps(cluster: aiops.blocking.LocalCluster) -> None:
    """Two workers that go one and two up in each step meet in the middle."""

    def train(worker: aiops.blocking.Worker) -> tuple[list[int], list[float]]:
        local = aiops.blocking.LocalSGD.open(
            worker,
            "local",
            np.zeros(2, np.float32),
            every=4,
            outer=SGD(lr=1.0),
            inner=SGD(lr=1.0),
            fragments=2,
        )
        assert (local.every, local.fragments, local.period) == (4, 2, 2)
        taken = []
        for step in local.steps(8):
            taken.append(step)
            local.apply(np.full(2, -1 - worker.rank, np.float32))
        return taken, local.pull().tolist()

    assert cluster.run(train, workers=2) == [(list(range(8)), [12.0, 12.0])] * 2


def test_updates_wait_for_each_version(cluster: aiops.blocking.LocalCluster) -> None:
    with cluster.connect() as reader, cluster.connect() as writer:
        table = writer.table("t", (), optimizer=Add(), consistency=ASP())
        versions = reader.table("t").updates()
        version, values = next(versions)
        assert (version, float(values)) == (0, 0.0)
        table.push(np.float32(1.0))  # type: ignore[arg-type]
        version, values = next(versions)
        assert (version, float(values)) == (1, 1.0)


def test_steps_end_for_all_after_stop(cluster: aiops.blocking.LocalCluster) -> None:
    def train(worker: aiops.blocking.Worker) -> tuple[int, str | None]:
        for step in worker.steps(1000):
            if step == 3 and worker.rank == 0:
                worker.stop("enough")
        return worker.clock, worker.stop_reason

    (clock, reason), other = cluster.run(train, workers=2)
    assert other == (clock, reason)
    assert clock < 1000
    assert reason == "enough"


def test_steps_are_planned_when_called_and_break_leaves_the_clock_open(
    cluster: aiops.blocking.LocalCluster,
) -> None:
    with cluster.connect() as worker:
        first, second = worker.steps(2), worker.steps(2)
        for _ in first:
            break
        assert worker.clock == 0
        assert list(second) == [2, 3]


def test_errors_keep_type_and_message(cluster: aiops.blocking.LocalCluster) -> None:
    with cluster.connect() as worker:
        table = worker.table("t", 3)
        with pytest.raises(UsageError, match=r"^push to table t: the array is float64"):
            table.push(np.zeros(3))  # type: ignore[arg-type]
        with pytest.raises(TableMismatch, match="shape is"):
            worker.table("t", 4)
        worker.finish()
        assert worker.finished
        with pytest.raises(UsageError, match="this worker has finished"):
            worker.tick()


def test_a_deadline_passes(cluster: aiops.blocking.LocalCluster) -> None:
    """The other worker never seals, so version 1 does not come."""
    with cluster.connect() as worker, cluster.connect() as other:
        table, late = worker.table("t", ()), other.table("t")
        worker.tick()
        with pytest.raises(RequestTimeout, match="pull table t: no answer from server"):
            table.pull(timeout_s=0.05)
        late.push(np.float32(0.0))  # type: ignore[arg-type]
        other.tick()
        assert table.pull() == 0.0


def test_nobody_answers() -> None:
    with pytest.raises(DialFailed):
        aiops.blocking.connect("127.0.0.1:1", timeout_s=0.1)
    assert "aiops loop" not in {thread.name for thread in threading.enumerate()}


def test_no_scheduler_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIOPS_SCHEDULER", raising=False)
    with pytest.raises(ConfigError, match="no scheduler"):
        aiops.blocking.connect()


def test_after_close_everything_is_closed(cluster: aiops.blocking.LocalCluster) -> None:
    with aiops.blocking.connect(cluster.address) as worker:
        table = worker.table("t", 3)
        table.pull()
    for call in (table.pull, worker.tick, table.flush, worker.stats):
        with pytest.raises(Closed, match="this worker has been closed"):
            call()
    np.testing.assert_array_equal(table.local.values, np.zeros(3))  # reading needs no network


def test_closing_ends_the_waits_of_other_threads(cluster: aiops.blocking.LocalCluster) -> None:
    worker = aiops.blocking.connect(cluster.address)
    with cluster.connect() as other, ThreadPoolExecutor(2) as threads:
        other.table("t", ())
        table = worker.table("t")
        next(table.updates())  # the clock of the other does not move: the next one never comes
        waits: list[Future[Any]] = [
            threads.submit(list, table.updates()),
            threads.submit(worker.barrier, "never"),
        ]
        worker.close()
        for wait in waits:
            with pytest.raises(Closed, match="this worker has been closed"):
                wait.result(timeout=60)


def test_pushes_from_several_threads_are_each_applied_once(
    cluster: aiops.blocking.LocalCluster,
) -> None:
    with cluster.connect() as worker:
        table = worker.table("t", 100, optimizer=Add(), consistency=ASP())
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: table.push(np.ones(100, np.float32)), range(200)))
        np.testing.assert_array_equal(table.pull(), np.full(100, 200.0))


def test_the_clock_is_moved_by_one_thread_at_a_time(cluster: aiops.blocking.LocalCluster) -> None:
    with cluster.connect() as worker:
        with worker._moving_the_clock("tick"):
            for call in (worker.tick, worker.finish, lambda: next(worker.steps(1))):
                with pytest.raises(UsageError, match="another thread moves the clock"):
                    call()
        worker.tick()


def test_metrics_and_stats(cluster: aiops.blocking.LocalCluster) -> None:
    with cluster.connect() as worker:
        worker.publish_metrics(loss=0.5)
        with pytest.raises(ValueError, match="it must be a number"):
            worker.publish_metrics(loss="low")  # type: ignore[arg-type]
        table = worker.table("t", 3, consistency=BSP(reduce="sum"))
        with worker.span("pull", 0):
            table.pull()
        assert worker.stats()["latency"]["pull"]["count"] == 1
        assert worker.shard(10) == slice(0, 10)
        worker.check()
        assert worker.stop_reason is None
        assert worker.job == cluster.status()["job"]


def test_status_from_outside(cluster: aiops.blocking.LocalCluster) -> None:
    assert aiops.blocking.fetch_status(cluster.address)["job"] == cluster.status()["job"]
