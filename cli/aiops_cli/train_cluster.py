"""`aiops train` on a cluster of its own: start it, show its progress, and report."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import aiops
from aiops.errors import ConfigError
from aiops.trainers import Batches, TrainConfig, WorkerReport, final_report, load, render
from aiops_cli.console import Console, print_json, shared_console
from aiops_cli.launch import Plan, run_cluster, worker_environment
from aiops_cli.progress import Display, display, standing
from aiops_cli.supervisor import Program, lines_to

POLL_S: Final = 0.25


class Task(Protocol):
    """What to train on what."""

    @property
    def data(self) -> str:
        """Name or path of the data."""

    @property
    def target(self) -> str | None:
        """What to predict."""

    @property
    def config(self) -> TrainConfig:
        """How to train."""

    def flags(self) -> Any:
        """Yield the arguments that make a worker do this."""


class LastLine:
    """Keep the last line of a child's stdout, where its account stands."""

    def __init__(self) -> None:
        self._line = b""

    async def take(self, lines: bytes) -> None:
        """Take whole lines."""
        self._line = lines.rstrip(b"\n").rpartition(b"\n")[2]

    def report(self) -> WorkerReport | None:
        """Return the worker's account, if it got as far as giving one."""
        if not self._line.startswith(b"{"):
            return None
        return WorkerReport.from_dict(json.loads(self._line)["worker_report"])


def train_on_cluster(
    plan: Plan, task: Task, trace: Path | None, *, quiet: bool, as_json: bool
) -> int:
    """Train, print the report, and return the exit code."""
    planned = _planned_steps(plan, task)
    if trace is not None:
        _check_writable(trace)
    return aiops.run(_train(plan, task, planned, trace, quiet=quiet, as_json=as_json))


def _planned_steps(plan: Plan, task: Task) -> int:
    """Read the data once before anything starts: what is wrong with it is then said once."""
    config = task.config
    dataset = load(task.data, target=task.target, seed=config.seed, task=config.task)
    config.make_model(dataset)
    rows = len(dataset.x_train)
    return config.planned_steps(
        Batches(rows, config.batch_size, 0, plan.workers, config.seed).per_epoch
    )


async def _train(
    plan: Plan, task: Task, planned: int, trace: Path | None, *, quiet: bool, as_json: bool
) -> int:
    accounts = {name: LastLine() for name in plan.names("worker")}

    def programs(scheduler: aiops.Scheduler, console: Console) -> list[Program]:
        command = [sys.executable, "-m", "aiops", "train", *task.flags(), "--quiet", "--json"]
        command += ["--scheduler", scheduler.address, *plan.log_options]
        command += ["--insecure"] if plan.insecure else []
        return [
            Program(
                name,
                [*command, "--name", name],
                worker_environment(plan, scheduler.address, name),
                stdout=account.take,
                stderr=lines_to(console.stderr, name),
            )
            for name, account in accounts.items()
        ]

    async with shared_console() as console, plan.scheduler() as scheduler:
        shown = display(
            console.stderr,
            f"training {task.config.model} on {task.data} for {planned} steps: "
            f"starting servers ({plan.servers}) and workers ({plan.workers})",
            quiet=quiet,
            is_terminal=sys.stderr.isatty(),
        )
        showing = asyncio.create_task(_show(scheduler, shown, planned, task.config))
        try:
            code = await run_cluster(plan, console, programs, scheduler)
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing
            shown.close()
        status = scheduler.status()
        if trace is not None:
            _write(trace, scheduler.trace_events())
    if code:
        return code
    reports = [found for account in accounts.values() if (found := account.report())]
    report = final_report(reports, servers=plan.servers, status=status)
    if as_json:
        print_json(report)
    else:
        print("\n".join(render(report)), flush=True)
    return 0


async def _show(
    scheduler: aiops.Scheduler, shown: Display, planned: int, config: TrainConfig
) -> None:
    steps_per_clock = 1 if config.local is None else config.local.period
    started_at: float | None = None
    while True:
        await asyncio.sleep(POLL_S)
        status = scheduler.status()
        if started_at is None and status["ready"]:
            started_at = time.monotonic()
        if started_at is not None:
            elapsed_s = time.monotonic() - started_at
            now = standing(status, planned, elapsed_s, steps_per_clock)
            if now.workers:  # the first come, the last leave
                shown.show(now)


def _check_writable(path: Path) -> None:
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(f"cannot write the trace to {path}: {error.strerror}") from error


def _write(path: Path, document: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(part, path)
