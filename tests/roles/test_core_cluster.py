"""Scheduler, servers and workers back to back: promises that hold in whatever order things go."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiops.optim import Momentum
from aiops_protocol.payload import Float32Array
from bits import odd_values, same_bits
from core_cluster import CoreCluster, Script, WorkerNode
from core_tables import joined, leave, opened, spec_of

F = np.float32
SIZE = 67
seeds = st.integers(0, 2**32 - 1)
# A run is many messages in many orders: more runs than these belong to the nightly profile.
some = settings(max_examples=settings().max_examples // (1 if settings().max_examples < 100 else 3))


def gradient(worker: str, incarnation: int, clock: int) -> Float32Array:
    # Of the name only the digits count: strings hash differently in every process.
    seed = sum(10**i * (int(c) + 1) for i, c in enumerate(worker) if c.isdigit())
    return odd_values(seed * 1_000_003 + incarnation * 1009 + clock, SIZE)


def fold(contributions: list[Float32Array]) -> Float32Array:
    total = contributions[0].copy()
    for contribution in contributions[1:]:
        total = total + contribution
    return np.divide(total, F(len(contributions)))


class Momentums:
    """A plain numpy model of the table."""

    def __init__(self) -> None:
        self.optimizer = Momentum(lr=0.5, momentum=0.5)
        self.values = np.zeros(SIZE, F)
        self.state = {"velocity": np.zeros(SIZE, F)}
        self.step = 0

    def close(self, contributions: list[Float32Array]) -> None:
        self.step += 1
        if contributions:
            scratch = np.empty(SIZE, F)
            self.optimizer.update(self.values, fold(contributions), self.state, self.step, scratch)


SPEC = spec_of("w", SIZE, optimizer="momentum", settings={"lr": 0.5, "momentum": 0.5})


def watcher(pulls: int, seen: list[tuple[int, Float32Array]]) -> Callable[[WorkerNode], Script]:
    """Takes no part in the rounds, and looks at the table again and again."""

    def script(worker: WorkerNode) -> Script:
        yield from joined(worker)
        table = yield from opened(worker, SPEC)
        left = table.seal(final=True)
        yield lambda: left.done
        for _ in range(pulls):
            values, version = yield from table.pull_newest()
            seen.append((version, values))
        yield from leave(worker, table)

    return script


def trainer(steps: int, seen: list[tuple[int, Float32Array]]) -> Callable[[WorkerNode], Script]:
    def script(worker: WorkerNode) -> Script:
        yield from joined(worker)
        table = yield from opened(worker, SPEC)
        for clock in range(steps):
            values, versions = yield from table.pull()
            assert set(versions.values()) == {clock}
            seen.append((clock, values))
            yield from table.push(gradient(worker.name, worker.incarnation, clock))
            table.seal()
            worker.clock += 1
        yield from leave(worker, table)

    return script


@some
@given(
    seed=seeds,
    servers=st.integers(1, 5),
    workers=st.integers(1, 4),
    cuts=st.sampled_from([0, 0.03]),
)
def test_bsp_bits_depend_neither_on_order_nor_on_servers_nor_on_cuts(
    seed: int, servers: int, workers: int, cuts: float
) -> None:
    """Every pull of every worker is the exact version that plain numpy computes."""
    steps = 4
    cluster = CoreCluster(seed, servers, cuts, workers=workers)
    seen: list[tuple[int, Float32Array]] = []
    for index in range(workers):
        cluster.worker(f"worker-{index}", trainer(steps, seen))
    cluster.run()
    model = Momentums()
    versions = [model.values.copy()]
    for clock in range(steps):
        model.close([gradient(f"worker-{index}", 1, clock) for index in range(workers)])
        versions.append(model.values.copy())
    assert len(seen) == steps * workers
    for clock, values in seen:
        assert same_bits(values, versions[clock])
    final = np.concatenate(
        [
            server.core.tables[1].rule.shard.read(slice(None))
            for part in cluster.scheduler.catalogue._by_id[1].parts
            for server in [cluster.servers[part.server]]
        ]
    )
    assert same_bits(final, versions[-1])


@some
@given(seed=seeds, servers=st.integers(1, 3))
def test_who_only_watches_sees_whole_versions(seed: int, servers: int) -> None:
    """Also when a round closes between the answers to two pieces of its pull."""
    cluster = CoreCluster(seed, servers, workers=3)
    seen: list[tuple[int, Float32Array]] = []
    for index in range(2):
        cluster.worker(f"worker-{index}", trainer(6, []))
    cluster.worker("worker-2", watcher(8, seen))
    cluster.run()
    model = Momentums()
    versions = [model.values.copy()]
    for clock in range(6):
        model.close([gradient(f"worker-{index}", 1, clock) for index in range(2)])
        versions.append(model.values.copy())
    assert len(seen) == 8
    for version, values in seen:
        assert same_bits(values, versions[version])


@some
@given(seed=seeds, servers=st.integers(1, 4), workers=st.integers(1, 8))
def test_asp_integers_add_up_exactly(seed: int, servers: int, workers: int) -> None:
    spec = spec_of("n", SIZE, consistency="asp")
    cluster = CoreCluster(seed, servers, 0.05, workers=workers)

    def script(worker: WorkerNode) -> Script:
        yield from joined(worker)
        table = yield from opened(worker, spec)
        for number in range(5):
            before, _ = yield from table.pull()
            yield from table.push(np.full(SIZE, number + 1, F))
            after, _ = yield from table.pull()
            assert (after >= before + number + 1).all(), "a pull sees what was acknowledged"
        yield from leave(worker, table)

    for index in range(workers):
        cluster.worker(f"worker-{index}", script)
    cluster.run()
    for server in cluster.servers:
        for table in server.core.tables.values():
            assert (table.rule.shard.read(slice(None)) == 15 * workers).all()


@pytest.mark.parametrize("seed", range(5))
def test_without_the_record_of_what_was_applied_the_sums_are_wrong(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above can fail: the cuts do lead to repeats."""
    from aiops_protocol.delivery import Inbox, Verdict

    monkeypatch.setattr(Inbox, "judge", lambda self, incarnation, seq, mark: Verdict.APPLY)
    with pytest.raises(AssertionError):
        test_asp_integers_add_up_exactly.hypothesis.inner_test(seed, 2, 6)  # type: ignore[attr-defined]
