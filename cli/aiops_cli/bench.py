"""`aiops bench`: measure this machine, next to a raw socket that does the same work.

Only options and the table live here; what is measured lives in `aiops.benchmarking`.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import aiops
from aiops.benchmarking.all_reduce import RingRow, measure_all_reduce
from aiops.benchmarking.push_pull import measure_push_pull
from aiops.benchmarking.rounds import Row
from aiops_cli.bench_codecs import codecs
from aiops_cli.bench_sparse import sparse
from aiops_cli.options import logging_options

THROUGHPUT_FROM_BYTES = 64 * 1024  # smaller ones are round trips: their MB/s mean nothing
_UNITS = ((1 << 20, "MB"), (1 << 10, "KB"), (1, "B"))


@click.group(epilog="Example:  aiops bench push-pull")
def bench() -> None:
    """Measure push and pull, all-reduces, codecs, and sparse tables on this machine."""


bench.add_command(codecs)
bench.add_command(sparse)


@bench.command("push-pull", epilog="Example:  aiops bench push-pull --quick --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--quick", is_flag=True, help="Fewer rounds: seconds, for a first look.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=4),
    default=64 << 20,
    show_default="64 MB",
    metavar="BYTES",
    help="Leave out sizes above this.",
)
@logging_options("warning")
def push_pull(as_json: bool, quick: bool, max_bytes: int) -> None:
    """Time push and pull between two processes, against a raw socket.

    A worker here and a server in a second process exchange 4 bytes to 64 MB of float32. In turns
    with them a raw blocking socket between two processes does the same work; the ratio of the two
    medians is the figure to compare between machines.
    """
    rows = aiops.run(
        measure_push_pull(
            quick=quick, bytes_max=max_bytes, progress=lambda line: print(line, file=sys.stderr)
        )
    )
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "machine": _machine()}))
    else:
        Console().print(_table(rows))


@bench.command("all-reduce", epilog="Example:  aiops bench all-reduce --processes 2 --quick")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--quick", is_flag=True, help="Fewer rounds: half a minute, for a first look.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=4096),
    default=64 << 20,
    show_default="64 MB",
    metavar="BYTES",
    help="Leave out sizes above this.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=2, max=64),
    multiple=True,
    default=(2, 4),
    show_default="2 and 4",
    help="How many processes take part; may be given again.",
)
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False),
    default=sys.executable,
    show_default="this one",
    help="The Python in which torch (gloo) and mpi4py (MPI) are looked for.",
)
@logging_options("warning")
def all_reduce(
    as_json: bool, quick: bool, max_bytes: int, processes: tuple[int, ...], python: str
) -> None:
    """Time all-reduces between processes, over TCP and over shared memory.

    Arrays of 4 KB to 64 MB of float32. In turns with aiops a ring of raw sockets does the same, and
    so do gloo and MPI where they are installed. "tcp empty" and "shared" reduce arrays of
    `ring.empty`, "tcp" and "shared copied" ordinary ones. "two hosts", of more than two processes,
    does as if odd and even ones were on two hosts, TCP between and memory inside. "in process" is
    an `InProcessRing`, beside copying the arrays once. The ratios of the medians are the figures to
    compare between machines.
    """
    rows = aiops.run(
        measure_all_reduce(
            quick=quick,
            bytes_max=max_bytes,
            processes=processes,
            python=python,
            progress=lambda line: print(line, file=sys.stderr),
        )
    )
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "machine": _machine()}))
    else:
        Console().print(_ring_table(rows))


def _ring_table(rows: Sequence[RingRow]) -> Table:
    """One line for each size and peer; a ratio below 1 says that this one is faster."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("ranks")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("peer", no_wrap=True)
    for heading in ("median", "time/raw", "/gloo", "/mpi"):
        table.add_column(heading, justify="right", no_wrap=True)
    before = None
    for row in rows:
        case = (str(row.processes), _size(row.bytes), row.op)
        ratios = (row.ratio_to_raw, row.ratio_to_gloo, row.ratio_to_mpi)
        written = ["" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        shown = ("", "") if case == before else case[:2]
        table.add_row(*shown, row.peer, _time(row.median_s), *written)
        before = case
    return table


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("medians", no_wrap=True)
    for heading in ("size", "aiops", "raw", "time/raw", "MB/s", "of raw"):
        table.add_column(heading, justify="right", no_wrap=True)
    for ours, raw in _pairs(rows):
        streams = ours.bytes >= THROUGHPUT_FROM_BYTES or "in flight" in ours.op
        table.add_row(
            ours.op,
            _size(ours.bytes),
            _time(ours.median_s),
            _time(raw.median_s),
            f"{ours.ratio_to_raw:.2f}",
            f"{ours.mb_per_s:,.0f}" if streams else "",
            f"{ours.throughput_of_raw:.2f}" if streams else "",
        )
    return table


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    by_case: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        by_case.setdefault((row.op, row.bytes), {})[row.peer] = row
    for peers in by_case.values():
        yield peers["aiops"], peers["raw"]


def _size(count: int) -> str:
    factor, unit = next(pair for pair in _UNITS if count >= pair[0])
    return f"{count // factor} {unit}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.2f} ms"


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(),
    }
