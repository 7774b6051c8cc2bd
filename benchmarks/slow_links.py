"""Rings over slow links: what a measured order saves, what several connections, what "auto" knows.

    python benchmarks/slow_links.py [order] [connections] [model]

Members are processes; between each two of them bytes go through a proxy in this process, which
delays them, passes so many a second, and lets no more than a window be on its way. What is compared
is measured in turns in one run; of each the median of all members counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import numpy as np

import aiops
from aiops.testing import FaultProxy, Faults, Line
from aiops.testing.proxy import ReservedPort
from aiops.van import TcpVan
from aiops.van.base import Accept, Address, Stream

MBIT = 125_000.0
MB = 1 << 20
ALGORITHMS = ("ring", "recursive-doubling", "halving-doubling", "tree")

Lines = Callable[[int, int], tuple[Line, Line]]
OpenRing = Callable[..., Awaitable[aiops.Ring]]


class RoutedVan(TcpVan):
    """Dials other addresses than it is told: those of proxies."""

    def __init__(self, routes: dict[str, str]) -> None:
        super().__init__()
        self._routes = routes

    async def dial(self, address: Address, accept: Accept) -> Stream:
        """Open a stream to what stands for the address."""
        host, port = self._routes.get(str(address), str(address)).rsplit(":", 1)
        return await super().dial(Address(host, int(port)), accept)


def pair_lines(faults: Callable[[int, int], Faults]) -> Lines:
    """Every two members have a cable of their own, each way."""
    return lambda a, b: (
        Line(faults(a, b), random.Random(0)),
        Line(faults(a, b), random.Random(0)),
    )


def uplinks(faults: Faults) -> Lines:
    """Every member has a cable of its own, over which goes what it sends to anybody."""
    lines: dict[int, Line] = {}

    def of(member: int) -> Line:
        return lines.setdefault(member, Line(faults, random.Random(member)))

    return lambda a, b: (of(a), of(b))


async def run(
    task: str, size: int, lines: Lines, *, window_bytes: int | None = None, **options: Any
) -> list[Any]:
    """Run a task as all members, and return what each says."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(aiops.LocalCluster(servers=0))
        cluster.scheduler.expect_workers(size)
        ports = [stack.enter_context(ReservedPort()) for _ in range(size)]
        routes: list[dict[str, str]] = [{} for _ in range(size)]
        for low in range(size):
            for high in range(low + 1, size):
                up, down = lines(low, high)
                for a, b, both in ((low, high, (up, down)), (high, low, (down, up))):
                    proxy = FaultProxy(str(ports[b].address), lines=both, window_bytes=window_bytes)
                    await stack.enter_async_context(proxy)
                    routes[a][str(ports[b].address)] = proxy.address
        processes = []
        for index in range(size):
            given = {
                "task": task,
                "scheduler": cluster.address,
                "name": f"worker-{index}",
                "bind": str(ports[index].address),
                "routes": routes[index],
                "options": options,
            }
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, __file__, "--member", json.dumps(given)),
                    stdout=subprocess.PIPE,
                )
            )
        outputs = [(await process.communicate())[0] for process in processes]
    return [json.loads(output) for output in outputs]


# --- members ---


