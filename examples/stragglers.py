"""What bounded staleness is worth: eight workers of unequal speed, and how long they wait.

First every step of every worker takes four times as long with a chance of one in ten; then one
worker is always four times slower. All of it runs on virtual time, so it is over in seconds and
the table is the same on every machine. `python examples/stragglers.py [STEPS]`
"""

import asyncio
import sys

import numpy as np

from aiops import ASP, BSP, SSP
from aiops.optim import Add
from aiops.testing.simulation import SimLoop, sealed
from aiops.testing.simulation.cluster import SimCluster

WORKERS = 8
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 480  # of all workers together
STEP_S = 0.1
SLOW = 4
MODES = {
    "BSP": BSP(),
    **{f"SSP({s})": SSP(staleness=s) for s in (0, 1, 3, 7, 15)},
    "ASP": ASP(),
}


async def cluster_of_unequals(loop, consistency, step_s):
    """Share STEPS among the workers; return the seconds it takes, and the share of waiting."""
    cluster = SimCluster(loop, servers=2, workers=WORKERS)
    cluster.network.delay_s, cluster.network.jitter_s = 1e-4, 1e-5
    await cluster.start()
    left = STEPS

    async def train(worker):
        nonlocal left
        table = await worker.table("w", shape=(4,), optimizer=Add(), consistency=consistency)
        await worker.barrier("begin")
        began, computed_s = loop.time(), 0.0
        while left > 0:
            left -= 1
            await table.pull()
            took_s = step_s(worker.rank)
            await asyncio.sleep(took_s)  # computing
            computed_s += took_s
            await table.push(np.ones(4, np.float32))
            await worker.tick()
        return loop.time() - began, computed_s

    tasks = [cluster.worker(f"worker-{rank}", train) for rank in range(WORKERS)]
    times = await asyncio.gather(*tasks)
    await cluster.close()
    total_s = sum(seconds for seconds, _ in times)
    idle = 1 - sum(computed for _, computed in times) / total_s
    return max(seconds for seconds, _ in times), idle


def run(consistency, permanent):
    loop = SimLoop(seed=1)

    def step_s(rank):
        slow = rank == 0 if permanent else loop.rng.random() < 0.1
        return STEP_S * (SLOW if slow else 1)

    with sealed(loop):
        result = loop.run_until_complete(cluster_of_unequals(loop, consistency, step_s))
        loop.bury()
    return result


print(f"{WORKERS} workers, {STEPS} steps in all, {STEP_S} s each, some {SLOW} times slower")
print("            random slowness    one is always slow")
print("mode         time     idle        time     idle")
for name, mode in MODES.items():
    cells = [run(mode, permanent) for permanent in (False, True)]
    random, one = (f"{seconds:7.1f} s {100 * idle:6.1f} %" for seconds, idle in cells)
    print(f"{name:<8}{random}  {one}")
