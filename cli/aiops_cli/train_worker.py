"""One worker of `aiops train`: join a running cluster, train, and give an account of it.

The cluster that `aiops train` starts itself consists of these, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Any, Final

import aiops
from aiops.trainers import (
    Progress,
    TrainConfig,
    WorkerReport,
    final_report,
    load,
    render,
)
from aiops.trainers import train as train_model
from aiops.trainers.in_ring import RING
from aiops_cli.console import print_json, shared_console
from aiops_cli.progress import Standing, display
from aiops_cli.stopping import stop_signals

STOP_WITHIN_S: Final = 8.0
SHOW_EVERY_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker joins, and how it shows itself."""

    scheduler: str
    name: str | None
    quiet: bool
    as_json: bool
    insecure: bool = False


async def train_as_worker(data: str, target: str | None, config: TrainConfig, seat: Seat) -> int:
    """Train as one worker of a running cluster; return the exit code."""
    dataset = load(data, target=target, seed=config.seed, task=config.task)
    model = config.make_model(dataset)
    async with shared_console() as console:
        shown = display(
            console.stderr,
            f"joining {seat.scheduler} to train {config.model} on {data}",
            quiet=seat.quiet,
            is_terminal=sys.stderr.isatty(),
        )
        shown_at = float("-inf")

        def on_progress(progress: Progress) -> None:
            nonlocal shown_at
            if progress.elapsed_s - shown_at >= SHOW_EVERY_S:
                shown_at = progress.elapsed_s
                shown.show(_standing(progress, world_size))

        world_size = 1

        async def work() -> tuple[WorkerReport, int]:
            nonlocal world_size
            async with aiops.connect(seat.scheduler, name=seat.name) as worker:
                world_size = worker.world_size
                if seat.insecure and config.sync == "ring":  # whose door the training takes
                    await worker.ring(RING, insecure=True)
                return await train_model(worker, dataset, model, config, on_progress), world_size

        with stop_signals(STOP_WITHIN_S) as stop:
            working = asyncio.create_task(work())
            asked = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
                if stop.signum is not None:
                    working.cancel()  # leaves the cluster as a lost worker: the others learn of it
                    await asyncio.wait([working])
                    shown.close()
                    await console.stderr.drain()
                    os._exit(128 + stop.signum)  # asyncio would wait for a name look-up
                report, workers = await working
            finally:
                asked.cancel()
                shown.close()
    _print_account(report, workers, as_json=seat.as_json)
    return 0


def _standing(progress: Progress, workers: int) -> Standing:
    return Standing(workers, progress.step, progress.planned, progress.loss, progress.elapsed_s)


def account(report: WorkerReport, workers: int) -> dict[str, Any]:
    """Return what one worker of several can say; the losses only if it was the one to evaluate."""
    merged: dict[str, Any] = {}
    if report.evaluation is not None:
        merged = final_report([report], servers=len(report.servers)) | {"workers": workers}
    return merged | {"worker_report": report.to_dict()}


def _print_account(report: WorkerReport, workers: int, *, as_json: bool) -> None:
    if as_json:
        print_json(account(report, workers))
    elif report.evaluation is not None:
        print("\n".join(render(account(report, workers))), flush=True)
    else:
        print(
            f"worker {report.rank}: {report.steps} steps in {report.seconds:.2f} s, "
            f"ended because {report.stopped_because}",
            flush=True,
        )
