"""`aiops bench sparse`: rows of sparse tables on this machine. Options and the table."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import aiops
from aiops.benchmarking.sparse import KEYS, ROWS, SparseRow, measure_sparse
from aiops_cli.options import logging_options


@click.command("sparse", epilog="Example:  aiops bench sparse --quick --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--quick", is_flag=True, help="Fewer rounds: seconds, for a first look.")
@click.option(
    "--rows", type=click.IntRange(min=1), default=ROWS, show_default=True, help="Rows of the table."
)
@click.option(
    "--keys", type=click.IntRange(min=1), default=KEYS, show_default=True, help="Rows of a call."
)
@logging_options("warning")
def sparse(as_json: bool, quick: bool, rows: int, keys: int) -> None:
    """Time pulls and pushes of random rows between two processes, against numpy.

    Rows of 16 values. In turns with them numpy gathers and adds the same rows of an array in one
    process; "of numpy" is the rate reached as a part of its rate.
    """
    measured = aiops.run(
        measure_sparse(
            quick=quick,
            rows=rows,
            keys=min(keys, rows),
            progress=lambda line: print(line, file=sys.stderr),
        )
    )
    if as_json:
        machine = {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "processors": os.cpu_count(),
        }
        print(json.dumps({"rows": [asdict(row) for row in measured], "machine": machine}))
    else:
        Console().print(_table(measured))


def _table(rows: Sequence[SparseRow]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("medians", no_wrap=True)
    for heading in ("aiops ms", "numpy ms", "of numpy", "million keys/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for ours, raw in zip(rows[::2], rows[1::2], strict=True):
        table.add_row(
            ours.op,
            f"{ours.median_s * 1e3:.2f}",
            f"{raw.median_s * 1e3:.2f}",
            f"{ours.rate_of_raw:.2f}",
            f"{ours.keys_per_s / 1e6:.2f}",
        )
    return table
