"""`aiops bench all-reduce`: rings over TCP and over shared memory, next to what else there is.

Every peer is a set of processes that wait on a socket until it is their turn, so that those whose
turn it is not cost nothing. Rounds are interleaved. Peers that are not installed are left out.
Also here: the ring in one process, next to copying the same arrays.

Arrays are made once for each size and reduced again and again, as in training. With `ring.empty`
they are "aiops shared" and, over TCP, "aiops tcp empty"; the other rows have ordinary ones. "aiops
two hosts" does as if odd and even ranks were on different hosts: TCP between them, memory inside.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np

import aiops
from aiops.benchmarking import other_rings
from aiops.benchmarking.ring_member import TWO_HOSTS
from aiops.collective import InProcessRing
from aiops.collective.shared import supported
from aiops.errors import AiopsError
from aiops_protocol.limits import KiB, MiB

_COUNTS: Final = {4 * KiB: 40, 64 * KiB: 40, MiB: 20, 16 * MiB: 4, 64 * MiB: 2}
ROUNDS: Final = 9
QUICK_ROUNDS: Final = 2
START_TIMEOUT_S: Final = 120.0
"""For all processes of a peer to be there; torch takes some seconds to load, four times over."""
IN_PROCESS_RANKS: Final = 4

TCP: Final = "aiops tcp"
TCP_EMPTY: Final = "aiops tcp empty"
SHARED: Final = "aiops shared"
COPIED: Final = "aiops shared copied"
HOSTS: Final = "aiops two hosts"
RAW: Final = "raw"
IN_PROCESS: Final = "aiops in process"
COPYING: Final = "copying"


@dataclass(frozen=True, slots=True)
class RingRow:
    """What came out for one size, number of processes and peer; seconds are of one all-reduce.

    A ratio is this median over that of another peer, below one when this is faster; `None` if that
    one is not there. In one process `ratio_to_raw` is that to copying the same arrays once.
    """

    op: str
    processes: int
    bytes: int
    peer: str
    median_s: float
    min_s: float
    max_s: float
    ratio_to_raw: float
    ratio_to_gloo: float | None = None
    ratio_to_mpi: float | None = None


class _Links:
    """The door of whoever measures, and who has come through it."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take note of a process."""
        await self.came.put((reader, writer))


class Peer:
    """The processes of one peer.

    Parameters
    ----------
    names
        What the rows call it, and the kind of array that it asks for with that name.
    """

    def __init__(
        self,
        names: dict[str, str],
        links: Sequence[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    ) -> None:
        self.names = names
        self._links = links

    async def sample(self, name: str, size: int, count: int) -> list[float]:
        """Let all make some all-reduces; return the seconds of each, by the slowest member."""
        for _, writer in self._links:
            writer.write(f"{size} {count} {self.names[name]}".strip().encode() + b"\n")
        answers = []
        for reader, _ in self._links:
            line = await reader.readline()
            if not line:
                raise AiopsError(f"a process of {name} has ended in the middle of the benchmark")
            answers.append(json.loads(line))
        return [max(times) for times in zip(*answers, strict=True)]


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C is for the parent, whose end the children see.
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=nothing, stdout=nothing, env=environment, start_new_session=True
    )


