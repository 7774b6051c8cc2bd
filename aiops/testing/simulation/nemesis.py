"""The nemesis: injects faults into a simulated cluster, a random mixture per seed.

Each kind of fault is switched on for a run with some probability (swarm testing: a run with
few kinds reaches depths that a run with all of them does not). After its time everything is
repaired, and the cluster must come to rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiops.testing.simulation.cluster import SimCluster

__all__ = ["FAULTS", "Nemesis"]

FAULTS: Final = (
    "cut",
    "partition",
    "one-way",
    "slow",
    "corrupt",
    "stop",
    "scheduler-cut",
    "scheduler-partition",
    "scheduler-slow",
    "scheduler-corrupt",
)
"""What may be injected besides the kills, which a scenario asks for by itself."""

SCHEDULER: Final = "scheduler"
"""The name of its process. It is not stopped or killed; its links are touched."""

SETTLING_PERIODS: Final = 2
"""After so many heartbeat periods without any connection a node is lost: so long after its links
to the scheduler were touched, nothing may keep it from opening them again."""

CHANCE: Final = 0.5
"""Chance that a kind of fault is on in a run."""


class Nemesis:
    """Injects faults until told to stop.

    Parameters
    ----------
    cluster
        The victim.
    names
        Processes whose links and lives may be touched.
    mean_pause_s
        Between two faults.
    gentle_s
        The longest that a fault lasts: shorter than a death sentence, so that nobody is lost.
    heartbeat_s
        The period of the cluster; a link to the scheduler has trouble for no longer than one.
    kinds
        What to inject; a random choice per run if not given.
    """

    def __init__(
        self,
        cluster: SimCluster,
        names: list[str],
        *,
        mean_pause_s: float,
        gentle_s: float,
        heartbeat_s: float = 0.5,
        kinds: list[str] | None = None,
    ) -> None:
        self._cluster = cluster
        self._network = cluster.network
        self._rng = cluster.loop.rng
        self._names = names
        self._mean_pause_s = mean_pause_s
        self._gentle_s = gentle_s
        self._heartbeat_s = heartbeat_s
        self._unsettled_until: dict[str, float] = {}  # of links to the scheduler, by process
        drawn = [kind for kind in FAULTS if self._rng.random() < CHANCE]
        self.kinds = kinds or drawn or ["cut"]
        self.injected: dict[str, int] = dict.fromkeys(self.kinds, 0)
        self._went_on: dict[str, float] = {}  # when a stopped process went on
        self._pending: dict[asyncio.Task[None], Callable[[], None]] = {}

    async def run(self, seconds: float) -> None:
        """Inject faults for so long, then repair everything."""
        loop = self._cluster.loop
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(self._rng.expovariate(1 / self._mean_pause_s))
            kind = self._rng.choice(self.kinds)
            if kind.startswith(SCHEDULER):
                self.injected[kind] += self._touch_scheduler(kind)
            else:
                self.injected[kind] += 1
                self._inject(kind)
        for task, undo in list(self._pending.items()):
            task.cancel()
            undo()
        await asyncio.gather(*self._pending, return_exceptions=True)
        self._network.repair_all()

    def _inject(self, kind: str) -> None:
        match kind:
            case "cut":
                streams = list(self._network.streams)
                data = [s for s in streams if self._is_data(s.host, s.peer_host)]
                if data:
                    self._network.cut(self._rng.choice(data))
            case "partition":
                self._for_a_while(*self._pair(), lambda a, b: self._network.partition(a, b))
            case "one-way":
                one_way = self._network.partition
                self._for_a_while(*self._pair(), lambda a, b: one_way(a, b, both_ways=False))
            case "slow":
                self._for_a_while(*self._pair(), self._slow)
            case "corrupt":
                self._for_a_while(*self._pair(), self._corrupt)
            case "stop":
                self._stop(self._rng.choice(self._names))

    def _touch_scheduler(self, kind: str) -> bool:
        """Harm a node's links to the scheduler, if they have come to rest; returns whether."""
        name = self._rng.choice(self._names)
        now, process = self._cluster.loop.time(), self._cluster.processes[name]
        if process.stopped or not process.alive:
            return False
        ends = [s for s in self._network.streams if {s.host, s.peer_host} == {name, SCHEDULER}]
        if len(ends) < 4:  # both ends of both connections: it is not a member yet, or not well
            return False
        if kind == "scheduler-cut":
            self._network.cut(self._rng.choice(ends))
            self._unsettle(name, now)
            return True
        if now < self._unsettled_until.get(name, 0.0):
            return False
        lasts_s = self._rng.uniform(0.01, self._heartbeat_s)
        self._unsettle(name, now + lasts_s)
        match kind:
            case "scheduler-partition":
                both_ways = self._rng.random() < 0.5
                pair = [name, SCHEDULER]
                self._rng.shuffle(pair)
                self._network.partition(*pair, both_ways=both_ways)
            case "scheduler-slow":
                self._slow(name, SCHEDULER, 10)
                self._slow(SCHEDULER, name, 10)
            case _:
                self._corrupt(name, SCHEDULER)
                self._corrupt(SCHEDULER, name)
        self._later(lambda: self._network.repair(name, SCHEDULER), lasts_s)
        return True

    def _unsettle(self, name: str, until: float) -> None:
        until += SETTLING_PERIODS * self._heartbeat_s
        self._unsettled_until[name] = max(until, self._unsettled_until.get(name, 0.0))

    def _is_data(self, one: str, other: str) -> bool:
        return SCHEDULER not in (one, other)

    def _pair(self) -> tuple[str, str]:
        one, other = self._rng.sample(self._names, 2)
        return one, other

    def _slow(self, one: str, other: str, most: float = 50) -> None:
        self._cluster.loop.note("slow", one, other)
        self._network.fault(one, other).slow = self._rng.uniform(2, most)

    def _corrupt(self, one: str, other: str) -> None:
        self._cluster.loop.note("corrupting", one, other)
        self._network.fault(one, other).corrupt = self._rng.uniform(0.01, 0.3)

    def _for_a_while(self, one: str, other: str, begin: Callable[[str, str], None]) -> None:
        begin(one, other)
        self._later(lambda: self._network.repair(one, other), self._a_while())

    def _a_while(self) -> float:
        return self._rng.uniform(0.01, self._gentle_s)

    def _stop(self, name: str) -> None:
        process = self._cluster.processes[name]
        now = self._cluster.loop.time()
        rested = now - self._went_on.get(name, 0.0)
        if now < self._unsettled_until.get(name, 0.0):
            return
        # Stops that follow each other closely would add up to a death sentence.
        if process.alive and not process.stopped and rested > self._gentle_s:
            process.stop()

            def go_on() -> None:
                self._went_on[name] = self._cluster.loop.time()
                process.go_on()

            self._later(go_on, self._a_while())

    def _later(self, undo: Callable[[], None], after_s: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(after_s)
            del self._pending[task]
            undo()

        task = self._cluster.loop.create_task(wait())
        self._pending[task] = undo
