"""Measure what messages cost, over loopback TCP and within one process, for the cost model.

    python benchmarks/fit_links.py

prints the two `Link` values that `aiops.collective.cost_model` has as presets. Over TCP two workers
in two processes make broadcasts (one message, nothing combined) and all-reduces (one message each
way, combined), or two after the other; the smallest of many times is taken, since everything else
that a machine does only adds to them. What every call costs, a barrier costs too: it is taken off.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

import numpy as np

import aiops
from aiops.collective.call import Array
from aiops.collective.cost_model import Sample, fit
from aiops.collective.execution import Execution
from aiops.collective.schedule import all_reduce, broadcast

SIZES = (4, 4096, 65_536, 1 << 20, 4 << 20, 16 << 20)
REPEATS = 60


async def smallest(
    ring: aiops.Ring, call: Callable[[Array], Awaitable[None]], array: Array
) -> float:
    times = []
    for _ in range(REPEATS if array.nbytes < 1 << 20 else REPEATS // 3):
        await ring.barrier()
        begun = perf_counter()
        await call(array)
        times.append(perf_counter() - begun)
    return min(times)


async def member(address: str) -> list[Sample]:
    samples = []
    async with aiops.connect(address) as worker:
        ring = await worker.ring("fit", transport="tcp")
        calls: dict[tuple[int, bool], Callable[[Array], Awaitable[None]]] = {
            (1, False): partial(ring.broadcast, root=1, algorithm="tree"),
            (1, True): partial(ring.all_reduce, op="max", algorithm="recursive-doubling"),
            (2, True): partial(ring.all_reduce, op="max", algorithm="tree"),
        }
        fixed_s = await smallest(ring, lambda _: ring.barrier(), np.empty(0, np.float32))
        for size in SIZES:
            array = np.ones(size // 4, np.float32)
            for (messages, combined), call in calls.items():
                seconds = await smallest(ring, call, array)
                samples.append(
                    Sample(messages, size, combined * size, max(seconds - fixed_s, 1e-6))
                )
    return samples


async def over_tcp() -> list[Sample]:
    async with (
        aiops.Scheduler(servers=1, workers=2, end_when_idle=True) as scheduler,
        aiops.Server(scheduler.address),
    ):
        command = [sys.executable, __file__, str(scheduler.address)]
        processes = [
            await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)
        ]
        outputs = [await process.communicate() for process in processes]
    lines = outputs[0][0].decode().splitlines()
    return [Sample(*map(float, line.split())) for line in lines]  # type: ignore[arg-type]  # all four


def in_process() -> list[Sample]:
    """Two arrays in cache, one message after the other: a copy, or a copy kept and two sums."""
    samples = []
    for size in SIZES[:4]:
        arrays = [np.ones(size // 4, np.float32) for _ in range(2)]
        for messages, combined, schedules in (
            (1, 0, [broadcast("tree", rank, 2, size // 4) for rank in range(2)]),
            (2, size, [all_reduce("tree", rank, 2, size // 4) for rank in range(2)]),
        ):
            execution = Execution(schedules, size // 4, 4)
            times = []
            for _ in range(10 * REPEATS):
                begun = perf_counter()
                for part in range(execution.parts):
                    execution.perform(part, arrays, np.maximum)
                times.append(perf_counter() - begun)
            samples.append(Sample(messages, size, combined, min(times)))
    return samples


def main() -> None:
    if len(sys.argv) > 1:
        for sample in aiops.run(member(sys.argv[1])):
            print(*sample)
        return
    print(f"{os.cpu_count()} processors")
    for name, samples in (("LOOPBACK", aiops.run(over_tcp())), ("IN_PROCESS", in_process())):
        for sample in samples:
            sizes = (sample.messages, sample.bytes, sample.combined_bytes)
            what = "{:.0f} x {:.0f} bytes, {:.0f} combined".format(*sizes)
            print(f"  {what:>45}: {1e6 * sample.seconds:10.1f} us")
        print(name, fit(samples))


if __name__ == "__main__":
    main()
