"""A member of a ring for `aiops bench all-reduce`: aiops itself, as a user's program would use it.

A program: ``python -m aiops.benchmarking.ring_member TRANSPORT HOST:PORT``. The scheduler is in the
environment. It dials whoever measures, and for each line ``BYTES COUNT ARRAYS`` makes so many
all-reduces of an array of that kind (`shared` by `ring.empty`, or `ordinary`), and answers with the
seconds of each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

import aiops
from aiops.benchmarking.other_rings import pin

TWO_HOSTS: Final = "two-hosts"
"""In place of a transport: as if odd and even ranks were on different hosts."""


async def main(transport: str, address: str) -> None:
    """Serve whoever measures until it closes the connection."""
    async with aiops.connect() as worker:
        pin(worker.rank)
        if transport == TWO_HOSTS:
            worker._rings.apart = f"-{worker.rank % 2}"
            transport = "auto"
        ring = await worker.ring("bench", transport=transport)
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(json.dumps({"rank": ring.rank, "transport": ring.transport}).encode() + b"\n")
        arrays: dict[tuple[int, str], NDArray[np.float32]] = {}
        while line := await reader.readline():
            size, count, kind = line.decode().split()
            elements = int(size) // 4
            array = arrays.get((elements, kind))
            if array is None:
                new = ring.empty(elements) if kind == "shared" else np.empty(elements, np.float32)
                array = arrays[elements, kind] = new
            seconds = []
            for _ in range(int(count)):
                array[:] = ring.rank + 1
                await ring.barrier()
                begun = perf_counter()
                await ring.all_reduce(array)
                seconds.append(perf_counter() - begun)
                total = ring.world_size * (ring.world_size + 1) / 2
                assert array[0] == array[-1] == total
            writer.write(json.dumps(seconds).encode() + b"\n")
        writer.close()


if __name__ == "__main__":
    aiops.run(main(sys.argv[1], sys.argv[2]))
