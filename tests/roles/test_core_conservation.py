"""Workers that push without rounds die, come back and are cut off: once is once all the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core_cluster import CoreCluster, Script, WorkerNode
from core_tables import joined, leave, opened, spec_of

F = np.float32
WIDTH = 31
PUSHES_MAX = 100
SPEC = spec_of("counts", WIDTH * PUSHES_MAX, consistency="asp")


class Ledger:
    """Every push has elements of its own, to each of which it adds one."""

    def __init__(self) -> None:
        self.begun = 0
        self.acknowledged: list[int] = []

    def pusher(self, pushes: int) -> Callable[[WorkerNode], Script]:
        def script(worker: WorkerNode) -> Script:
            yield from joined(worker)
            table = yield from opened(worker, SPEC, segment=100)
            for _ in range(pushes):
                number = self.begun
                self.begun += 1
                yield from table.push(np.ones(WIDTH, F), number * WIDTH)
                self.acknowledged.append(number)
                values, _ = yield from table.pull()
                assert (values[number * WIDTH : (number + 1) * WIDTH] == 1).all()
            yield from leave(worker, table)

        return script


@settings(max_examples=max(100, settings().max_examples))
@given(
    seed=st.integers(0, 2**32 - 1),
    servers=st.integers(1, 4),
    workers=st.integers(1, 4),
    kills=st.integers(0, 5),
    cuts=st.sampled_from([0, 0.03]),
    slow=st.sampled_from([0, 0.2]),
)
def test_what_was_acknowledged_was_applied_once_and_nothing_twice(
    seed: int, servers: int, workers: int, kills: int, cuts: float, slow: float
) -> None:
    cluster = CoreCluster(seed, servers, cuts, slow, workers=workers, on_worker_loss="continue")
    ledger = Ledger()
    for index in range(workers):
        cluster.worker(f"worker-{index}", ledger.pusher(6))
    left = [kills]

    def harm() -> None:
        alive = [worker for worker in cluster.workers if worker.alive and worker.ready]
        if left[0] and alive and cluster.rng.random() < 0.01:
            left[0] -= 1
            worker = cluster.rng.choice(alive)
            if cluster.rng.random() < 0.4:
                worker.lose_scheduler()
            else:
                worker.die()
            if cluster.rng.random() < 0.8:
                cluster.worker(worker.name, ledger.pusher(6))

    cluster.run(harm)
    shards = sorted(
        (server.core.tables[1] for server in cluster.servers if 1 in server.core.tables),
        key=lambda table: table.begin,
    )
    if not shards:
        return
    counts = np.concatenate([table.rule.shard.read(slice(None)) for table in shards])
    assert np.isin(counts, (0, 1)).all()
    assert counts.sum() <= ledger.begun * WIDTH
    for number in ledger.acknowledged:
        assert (counts[number * WIDTH : (number + 1) * WIDTH] == 1).all()
    for table in shards:
        assert not table.inboxes, "all have left, nothing is kept"