@asynccontextmanager
async def _processes(
    commands: Sequence[Sequence[str]],
    links: _Links,
    size: int,
    names: dict[str, str],
    environment: dict[str, str] | None = None,
) -> AsyncIterator[Peer]:
    """Start the processes of a peer, and end them with the block."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    started = [_start(command, environment) for command in commands]
    mine: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while len(mine) < size:
                if any(process.poll() not in (None, 0) for process in started):
                    raise AiopsError(f"a process of {next(iter(names))} has ended at once")
                with suppress(TimeoutError):
                    mine.append(await asyncio.wait_for(links.came.get(), 0.2))
                    await mine[-1][0].readline()
        yield Peer(names, mine)
    finally:
        for _, writer in mine:
            writer.close()
        for process in started:
            if len(mine) < size:
                process.kill()
            await asyncio.to_thread(process.wait)


def has_module(python: str, module: str) -> bool:
    """Say whether another Python has a module, without loading it."""
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False, capture_output=True).returncode == 0


def _mpiexec(python: str) -> str | None:
    beside = Path(python).parent / "mpiexec"
    return str(beside) if beside.exists() else shutil.which("mpiexec")


@asynccontextmanager
async def _peers(size: int, python: str) -> AsyncIterator[list[Peer]]:
    """Start every peer that can be, each with `size` processes."""
    links = _Links()
    door = await asyncio.start_server(links.accept, "127.0.0.1", 0)
    host, port = door.sockets[0].getsockname()[:2]
    address = f"{host}:{port}"
    script = other_rings.__file__
    async with AsyncExitStack() as stack:
        stack.callback(door.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiops-bench-"))

        async def start(
            kind: str, command: Callable[[int], list[str]], names: dict[str, str], **more: str
        ) -> Peer:
            commands = [command(rank) for rank in range(1 if kind == "mpi" else size)]
            return await stack.enter_async_context(
                _processes(commands, links, size, names, dict(more))
            )

        def other(kind: str, interpreter: str) -> Callable[[int], list[str]]:
            return lambda rank: [
                *(interpreter, script, kind, address, str(rank), str(size), f"{folder}/{kind}")
            ]

        def member(transport: str, rank: int) -> list[str]:
            module = "aiops.benchmarking.ring_member"
            return [sys.executable, "-m", module, transport, address]

        peers = []
        transports = {"tcp": {TCP: "ordinary"}}
        if supported():
            transports["tcp"][TCP_EMPTY] = "shared"
            transports["shared-memory"] = {SHARED: "shared", COPIED: "ordinary"}
            if size > 2:  # or there is nobody to share memory with
                transports[TWO_HOSTS] = {HOSTS: "shared"}
        for transport, names in transports.items():
            scheduler = await stack.enter_async_context(
                aiops.Scheduler(servers=1, workers=size, end_when_idle=True)
            )
            await stack.enter_async_context(aiops.Server(scheduler.address))  # each job has one
            where = str(scheduler.address)
            peers.append(
                await start(transport, partial(member, transport), names, AIOPS_SCHEDULER=where)
            )
        peers.append(await start(RAW, other(RAW, sys.executable), {RAW: ""}))
        if has_module(python, "torch"):
            peers.append(await start("gloo", other("gloo", python), {"gloo": ""}))
        mpiexec = _mpiexec(python)
        if mpiexec and has_module(python, "mpi4py"):
            mpi = other("mpi", python)
            command = [mpiexec, "-n", str(size)]
            peers.append(await start("mpi", lambda _: [*command, *mpi(0)], {"mpi": ""}))
        yield peers


async def measure_all_reduce(
    *,
    quick: bool = False,
    bytes_max: int = 64 * MiB,
    processes: Sequence[int] = (2, 4),
    python: str = sys.executable,
    progress: Callable[[str], None] = lambda line: None,
) -> list[RingRow]:
    """Measure all-reduces between processes, and in one process, in interleaved rounds.

    Parameters
    ----------
    quick
        Fewer rounds, for a first look.
    bytes_max
        Leave out larger arrays.
    processes
        How many take part: one after the other.
    python
        The Python in which torch (for gloo) and mpi4py (for MPI) are looked for.
    progress
        Called with one line before each round.

    Returns
    -------
    rows : list of RingRow
        For each number of processes, size and peer.
    """
    rounds = QUICK_ROUNDS if quick else ROUNDS
    sizes = [size for size in _COUNTS if size <= bytes_max]
    rows = []
    for count in processes:
        samples: dict[tuple[int, str], list[float]] = {}
        async with _peers(count, python) as peers:
            for number in range(rounds + 1):  # the first one warms up
                progress(f"{count} processes: round {number} of {rounds}")
                for size in sizes:
                    for peer in peers:
                        for name in peer.names:
                            times = await peer.sample(name, size, _COUNTS[size])
                            samples.setdefault((size, name), []).extend(times if number else [])
        for size in sizes:
            names = [name for peer in peers for name in peer.names]
            rows += _rows("all-reduce", count, size, {n: samples[size, n] for n in names})
    size = max(sizes)
    progress(f"in one process: {IN_PROCESS_RANKS} ranks")
    return rows + await _in_process(size, rounds)


def _rows(
    op: str, count: int, size: int, samples: dict[str, list[float]], yardstick: str = RAW
) -> list[RingRow]:
    medians = {name: statistics.median(times) for name, times in samples.items()}

    def ratio(name: str, other: str) -> float | None:
        return medians[name] / medians[other] if other in medians else None

    return [
        RingRow(
            op,
            count,
            size,
            name,
            medians[name],
            min(times),
            max(times),
            medians[name] / medians[yardstick],
            ratio(name, "gloo"),
            ratio(name, "mpi"),
        )
        for name, times in samples.items()
    ]


async def _in_process(size: int, rounds: int) -> list[RingRow]:
    """Reduce between ranks of this process; the yardstick copies each array once, in threads.

    That is the least that memory has to do: each element is read once and written once.
    """
    ring = InProcessRing(IN_PROCESS_RANKS)
    arrays = [np.ones(size // 4, np.float32) for _ in range(IN_PROCESS_RANKS)]
    copies = [np.zeros_like(array) for array in arrays]
    samples: dict[str, list[float]] = {IN_PROCESS: [], COPYING: []}
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for number in range(rounds + 1):
            begun = perf_counter()
            await asyncio.gather(
                *(ring.member(i).all_reduce(array, "max") for i, array in enumerate(arrays))
            )
            middle = perf_counter()
            list(threads.map(np.copyto, copies, arrays))
            ended = perf_counter()
            if number:
                samples[IN_PROCESS].append(middle - begun)
                samples[COPYING].append(ended - middle)
    return _rows("all-reduce in one process", IN_PROCESS_RANKS, size, samples, COPYING)
