"""`aiops bench codecs`: what codecs cost and save on this machine. Options and the table."""

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

from aiops.benchmarking.codecs import SPELLINGS, CodecRow, measure_codecs
from aiops_cli.options import logging_options


@click.command("codecs", epilog="Example:  aiops bench codecs --codec top-k:0.01 --codec int8")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--quick", is_flag=True, help="Fewer rounds: seconds, for a first look.")
@click.option("--codec", "spellings", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=64 << 10),
    default=16 << 20,
    show_default="16 MB",
    metavar="BYTES",
    help="Leave out sizes above this.",
)
@logging_options("warning")
def codecs(as_json: bool, quick: bool, spellings: tuple[str, ...], max_bytes: int) -> None:
    """Time encoding and decoding of gradients, and count what is saved.

    The vectors are normal numbers of 64 KB, 1 MB and 16 MB. Times are also given in copies of
    the same vector, which is the figure to compare between machines.
    """
    rows = measure_codecs(
        quick=quick,
        bytes_max=max_bytes,
        spellings=spellings or SPELLINGS,
        progress=lambda line: print(line, file=sys.stderr),
    )
    if as_json:
        machine = {
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "processors": os.cpu_count(),
        }
        print(json.dumps({"rows": [asdict(row) for row in rows], "machine": machine}))
    else:
        Console().print(_table(rows))


def _table(rows: Sequence[CodecRow]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    table.add_column("medians", no_wrap=True)
    for heading in ("size", "ratio", "encode ms", "copies", "decode ms", "copies"):
        table.add_column(heading, justify="right", no_wrap=True)
    for encode, decode in zip(rows[::2], rows[1::2], strict=True):
        table.add_row(
            encode.codec,
            f"{encode.bytes / 2**20:g} MB",
            f"{encode.ratio:.1f}",
            f"{encode.median_s * 1e3:.2f}",
            f"{encode.ratio_to_raw:.0f}",
            f"{decode.median_s * 1e3:.2f}",
            f"{decode.ratio_to_raw:.0f}",
        )
    return table
