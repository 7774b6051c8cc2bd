"""Opening tables in a whole cluster: values of exactly one creator, whoever dies in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_cluster import CoreCluster, Script, WorkerNode
from core_tables import joined, leave, opened, spec_of

F = np.float32
SIZE = 67


def creator(number: int, consistency: str, seen: list[float]) -> Callable[[WorkerNode], Script]:
    """Give this number as every initial value, and see which number it became."""
    spec = spec_of("v", SIZE, init="values", consistency=consistency)

    def script(worker: WorkerNode) -> Script:
        yield from joined(worker)
        table = yield from opened(worker, spec, np.full(SIZE, number, F))
        values, _ = yield from table.pull(0)
        values %= 1000
        assert (values == values[0]).all(), "values of several creators are mixed"
        seen.append(float(values[0]))
        if consistency == "asp":  # use it, and perhaps die then
            yield from table.push(np.full(1, 1000, F), worker.cluster.rng.randrange(SIZE))
        yield from leave(worker, table)

    return script


@settings(max_examples=max(200, settings().max_examples))
@given(
    seed=st.integers(0, 2**32 - 1),
    servers=st.integers(1, 4),
    workers=st.integers(1, 4),
    kills=st.integers(0, 3),
    cuts=st.sampled_from([0, 0.02]),
    slow=st.sampled_from([0, 0.3]),
    consistency=st.sampled_from(["asp", "bsp"]),
)
def test_everybody_sees_the_values_of_one_and_the_same_creator(
    seed: int, servers: int, workers: int, kills: int, cuts: float, slow: float, consistency: str
) -> None:
    cluster = CoreCluster(seed, servers, cuts, slow, workers=workers, on_worker_loss="continue")
    seen: list[float] = []
    numbers = iter(range(1, 1000))
    for index in range(workers):
        cluster.worker(f"worker-{index}", creator(next(numbers), consistency, seen))
    left = [kills]

    def kill() -> None:
        alive = [worker for worker in cluster.workers if worker.alive and worker.ready]
        if left[0] and alive and cluster.rng.random() < 0.03:
            left[0] -= 1
            worker = cluster.rng.choice(alive)
            worker.die()
            if cluster.rng.random() < 0.7:
                cluster.worker(worker.name, creator(next(numbers), consistency, seen))

    cluster.run(kill)
    # Once somebody has seen the values they stay: nobody sees those of another creator.
    assert len(set(seen)) <= 1


def particular(outcomes: list[str]) -> Callable[[WorkerNode], Script]:
    """Ask for a table with settings of one's own."""

    def script(worker: WorkerNode) -> Script:
        yield from joined(worker)
        spec = spec_of("s", 8, optimizer="sgd", settings={"lr": 1.0 + int(worker.name[-1])})
        try:
            table = yield from opened(worker, spec)
        except AssertionError as refused:
            outcomes.append(str(refused))
            yield from leave(worker)
        else:
            outcomes.append("opened")
            yield from leave(worker, table)

    return script


@pytest.mark.parametrize("workers", [2, 3])
def test_one_of_several_different_settings_wins_and_the_others_hear_of_it(workers: int) -> None:
    for seed in range(20):
        cluster = CoreCluster(seed, 2, workers=workers)
        outcomes: list[str] = []
        for index in range(workers):
            cluster.worker(f"worker-{index}", particular(outcomes))
        cluster.run()
        assert outcomes.count("opened") == 1
        assert sum("exists with other settings" in text for text in outcomes) == workers - 1
