"""Workers die, come back, come late and finish early, at any moment: all shards agree all the same.

A round has the same contributors at every shard, whole contributions only, and whatever some
shard has acknowledged as sealed is among them. Nobody waits for the dead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from aiops.optim import Momentum
from aiops.roles.requests import Operation
from aiops_protocol.frames import Assign, Push
from aiops_protocol.payload import Float32Array
from bits import odd_values, same_bits
from core_cluster import CoreCluster, Script, WorkerNode
from core_fate import Fate
from core_tables import CoreTable, Steps, joined, leave, opened, spec_of

F = np.float32
SIZE = 41
SPEC = spec_of("w", SIZE, optimizer="momentum", settings={"lr": 0.5, "momentum": 0.5})
Who = tuple[int, int]
Piece = tuple[int, Float32Array]


class Gift:
    """What one incarnation of a worker gave to one round."""

    def __init__(self) -> None:
        self.pushes: list[Piece] = []
        self.assignments: list[Piece] = []
        self.seal: Operation | None = None
        self.contributed = False

    def contribution(self) -> Float32Array:
        total: list[Any] = [None] * SIZE
        for begin, values in self.pushes:
            for key, value in enumerate(values, begin):
                total[key] = value if total[key] is None else F(total[key] + value)
        return np.array([F(0) if value is None else value for value in total], F)


class Story:
    """Everything that workers gave, and what they saw."""

    def __init__(self, cluster: CoreCluster) -> None:
        self.cluster = cluster
        self.gifts: dict[tuple[Who, int], Gift] = {}
        self.seen: list[tuple[int, Float32Array]] = []
        self.seeds = 0

    def values(self, size: int) -> Float32Array:
        self.seeds += 1
        return odd_values(self.seeds, size)

    def trainer(self, steps: int) -> Callable[[WorkerNode], Script]:
        def script(worker: WorkerNode) -> Script:
            rng = self.cluster.rng
            yield from joined(worker)
            table = yield from opened(worker, SPEC)
            # Who pushes to one shard only, and reads nothing, can be far ahead of the others.
            hasty = rng.random() < 0.4
            for _ in range(4 * steps if hasty else steps):
                if not hasty and rng.random() < 0.6:
                    values, versions = yield from table.pull()
                    assert set(versions.values()) == {table.clock}
                    self.seen.append((table.clock, values))
                yield from self._give(worker, table, hasty)
            yield from leave(worker, table)

        return script

    def idler(self, worker: WorkerNode) -> Script:
        """Joins, opens nothing, and leaves: nobody may wait for it."""
        yield from joined(worker)
        late = self.cluster.now + self.cluster.rng.random() * 0.3
        yield lambda: self.cluster.now > late
        yield from leave(worker)

    def _give(self, worker: WorkerNode, table: CoreTable, hasty: bool) -> Steps[None]:
        rng = self.cluster.rng
        assert worker.rank is not None
        gift = self.gifts[(worker.rank, worker.incarnation), table.clock] = Gift()
        for _ in range(rng.choice([0, 1]) if hasty else rng.choice([0, 1, 1, 1, 2, 3])):
            begin = rng.choice([0, rng.randrange(SIZE)])
            values = self.values(rng.choice([SIZE - begin, rng.randint(1, SIZE - begin)]))
            if hasty:
                begin, values = 0, values[:4]
            assigns = rng.random() < 0.15
            (gift.assignments if assigns else gift.pushes).append((begin, values))
            operation = table.change(Assign if assigns else Push, values, begin)
            yield lambda operation=operation: operation.done  # type: ignore[misc]
            table.check(operation)
        gift.contributed = table.contributed
        gift.seal = table.seal()

    # --- what must be true ---

    def check(self) -> None:
        shards = [server for server in self.cluster.servers if 1 in server.core.tables]
        if not shards:
            return
        rounds = shards[0].rounds
        for server in shards:
            assert server.rounds == rounds
        versions = self._model([rounds[1, version] for version in range(len(rounds))])
        for version, values in self.seen:
            assert same_bits(values, versions[version])
        shards.sort(key=lambda server: server.core.tables[1].begin)
        final = np.concatenate(
            [server.core.tables[1].rule.shard.read(slice(None)) for server in shards]
        )
        assert same_bits(final, versions[-1])
        for (who, clock), gift in self.gifts.items():
            answered = gift.seal is not None and any(part.settled for part in gift.seal.parts)
            if answered and gift.contributed:
                assert who[0] in rounds[1, clock]

    def _was_assigned(self, rank: int, clock: int, gift: Gift) -> bool:
        """Whether a worker's assignments took effect: at every shard they touch, or at none."""
        touched = {
            rank in server.assigned[1, clock]
            for server in self.cluster.servers
            if (table := server.core.tables.get(1)) is not None
            and any(
                begin < table.end and begin + values.size > table.begin
                for begin, values in gift.assignments
            )
        }
        assert len(touched) <= 1
        return touched == {True}

    def _model(self, rounds: list[list[int]]) -> list[Float32Array]:
        optimizer = Momentum(lr=0.5, momentum=0.5)
        values, state = np.zeros(SIZE, F), {"velocity": np.zeros(SIZE, F)}
        versions = [values.copy()]
        for clock, ranks in enumerate(rounds):
            sealed = {
                who[0]: gift
                for (who, at), gift in self.gifts.items()
                if at == clock and gift.seal is not None
            }
            assert [r for r in ranks if not sealed[r].contributed] == []
            for rank in sorted(sealed):
                if self._was_assigned(rank, clock, sealed[rank]):
                    for begin, assigned in sealed[rank].assignments:
                        values[begin : begin + assigned.size] = assigned
            if ranks:
                total = sealed[ranks[0]].contribution()
                for rank in ranks[1:]:
                    total = total + sealed[rank].contribution()
                mean = np.divide(total, F(len(ranks)))
                optimizer.update(values, mean, state, clock + 1, np.empty(SIZE, F))
            versions.append(values.copy())
        return versions


@settings(max_examples=max(300, settings().max_examples))
@given(
    seed=st.integers(0, 2**32 - 1),
    servers=st.integers(1, 4),
    workers=st.integers(1, 4),
    cuts=st.sampled_from([0, 0.02]),
    slow=st.sampled_from([0, 0.2]),
    kills=st.integers(0, 3),
    late=st.integers(0, 2),
)
def test_all_shards_close_the_same_rounds_whoever_dies_or_comes(
    seed: int, servers: int, workers: int, cuts: float, slow: float, kills: int, late: int
) -> None:
    cluster = CoreCluster(seed, servers, cuts, slow, workers=workers, on_worker_loss="continue")
    story = Story(cluster)
    for index in range(workers):
        idle = cluster.rng.random() < 0.15
        script = story.idler if idle else story.trainer(cluster.rng.randint(1, 6))
        cluster.worker(f"worker-{index}", script)
    cluster.run(Fate(story, kills, late))
    story.check()
