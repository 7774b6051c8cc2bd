"""`aiops verify`: whether a run that wrote its history kept what aiops promises.

The rules are in `aiops.testing.history`; here is only how the verdict looks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aiops.observability.staleness import bucket_name
from aiops.testing.history import PROMISES, Verdict
from aiops.testing.history import verify as read_and_check
from aiops_cli.console import print_json
from aiops_cli.options import logging_options, option

EXIT_BROKEN = 1


@click.command(
    epilog="Example:  AIOPS_HISTORY=run aiops launch --workers 4 -- python train.py;"
    "  aiops verify run"
)
@click.argument("history", type=click.Path(exists=True, path_type=Path), envvar="AIOPS_HISTORY")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@logging_options("warning")
def verify(history: Path, as_json: bool) -> int:
    """Check HISTORY: a file, or the folder that the workers of a run wrote theirs into.

    Exit code 0: every promise was kept, as far as the history tells. 1: one was broken; the
    first violation is shown with the operations that prove it. 2: this is no history.
    """
    verdicts = read_and_check(history)
    if as_json:
        print_json({"jobs": [document(verdict) for verdict in verdicts]})
    else:
        for verdict in verdicts:
            print("\n".join(lines(verdict)))
    return 0 if all(verdict.holds for verdict in verdicts) else EXIT_BROKEN


def lines(verdict: Verdict) -> list[str]:
    """Return a verdict for people."""
    tables = ", ".join(f"{name} ({mode})" for name, mode in verdict.tables.items()) or "none"
    shown = [
        f"job {verdict.job[:8]}: {verdict.workers} worker{'s' * (verdict.workers != 1)}, "
        f"{verdict.operations:,} operations, {verdict.unknown:,} of unknown outcome; "
        f"tables: {tables}"
    ]
    if verdict.holds:
        shown.append("holds:")
        shown += [f"    {name}: {what}" for name, what in PROMISES.items()]
    else:
        first, *others = verdict.violations
        shown += ["VIOLATED", str(first)]
        if others:
            shown.append(f"and {len(others)} more")
    for name, counts in verdict.staleness.items():
        listed = ", ".join(f"{bucket_name(least)}: {count:,}" for least, count in counts.items())
        shown.append(f"staleness of {name}: {listed}")
    shown += [f"note: {note}" for note in verdict.notes]
    return shown


def document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict for machines."""
    return {
        "job": verdict.job,
        "workers": verdict.workers,
        "operations": verdict.operations,
        "unknown": verdict.unknown,
        "tables": verdict.tables,
        "holds": verdict.holds,
        "violations": [
            {
                "promise": violation.promise,
                "text": violation.text,
                "operations": [str(operation) for operation in violation.operations],
            }
            for violation in verdict.violations
        ],
        "staleness": verdict.staleness,
        "notes": verdict.notes,
    }
