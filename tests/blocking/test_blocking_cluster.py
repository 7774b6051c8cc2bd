"""The blocking local cluster: one thread per worker, errors and interruptions of `run`."""

from __future__ import annotations

import threading
from unittest.mock import ANY

import numpy as np
import pytest

import aiops.blocking
from aiops.errors import AiopsError, ConfigError, NodeFailed
from aiops.optim import SGD
from aiops.van import MemoryVan


def test_results_come_in_rank_order(cluster: aiops.blocking.LocalCluster) -> None:
    names = cluster.run(lambda worker: (worker.rank, worker.name), workers=5)
    assert names == [(rank, f"worker-{rank}") for rank in range(5)]


def test_bsp_has_the_same_bits_as_the_asynchronous_twin(
    cluster: aiops.blocking.LocalCluster,
) -> None:
    def train(worker: aiops.blocking.Worker) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        random = np.random.default_rng(worker.rank)
        table = worker.table("w", 1000, optimizer=SGD(lr=0.1))
        for _ in worker.steps(10):
            table.push(table.pull() + random.standard_normal(1000).astype(np.float32))
        return table.pull()

    weights = np.zeros(1000, np.float32)
    randoms = [np.random.default_rng(rank) for rank in range(3)]
    for _ in range(10):
        gradients = [weights + r.standard_normal(1000).astype(np.float32) for r in randoms]
        mean = (gradients[0] + gradients[1] + gradients[2]) / np.float32(3)
        weights = weights - np.float32(0.1) * mean
    for result in cluster.run(train, workers=3):
        np.testing.assert_array_equal(result, weights)


def test_a_second_run_begins_at_step_0(cluster: aiops.blocking.LocalCluster) -> None:
    """The names are those of the first run, but its workers have left: nothing is restarted."""

    def train(worker: aiops.blocking.Worker) -> list[int]:
        table = worker.table("w", ())
        return [step for step in worker.steps(3) if table.push(np.float32(1)).status == "applied"]  # type: ignore[arg-type]

    assert cluster.run(train, workers=2) == [[0, 1, 2]] * 2
    assert cluster.run(train, workers=2) == [[0, 1, 2]] * 2


def test_the_first_error_is_raised_and_the_others_learn_of_it(
    cluster: aiops.blocking.LocalCluster,
) -> None:
    heard: list[AiopsError] = []
    all_here = threading.Barrier(3)  # who still connects would hear of it there

    def train(worker: aiops.blocking.Worker) -> None:
        all_here.wait()
        if worker.rank == 1:
            raise LookupError("no data here")
        try:
            worker.barrier("never-complete")
        except AiopsError as error:
            heard.append(error)
            raise

    with pytest.raises(LookupError, match="no data here"):
        cluster.run(train, workers=3)
    assert [type(error) for error in heard] == [NodeFailed, NodeFailed]
    assert "worker-1" in str(heard[0])
    assert "LookupError: no data here" in str(heard[0])


def test_a_program_that_exits_in_a_worker(cluster: aiops.blocking.LocalCluster) -> None:
    """`SystemExit` must not end the event loop that all share."""

    def train(worker: aiops.blocking.Worker) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        cluster.run(train, workers=2)
    assert caught.value.code == 3
    assert cluster.status()["ended"] == {"ok": False, "reason": ANY}


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    with aiops.blocking.LocalCluster(van=MemoryVan()) as cluster:
        cluster.run(lambda worker: worker.rank, workers=2)
    assert set(threading.enumerate()) == before


def test_a_wrong_number_of_workers(cluster: aiops.blocking.LocalCluster) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        cluster.run(lambda worker: None, workers=0)


def test_a_cluster_that_was_not_started() -> None:
    cluster = aiops.blocking.LocalCluster()
    with pytest.raises(ConfigError, match="not started"):
        cluster.connect()
    with pytest.raises(ConfigError, match="not started"):
        _ = cluster.address


def test_wrong_settings_are_found_before_anything_starts() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigError, match="servers is -1"), aiops.blocking.LocalCluster(-1):
        pass
    assert set(threading.enumerate()) == before
