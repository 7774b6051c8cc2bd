"""Harm for whole clusters of cores: workers that die, come back, or come late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from core_cluster import CoreCluster, Script, WorkerNode


class Story(Protocol):
    """What a test tells: a cluster, and scripts of workers that train in it."""

    cluster: CoreCluster

    def trainer(self, steps: int) -> Callable[[WorkerNode], Script]:
        """A script of so many steps."""


class Fate:
    """Harm of all kinds, a bounded number of times, each at a random moment."""

    def __init__(self, story: Story, kills: int, late: int) -> None:
        self.story = story
        self.cluster = story.cluster
        self.kills = kills
        self.late = late

    def __call__(self) -> None:
        rng, cluster = self.cluster.rng, self.cluster
        if not any(worker.ready for worker in cluster.workers):
            return
        if self.kills and rng.random() < 0.01:
            alive = [worker for worker in cluster.workers if worker.alive]
            if alive:
                self.kills -= 1
                worker = rng.choice(alive)
                if rng.random() < 0.3:
                    worker.lose_scheduler()
                else:
                    worker.die()
                if rng.random() < 0.6:
                    cluster.worker(worker.name, self.story.trainer(rng.randint(1, 4)))
        if self.late and rng.random() < 0.01:
            self.late -= 1
            cluster.worker("", self.story.trainer(rng.randint(1, 4)))
