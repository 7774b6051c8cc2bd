"""The cost gate against dense and each of its codecs, on emulated links and on loopback.

    python benchmarks/gate.py --steps 50

One worker pushes to one server through a proxy of so many bytes a second; for each link and size
the median time of a push, after the first twenty.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import aiops
from aiops import ASP
from aiops.compression.gate import CANDIDATES
from aiops.optim import Add
from aiops.testing import ChaosCluster
from aiops.testing.faults import Faults
from aiops.testing.weather import Weather

LINKS = {"10 Mbit/s": 1.25e6, "100 Mbit/s": 12.5e6, "1 Gbit/s": 125e6, "loopback": None}
SIZES = {"16 KB": 4_096, "1 MB": 262_144, "4 MB": 1_048_576, "16 MB": 4_194_304}
LEFT_OUT = 20


async def measure(codec: str | None, rate: float | None, elements: int, steps: int) -> tuple:
    gradient = np.random.default_rng(0).standard_normal(elements, np.float32)
    cluster = (
        aiops.LocalCluster(servers=1)
        if rate is None
        else ChaosCluster(servers=1, weather=Weather(Faults(rate_bytes_per_s=rate)))
    )
    async with cluster, cluster.connect() as worker:
        table = await worker.table(
            "w", elements, optimizer=Add(), consistency=ASP(), compression=codec
        )
        times = []
        for _ in range(steps + LEFT_OUT):
            began = time.perf_counter()
            await table.push(gradient)
            times.append(time.perf_counter() - began)
        stats = worker.stats()["compression"].get("w", {})
    return statistics.median(times[LEFT_OUT:]), stats.get("chosen", codec or "dense")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--link", action="append", choices=LINKS)
    parser.add_argument("--size", action="append", choices=SIZES)
    given = parser.parse_args()
    for link in given.link or LINKS:
        for size in given.size or SIZES:
            steps = given.steps
            medians = {}
            chosen = ""
            for codec in (*CANDIDATES, "auto"):
                setting = None if codec == "dense" else codec
                median, chosen = aiops.run(measure(setting, LINKS[link], SIZES[size], steps))
                medians[codec] = median
            best = min(value for codec, value in medians.items() if codec != "auto")
            line = ", ".join(f"{codec} {value * 1e3:.2f}" for codec, value in medians.items())
            print(f"{link:>10} {size:>5}: auto chose {chosen}, {medians['auto'] / best:.2f} of the "
                  f"best; ms: {line}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
