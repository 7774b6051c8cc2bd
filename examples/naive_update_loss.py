"""Why `push`: two workers count to 100 each, once by hand and once by pushing.

By hand means: pull the value, change it here, set the new value. Between the two the other worker
does the same, and one of the changes is lost. Barriers force the worst moment, so the program
shows the same every time; without them it happens sometimes, which is worse.
"""

import numpy as np

import aiops
from aiops import ASP
from aiops.optim import Add

ROUNDS = 100


async def by_hand(worker):
    counter = await worker.table("by-hand", shape=(), consistency=ASP())
    for _ in range(ROUNDS):
        value = await counter.pull()
        await worker.barrier("both-have-pulled")
        await counter.assign(value + np.float32(1))
        await worker.barrier("both-have-assigned")
    return float(await counter.pull())


async def by_pushing(worker):
    counter = await worker.table("by-pushing", shape=(), consistency=ASP(), optimizer=Add())
    for _ in range(ROUNDS):
        await worker.barrier("both-are-here")
        await counter.push(np.float32(1))
    await worker.barrier("both-have-pushed")
    return float(await counter.pull())


async def count(worker):
    return await by_hand(worker), await by_pushing(worker)


async def main():
    async with aiops.LocalCluster() as cluster:
        (hand, pushing), _ = await cluster.run(count, workers=2)
    print(f"expected {2 * ROUNDS}")
    print(f"by hand {hand:.0f}")
    print(f"by pushing {pushing:.0f}")


aiops.run(main())
