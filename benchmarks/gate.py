"""The cost gate against dense and each of its codecs, on emulated links and on loopback.

    python benchmarks/gate.py --link "100 Mbit/s" --size "1 MB" --steps 50

One worker pushes to one server, which is in another process behind a proxy that passes so many
bytes a second. For each link and size every codec and `auto` have a table of their own and take
turns, so that a busy machine is equally busy for all. The median time of each counts, after the
first twenty turns.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import statistics
import subprocess
import sys
import time
from functools import partial

import numpy as np

import aiops
from aiops import ASP
from aiops.compression.gate import CANDIDATES
from aiops.optim import Add
from aiops.testing import ChaosCluster
from aiops.testing.faults import Faults
from aiops.testing.weather import Weather

LINKS = {"10 Mbit/s": 1.25e6, "100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6, "loopback": 0.0}
SIZES = {"16 KB": 4_096, "1 MB": 262_144, "4 MB": 1_048_576, "16 MB": 4_194_304}
WARM_UP = 20
WARM_UP_S = 40.0
"""Turns that do not count, and after how many seconds no more of them are taken."""


async def serve(rate: float) -> None:
    """Be a cluster behind a slow proxy until standard input ends."""
    weather = Weather(Faults(rate_bytes_per_s=rate)) if rate else None
    cluster = aiops.LocalCluster() if weather is None else ChaosCluster(weather=weather)
    async with cluster:
        print(cluster.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def measure(address: str, elements: int, steps: int, seconds: float) -> str:
    """Let all take turns; return a line of what they took."""
    gradient = np.random.default_rng(0).standard_normal(elements, np.float32)
    async with aiops.connect(address) as worker:
        tables = {
            codec: await worker.table(
                f"w{number}", elements, optimizer=Add(), consistency=ASP(), compression=codec
            )
            for number, codec in enumerate((*CANDIDATES, "auto"))
        }
        times: dict[str, list[float]] = {codec: [] for codec in tables}
        warm = 0
        began = time.perf_counter()
        for turn in range(WARM_UP + steps):
            spent = time.perf_counter() - began
            if turn < WARM_UP and spent < WARM_UP_S:
                warm = turn + 1
            if spent > WARM_UP_S + seconds and turn > warm + 4:
                break
            order = list(tables.items())
            np.random.default_rng(turn).shuffle(order)
            for codec, table in order:
                if turn < warm and codec != "auto" and turn:
                    continue
                started = time.perf_counter()
                await table.push(gradient)
                times[codec].append(time.perf_counter() - started)
        stats = worker.stats()["compression"][tables["auto"].name]
    counted = len(times["auto"]) - warm
    medians = {codec: statistics.median(taken[-counted:]) for codec, taken in times.items()}
    best = min(median for codec, median in medians.items() if codec != "auto")
    shown = ", ".join(f"{codec} {median * 1e3:.2f}" for codec, median in medians.items())
    return (
        f"chose {stats['chosen']}, {medians['auto'] / best:.2f} of the best, "
        f"{medians['dense'] / medians['auto']:.1f} times faster than dense; "
        f"ms of {counted}: {shown}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="about so long for each cell")
    parser.add_argument("--link", action="append", choices=LINKS)
    parser.add_argument("--size", action="append", choices=SIZES)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        # Other selectors wait for whole milliseconds, which is long for what a fast link does.
        fine = partial(asyncio.SelectorEventLoop, selectors.SelectSelector())
        with asyncio.Runner(loop_factory=fine) as runner:
            runner.run(serve(given.serve))
        return
    for link in given.link or LINKS:
        for size in given.size or SIZES:
            command = [sys.executable, __file__, "--serve", str(LINKS[link])]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as server:
                assert server.stdout is not None
                address = server.stdout.readline().strip()
                line = aiops.run(measure(address, SIZES[size], given.steps, given.seconds))
                server.communicate("")
            print(f"{link:>10} {size:>5}: {line}", flush=True)


if __name__ == "__main__":
    main()
