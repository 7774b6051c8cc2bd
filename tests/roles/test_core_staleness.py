"""SSP in whole clusters of cores: the bound holds, and is reached, whoever dies or comes.

Every push adds one to elements of its own in every shard, so that each pull tells exactly whose
pushes it contains.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiops.roles.bounded import SspRule
from aiops_protocol.payload import Float32Array
from core_cluster import CoreCluster, Script, WorkerNode
from core_fate import Fate
from core_tables import CoreTable, joined, leave, opened, spec_of

F = np.float32
PUSHES = 96
"""At most; each has this place in every run of so many elements, and every shard has two runs."""

Push = tuple[WorkerNode, int]
"""A worker process and the table's clock of a push."""


class Story:
    """Everything that workers pushed, and what must be true whenever one reads."""

    def __init__(self, cluster: CoreCluster, staleness: int, servers: int) -> None:
        self.cluster = cluster
        self.staleness = staleness
        self.size = 2 * servers * PUSHES
        self.spec = spec_of("w", self.size, consistency="ssp", staleness=staleness)
        self.numbers: dict[Push, int] = {}
        self.acknowledged: list[int] = []
        self.tables: dict[WorkerNode, CoreTable] = {}  # of those who take part
        self.spread = 0

    def trainer(self, steps: int) -> Callable[[WorkerNode], Script]:
        def script(worker: WorkerNode) -> Script:
            rng = self.cluster.rng
            yield from joined(worker)
            table = yield from opened(worker, self.spec, segment=PUSHES)
            self.tables[worker] = table
            only_pushes = rng.random() < 0.3
            pulled = np.zeros(PUSHES, F)
            for _ in range(steps):
                slow_until = self.cluster.now + rng.choice([0, 0, 0.2])
                yield lambda until=slow_until: self.cluster.now >= until  # type: ignore[misc]
                if not only_pushes:
                    before = self.must_be_there(worker, table)
                    values, _ = yield from table.pull()
                    counts = self.check_read(table, values, before)
                    assert (counts >= pulled).all(), "reads never go back"
                    pulled = counts
                if len(self.numbers) < PUSHES:
                    number = self.numbers[worker, table.clock] = len(self.numbers)
                    ones = (np.arange(self.size) % PUSHES == number).astype(F)
                    yield from table.push(ones)
                    self.acknowledged.append(number)
                    self.check_gate(table)
                table.seal()
                worker.clock += 1
                self.measure()
            del self.tables[worker]
            yield from leave(worker, table)

        return script

    def others(self) -> list[CoreTable]:
        """The tables of those who are in the job: neither dead nor taken for dead."""
        return [table for worker, table in self.tables.items() if worker.up.open]

    def must_be_there(self, worker: WorkerNode, table: CoreTable) -> list[int]:
        """What the next read has to contain: by the bound, and because it is one's own."""
        need = table.clock - self.staleness
        return [
            number
            for (who, clock), number in self.numbers.items()
            if number in self.acknowledged and (who is worker or clock < need)
        ]

    def check_read(self, table: CoreTable, values: Float32Array, before: list[int]) -> Float32Array:
        counts = values.reshape(-1, PUSHES)
        assert np.isin(counts, (0, 1)).all(), "each push is in once or not at all"
        assert (counts[:, before] == 1).all(), "older updates than the bound allows are missing"
        self.check_gate(table)
        least: Float32Array = counts.min(axis=0)
        return least

    def check_gate(self, table: CoreTable) -> None:
        """Whoever goes on at clock c: all have completed c - s, as they themselves know."""
        behind = [other.clock for other in self.others()]
        assert min(behind, default=table.clock) >= table.clock - self.staleness

    def measure(self) -> None:
        clocks = [table.clock for table in self.others()]
        self.spread = max(self.spread, max(clocks, default=0) - min(clocks, default=0))
        assert self.spread <= self.staleness + 1

    def check(self) -> None:
        for server in self.cluster.servers:
            for table in server.core.tables.values():
                assert isinstance(table.rule, SspRule)
                counts = table.rule.shard.read(slice(None)).reshape(-1, PUSHES)
                assert (counts[:, self.acknowledged] == 1).all()
                assert not table.parked
                assert not table.pulls


def run(
    seed: int, staleness: int, servers: int, workers: int, *, cuts: float = 0, harm: bool = True
) -> Story:
    cluster = CoreCluster(seed, servers, cuts, workers=workers, on_worker_loss="continue")
    story = Story(cluster, staleness, servers)
    for index in range(workers):
        cluster.worker(f"worker-{index}", story.trainer(cluster.rng.randint(1, 8)))
    cluster.run(Fate(story, 2, 2) if harm else None)
    story.check()
    return story


@settings(max_examples=max(100, settings().max_examples))
@given(
    seed=st.integers(0, 2**32 - 1),
    staleness=st.integers(0, 4),
    servers=st.integers(1, 4),
    workers=st.integers(1, 4),
    cuts=st.sampled_from([0, 0.02]),
)
def test_the_bound_holds_whoever_dies_or_comes(
    seed: int, staleness: int, servers: int, workers: int, cuts: float
) -> None:
    run(seed, staleness, servers, workers, cuts=cuts)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_bound_is_reached(staleness: int) -> None:
    """A gate that is too strict would also hold the bound."""
    spreads = [run(seed, staleness, 2, 3, harm=False).spread for seed in range(12)]
    assert max(spreads) == staleness + 1


def _off_by_one(rule: SspRule, version: int) -> bool:
    return rule.floor.value >= version - rule._staleness - 1


def _too_strict(rule: SspRule, version: int) -> bool:
    return rule.floor.value >= version - max(rule._staleness - 1, 0)


def test_a_gate_that_is_one_clock_too_wide_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SspRule, "readable", _off_by_one)
    with pytest.raises(AssertionError):
        test_the_bound_is_reached(1)


def test_a_gate_that_is_one_clock_too_narrow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SspRule, "readable", _too_strict)
    with pytest.raises(AssertionError):
        test_the_bound_is_reached(3)