async def timed(ring: aiops.Ring, size_bytes: int, repeats: int, **options: Any) -> float:
    """Return the seconds of an all-reduce: the median."""
    array = np.ones(size_bytes // 4, np.float32)
    times = []
    for _ in range(repeats):
        await ring.barrier()
        begun = time.perf_counter()
        await ring.all_reduce(array, "mean", **options)
        times.append(time.perf_counter() - begun)
    assert array[0] == array[-1] == 1
    return statistics.median(times)


async def barriers(ring: aiops.Ring) -> float:
    """Return the seconds of a call in which nothing is sent."""
    times = []
    for _ in range(30):
        begun = time.perf_counter()
        await ring.barrier()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


async def in_orders(ring: OpenRing, size_bytes: int) -> dict[str, Any]:
    rings = {topology: await ring(topology, topology=topology) for topology in ("rank", "measured")}
    times = {
        topology: await timed(one, size_bytes, 3, algorithm="ring")
        for topology, one in rings.items()
    }
    return {"order": rings["measured"].order, **times}


async def over_connections(ring: OpenRing, connections: int, sizes: list[int]) -> dict[str, Any]:
    one = await ring("r", connections=connections)
    return {str(size): await timed(one, size, 3) for size in sizes}


async def by_algorithms(ring: OpenRing, sizes: list[int]) -> dict[str, Any]:
    one = await ring("r", topology="measured")
    rows = {}
    for size in sizes:
        repeats = 31 if size < MB else 2
        fixed_s = await barriers(one)
        times = {
            name: await timed(one, size, repeats, algorithm=name) - fixed_s
            for name in (*ALGORITHMS, "auto")
        }
        choice = one.explain("all_reduce", size // 4)
        rows[str(size)] = {
            "times": times,
            "predicted": dict(choice.predicted_s),
            "why": str(choice),
        }
    return rows


TASKS: dict[str, Callable[..., Any]] = {
    "order": in_orders,
    "connections": over_connections,
    "model": by_algorithms,
}


async def member(given: dict[str, Any]) -> Any:
    """Be one member."""
    van = RoutedVan(given["routes"])
    async with aiops.connect(given["scheduler"], name=given["name"], van=van) as worker:
        ring = partial(worker.ring, bind=given["bind"], transport="tcp")
        return await TASKS[given["task"]](ring, **given["options"])


# --- what is compared ---


def median(results: list[Any], *path: str) -> float:
    values = []
    for value in results:
        for key in path:
            value = value[key]
        values.append(value)
    return float(statistics.median(values))


async def order() -> None:
    def between(a: int, b: int) -> Faults:
        slow = (a, b) == (0, 1)
        return Faults(delay_s=0.001, rate_bytes_per_s=(10 if slow else 200) * MBIT)

    print("four members, 200 Mbit/s and 1 ms, but 10 Mbit/s between 0 and 1; 4 MB by the ring")
    results = await run("order", 4, pair_lines(between), size_bytes=4 * MB)
    by_rank, measured = median(results, "rank"), median(results, "measured")
    print(
        f"  in the order of the ranks {by_rank:.2f} s, in {results[0]['order']} {measured:.2f} s: "
        f"{by_rank / measured:.1f} times faster"
    )


async def connections() -> None:
    sizes = [MB // 4, MB, 4 * MB, 16 * MB]
    for what, rate, delay_s, window_bytes in (
        ("a window of 256 KB is the limit (20 ms, 400 Mbit/s)", 400, 0.02, 256 * 1024),
        ("the link is the limit (20 ms, 40 Mbit/s, a window of 4 MB)", 40, 0.02, 4 * MB),
    ):
        faults = Faults(delay_s=delay_s, rate_bytes_per_s=rate * MBIT)
        print(f"two members, {what}")
        times = {}
        for count in (1, 2, 4):
            results = await run(
                *("connections", 2, pair_lines(lambda *_, faults=faults: faults)),
                window_bytes=window_bytes,
                connections=count,
                sizes=sizes,
            )
            times[count] = [median(results, str(size)) for size in sizes]
        for number, size in enumerate(sizes):
            one, two, four = (times[count][number] for count in (1, 2, 4))
            print(
                f"  {size / MB:5.2f} MB: 1 connection {one:.3f} s, "
                f"2 {two:.3f} s ({one / two:.2f} times faster), 4 {four:.3f} s ({one / four:.2f})"
            )


async def model() -> None:
    sizes = [256, 16 * 1024, MB, 16 * MB]
    print("four members, 1 ms and 100 Mbit/s each; less what a barrier takes")
    faults = Faults(delay_s=0.001, rate_bytes_per_s=100 * MBIT)
    results = await run("model", 4, uplinks(faults), sizes=sizes)
    for size in sizes:
        row = results[0][str(size)]
        times = {name: median(results, str(size), "times", name) for name in row["times"]}
        auto = times.pop("auto")
        print(f"  {row['why']}")
        for name in sorted(times, key=lambda name: times[name]):
            predicted, taken = row["predicted"][name], times[name]
            print(
                f"    {name:>18} {1e3 * taken:8.2f} ms, predicted {1e3 * predicted:8.2f}: "
                f"{predicted / taken - 1:+.0%}"
            )
        print(
            f"    {'auto':>18} {1e3 * auto:8.2f} ms: {auto / min(times.values()):.2f} of the best"
        )


PARTS = {"order": order, "connections": connections, "model": model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--member", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member:
        print(json.dumps(aiops.run(member(json.loads(given.member)))))
        return
    # Other selectors wait for whole milliseconds, which is as long as the links are.
    fine = partial(asyncio.SelectorEventLoop, selectors.SelectSelector())
    with asyncio.Runner(loop_factory=fine) as runner:
        for part in given.parts or PARTS:
            runner.run(PARTS[part]())


if __name__ == "__main__":
    main()
