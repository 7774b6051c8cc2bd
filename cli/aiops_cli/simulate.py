"""`aiops simulate`: whole clusters on virtual time, under faults, one run per seed.

The scenarios and what they check are in `aiops.testing.simulation`; here is only how a sweep
is asked for and shown.
"""

from __future__ import annotations

import time

import click

from aiops.testing.simulation.scenarios import SCENARIOS, Outcome
from aiops.testing.simulation.sweep import Sweep, sweep
from aiops_cli.console import print_json
from aiops_cli.options import logging_options, option

EXIT_BROKEN = 1
FAILURES_SHOWN = 5
PROGRESS_S = 5.0


@click.command(epilog="Example:  aiops simulate --seeds 200;  aiops simulate --seed 17")
@option("--seeds", type=click.IntRange(1), default=50, show_default=True, help="How many seeds.")
@option("--seed", type=click.IntRange(0), help="Only this seed.")
@option("--from", "first", type=click.IntRange(0), default=0, help="The first seed.")
@option(
    "--scenario",
    "chosen",
    type=click.Choice(list(SCENARIOS)),
    multiple=True,
    help="Only this scenario; may be given several times.",
)
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@logging_options("error")
def simulate(
    seeds: int, seed: int | None, first: int, chosen: tuple[str, ...], as_json: bool
) -> int:
    """Simulate clusters under faults and check what aiops promises.

    One seed is one run, the same on every machine. Exit code 0: all held. 1: some did not, and
    the command that repeats the first failure is printed.
    """
    scenarios = list(chosen) or list(SCENARIOS)
    numbers = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    total = Sweep()
    started = told = time.monotonic()

    def ran(outcome: Outcome) -> None:
        nonlocal told
        total.add(outcome)
        if time.monotonic() - told >= PROGRESS_S and not as_json:
            told = time.monotonic()
            print(f"{total.runs} runs, {len(total.failures)} failed", flush=True)

    for outcome in sweep(numbers, scenarios, ran):
        if len(total.failures) <= FAILURES_SHOWN and not as_json:
            print(f"FAILED {outcome.scenario} seed {outcome.seed}: {outcome.failure}")
    unseen = total.unseen(scenarios)
    if as_json:
        print_json(_document(total, unseen))
    else:
        spent = time.monotonic() - started
        print("\n".join(_lines(total, unseen, spent)))
    return EXIT_BROKEN if total.failures or unseen else 0


def _lines(total: Sweep, unseen: list[str], seconds: float) -> list[str]:
    happened = ", ".join(f"{what} {times:,}" for what, times in sorted(total.seen.items()))
    lines = [
        f"{total.runs} runs, {total.virtual_s:,.0f} virtual seconds in {seconds:.1f} s",
        f"happened: {happened}",
    ]
    if unseen:
        lines.append(f"never happened, so the sweep proves little: {', '.join(unseen)}")
    if total.failures:
        worst = total.failures[0]
        lines.append(f"{len(total.failures)} runs failed; this repeats the first:")
        lines.append(f"    aiops simulate --scenario {worst.scenario} --seed {worst.seed}")
    else:
        lines.append("all held")
    return lines


def _document(total: Sweep, unseen: list[str]) -> dict[str, object]:
    return {
        "runs": total.runs,
        "virtual_s": round(total.virtual_s, 3),
        "seen": total.seen,
        "unseen": unseen,
        "failures": [
            {
                "scenario": outcome.scenario,
                "seed": outcome.seed,
                "failure": outcome.failure,
                "repeat": f"aiops simulate --scenario {outcome.scenario} --seed {outcome.seed}",
            }
            for outcome in total.failures
        ],
    }
