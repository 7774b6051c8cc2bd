"""What `aiops bench all-reduce` is compared with: a raw ring of sockets, gloo and MPI.

A program of its own, with nothing of aiops in it, so that it also runs in another Python that has
torch or mpi4py: ``python other_rings.py KIND HOST:PORT RANK SIZE STORE``. It dials whoever
measures, and for each line ``BYTES COUNT`` that comes makes so many all-reduces and answers with
the seconds of each. With MPI rank and size come from ``mpiexec``.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PIECE_BYTES = 256 * 1024  # received and added while it is warm

Reduce = Callable[[Any], None]


def raw(rank: int, size: int, store: str) -> tuple[Reduce, Callable[[], None]]:
    """Make a ring of blocking sockets: reduce-scatter, then gather; nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        with open(f"{store}.{rank}.new", "w") as file:
            file.write(str(door.getsockname()[1]))
        os.rename(f"{store}.{rank}.new", f"{store}.{rank}")
        after = f"{store}.{(rank + 1) % size}"
        while not os.path.exists(after):
            time.sleep(0.01)
        with open(after) as file:
            right = socket.create_connection(("127.0.0.1", int(file.read())))
        left, _ = door.accept()
    for link in (left, right):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
    selector = selectors.DefaultSelector()
    scratch = np.empty(PIECE_BYTES // 4, np.float32)

    def exchange(out: Any, into: Any, add: bool) -> None:
        outgoing, received, sent = memoryview(out).cast("B"), 0, 0
        target = memoryview(into).cast("B")
        buffer = scratch.data.cast("B")
        selector.register(left, selectors.EVENT_READ)
        selector.register(right, selectors.EVENT_WRITE)
        filled = 0
        while sent < len(outgoing) or received < len(target):
            for key, _ in selector.select():
                if key.fileobj is right:
                    sent += right.send(outgoing[sent : sent + PIECE_BYTES])
                    if sent == len(outgoing):
                        selector.unregister(right)
                elif add:
                    piece = min(PIECE_BYTES, len(target) - received)
                    filled += left.recv_into(buffer[filled:piece])
                    if filled == piece:
                        part = into[received // 4 : (received + piece) // 4]
                        np.add(part, scratch[: piece // 4], out=part)
                        received, filled = received + piece, 0
                else:
                    received += left.recv_into(target[received:])
            if received == len(target) and left in selector.get_map():
                selector.unregister(left)
        for link in (left, right):
            if link in selector.get_map():
                selector.unregister(link)

    def reduce(array: Any) -> None:
        bounds = [array.size * i // size for i in range(size + 1)]
        chunks = [array[bounds[i] : bounds[i + 1]] for i in range(size)]
        for add in (True, False):
            for step in range(size - 1):
                first = rank - step - (1 if add else 0)
                exchange(chunks[first % size], chunks[(first - 1) % size], add)

    token = np.zeros(size, np.float32)
    return reduce, lambda: reduce(token)


def gloo(rank: int, size: int, store: str) -> tuple[Reduce, Callable[[], None]]:
    """Make a process group of torch.distributed with gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    return lambda array: dist.all_reduce(torch.from_numpy(array)), dist.barrier


def mpi(rank: int, size: int, store: str) -> tuple[Reduce, Callable[[], None]]:
    """Take the world of ``mpiexec``; the library chooses how."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return lambda array: world.Allreduce(MPI.IN_PLACE, array), world.Barrier


KINDS = {"raw": raw, "gloo": gloo, "mpi": mpi}


def pin(rank: int) -> None:
    """Stay on one processor: two members of two processors do not share one by chance."""
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})


def main(kind: str, address: str, rank: int, size: int, store: str) -> None:
    """Serve whoever measures until it closes the connection."""
    if kind == "mpi":
        from mpi4py import MPI

        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    pin(rank)
    reduce, barrier = KINDS[kind](rank, size, store)
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as link, link.makefile("rw") as lines:
        lines.write(json.dumps({"rank": rank}) + "\n")
        lines.flush()
        arrays: dict[int, Any] = {}
        for line in lines:
            nbytes, count = map(int, line.split())
            array = arrays.setdefault(nbytes, np.empty(nbytes // 4, np.float32))
            seconds = []
            for _ in range(count):
                array[:] = rank + 1
                barrier()
                begun = time.perf_counter()
                reduce(array)
                seconds.append(time.perf_counter() - begun)
                assert array[0] == array[-1] == size * (size + 1) / 2
            lines.write(json.dumps(seconds) + "\n")
            lines.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
