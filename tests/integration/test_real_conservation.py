"""Conservation with real processes: an acknowledged push is applied once, any other at most once.

Scheduler, servers and workers are processes; connections are cut, held and delayed by proxies, and
workers are killed and started again. `make conservation` does five rounds.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

import aiops
from aiops.testing import FaultProxy, Faults, Weather
from aiops.testing.proxy import ReservedPort
from aiops.testing.weather import Storm
from conserving import LARGE_EVERY, LIVES, PUSHES, SERVERS, WORKERS, places, tables

pytestmark = [pytest.mark.conservation]

KILLS = 3
WITHIN_S = 900.0
SCRIPT = Path(__file__).resolve().parents[1] / "support" / "conserving.py"


async def start(*command: str, **environment: str) -> asyncio.subprocess.Process:
    """Start a Python process whose log nobody reads."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )


class Job:
    """The processes of one round."""

    def __init__(self, stack: AsyncExitStack, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.proxies: list[FaultProxy] = []
        self.lives = dict.fromkeys(range(WORKERS), 0)
        self.workers: dict[int, asyncio.subprocess.Process] = {}
        self._stack = stack
        self._folder = folder
        self._address = ""

    async def begin(self, seed: int) -> None:
        """Start everybody."""
        port = self._stack.enter_context(ReservedPort())
        self._address = str(port.address)
        scheduler = ("scheduler", "--bind", self._address, "--servers", str(SERVERS))
        self._own(await start("-m", "aiops", *scheduler, "--on-worker-loss", "continue"))
        for index in range(SERVERS):
            behind = self._stack.enter_context(ReservedPort())
            proxy = FaultProxy(str(behind.address), seed=seed + index)
            self.proxies.append(await self._stack.enter_async_context(proxy))
            server = ("server", "--scheduler", self._address, "--bind", str(behind.address))
            self._own(await start("-m", "aiops", *server, "--advertise", proxy.address))
        for index in range(WORKERS):
            await self._start_worker(index)

    def _own(self, process: asyncio.subprocess.Process) -> None:
        async def end() -> None:
            if process.returncode is None:
                process.kill()
            await process.wait()

        self._stack.push_async_callback(end)

    async def _start_worker(self, index: int) -> None:
        process = self.workers[index] = await start(
            str(SCRIPT),
            str(self.lives[index]),
            str(self._file(index)),
            AIOPS_SCHEDULER=self._address,
            AIOPS_NAME=f"worker-{index}",
        )
        self._own(process)

    def _file(self, index: int) -> Path:
        return self._folder / f"acknowledged-{index}"

    def acknowledged(self, index: int | None = None) -> list[int]:
        """Return the numbers that workers have had acknowledged so far."""
        found: list[int] = []
        for worker in range(WORKERS) if index is None else [index]:
            if self._file(worker).exists():
                found += map(int, self._file(worker).read_text().split())
        return found

    async def kill_some(self) -> None:
        """Kill workers in the midst of it, and start each again."""
        for kill in range(KILLS):
            while len(self.acknowledged()) < WORKERS * PUSHES * (kill + 1) // (KILLS + 2):
                await asyncio.sleep(0.05)
            index = self.chance.choice([w for w in self.workers if self._is_running(w)])
            self.workers[index].send_signal(signal.SIGKILL)
            await self.workers[index].wait()
            self.lives[index] += 1
            assert self.lives[index] < LIVES
            await self._start_worker(index)

    def _is_running(self, index: int) -> bool:
        return self.workers[index].returncode is None

    async def read(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both tables as a further worker sees them."""
        async with aiops.connect(self._address, name="reader") as worker:
            small, large = await tables(worker)
            return await small.pull(), await large.pull()


@pytest.mark.parametrize("seed", range(1, 6))
async def test_each_push_counts_once_in_real_processes(seed: int, tmp_path: Path) -> None:
    async with asyncio.timeout(WITHIN_S), AsyncExitStack() as stack:
        job = Job(stack, tmp_path, seed)
        await job.begin(seed)
        weather = Weather(
            Faults(delay_s=0.001, jitter_s=0.004, cut_every_bytes=60_000),
            cut_every_s=0.3,
            black_hole_every_s=5.0,
            black_hole_s=1.0,
            seed=seed,
        )
        storm = Storm(job.proxies, weather)
        storm.start()
        stack.push_async_callback(storm.calm)
        killing = asyncio.ensure_future(job.kill_some())
        stack.callback(killing.cancel)
        await killing
        for process in list(job.workers.values()):
            assert await process.wait() == 0
        await storm.calm()
        small, large = await job.read()
        cuts = sum(proxy.counters.cuts for proxy in job.proxies)
        check(job, small, large)
        in_small = small.reshape(SERVERS, -1, 4).any(axis=(0, 2)).sum()
        applied = int(in_small + large.any(axis=0).sum())
        acknowledged = len(job.acknowledged())
        print(
            f"\nseed {seed}: {acknowledged} pushes acknowledged, {applied - acknowledged} others "
            f"applied, {cuts} cuts, {storm.black_holes} black holes, {KILLS} kills"
        )


def check(job: Job, small: np.ndarray, large: np.ndarray) -> None:
    """Each element is 0 or 1, and 1 in all parts of what was acknowledged."""
    assert np.isin(small, (0, 1)).all()
    assert np.isin(large, (0, 1)).all()
    numbers = job.acknowledged()
    assert len(numbers) == len(set(numbers)) == WORKERS * PUSHES
    for number in numbers:
        if number % LARGE_EVERY:
            assert (small[places(number)] == 1).all()
        else:
            assert (large[:, number // LARGE_EVERY] == 1).all()
