"""Memory of a large sparse table: many keys of width 16 on two servers, in processes of their own.

    python benchmarks/sparse_memory.py [--keys 10000000] [--optimizer add|adagrad]

Prints the resident memory of both servers, before and after, in the bytes of values and state, at
its peak and in the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

import aiops
from aiops import ASP
from aiops.optim import Adagrad, Add

WIDTH = 16
KEYS_PER_PUSH = 200_000
OPTIMIZERS = {"add": Add(), "adagrad": Adagrad(lr=0.1)}


def start(stack: ExitStack, *arguments: str) -> tuple[int, str]:
    """Start a role; return its process and its address."""
    child = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-m", "aiops", *arguments], stdout=subprocess.PIPE, text=True
        )
    )
    stack.callback(child.terminate)
    assert child.stdout is not None
    return child.pid, json.loads(child.stdout.readline())["address"]


def resident(process: int, what: str = "VmRSS") -> int:
    """Bytes of a process that are in memory now, or (VmHWM) have been at most."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(what):
            return 1024 * int(line.split()[1])
    raise SystemExit("no such process")


async def fill(scheduler: str, servers: list[int], before: int, count: int, optimizer: str) -> None:
    """Push every key once, in an order without order."""
    async with aiops.connect(scheduler) as worker:
        table = await worker.sparse_table(
            "rows", WIDTH, optimizer=OPTIMIZERS[optimizer], consistency=ASP()
        )
        started_at = perf_counter()
        for first in range(0, count, KEYS_PER_PUSH):
            keys = spread(first, min(first + KEYS_PER_PUSH, count))
            await table.push(keys, np.ones((keys.size, WIDTH), np.float32))
            if first // KEYS_PER_PUSH % 10 == 0:
                print(f"{first + keys.size:,} keys", file=sys.stderr)
        seconds = perf_counter() - started_at
        assert (await table.pull(spread(0, min(1000, count))))[0, 0] != 0
        print(f"{count:,} new rows in {seconds:.1f} s, {count / seconds / 1e6:.2f} million/s")
        report(servers, before, count, optimizer)


def spread(first: int, end: int) -> NDArray[np.uint64]:
    """Return other keys for each range of numbers, anywhere among all words."""
    # A multiplication by an odd number is a permutation of all 64-bit words.
    return np.arange(first, end).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="add")
    given = parser.parse_args()
    with ExitStack() as stack:
        _, scheduler = start(
            stack, "scheduler", "--bind", "127.0.0.1:0", "--servers", "2", "--workers", "1"
        )
        servers = [start(stack, "server", "--scheduler", scheduler)[0] for _ in range(2)]
        before = sum(map(resident, servers))
        aiops.run(fill(scheduler, servers, before, given.keys, given.optimizer))


def report(servers: list[int], before: int, count: int, optimizer: str) -> None:
    """Print memory in the bytes of values and state."""
    net = 4 * WIDTH * count * (1 + len(OPTIMIZERS[optimizer].slots))
    for name, what in (("in the end", "VmRSS"), ("at its peak", "VmHWM")):
        size = sum(resident(server, what) for server in servers) - before
        print(f"{name}: {size / 2**20:,.0f} MiB for {net / 2**20:,.0f}, {size / net:.2f} times")


if __name__ == "__main__":
    main()
