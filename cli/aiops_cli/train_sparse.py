"""`aiops train logistic` and `fm`: sparse models over files that need not fit into memory.

A cluster started here has one process for each role; each worker is an `aiops train --scheduler`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

import aiops
from aiops.trainers.sparse import SparseConfig, batches, train_sparse
from aiops.trainers.sparse.time_spent import shares, verdict
from aiops_cli.console import print_json, shared_console
from aiops_cli.launch import Plan, run_cluster, worker_environment
from aiops_cli.supervisor import Program, lines_to
from aiops_cli.train_worker import Seat

SPARSE_ONLY: Final = ("test", "factors", "hash_names")
"""Flags that only sparse models have."""

SHARED: Final = ("epochs", "batch_size", "optimizer", "lr", "l1", "l2", "seed", "consistency")
"""Settings that sparse models have in common with the others."""


@dataclass(frozen=True, slots=True)
class SparseTask:
    """What to train on what."""

    config: SparseConfig
    data: Path
    test: Path | None

    def flags(self) -> Iterator[str]:
        """Yield the arguments that make a worker do this."""
        yield from (self.config.model, "--data", str(self.data))
        if self.test is not None:
            yield from ("--test", str(self.test))
        for name, value in dataclasses.asdict(self.config).items():
            if name == "hash_names":
                yield from ("--hash-names",) if value else ()
            elif name != "model" and value is not None:
                yield from (f"--{name.replace('_', '-')}", str(value))

    def check(self) -> None:
        """Read the first rows before anything starts: what is wrong is then said once."""
        for path in (self.data, self.test) if self.test else (self.data,):
            if next(batches(path, 16, hash_names=self.config.hash_names), None) is None:
                raise click.UsageError(f"{path} has no rows")


def sparse_task(
    model: str, data: str, own: dict[str, Any], settings: dict[str, Any], typed: set[str]
) -> SparseTask:
    """Make a task of the flags of `aiops train`; refuse those that mean nothing here.

    `own` has those of `SPARSE_ONLY`, `settings` all others, of which `typed` were given.
    """
    others = sorted(typed - set(SHARED))
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise click.UsageError(f"{flags}: not for {model}")
    given = {name: settings[name] for name in SHARED}
    if "batch_size" not in typed:
        given["batch_size"] = SparseConfig.__dataclass_fields__["batch_size"].default
    given["epochs"] = given["epochs"] or 1
    config = SparseConfig(
        model=model, factors=own["factors"], hash_names=own["hash_names"], **given
    )
    return SparseTask(config, Path(data), own["test"])


async def train_sparse_as_worker(task: SparseTask, seat: Seat) -> int:
    """Train as one worker of a running cluster; return the exit code."""

    def show(line: str) -> None:
        if not seat.quiet:
            print(line, file=sys.stderr, flush=True)

    async with aiops.connect(seat.scheduler, name=seat.name) as worker:
        report = await train_sparse(worker, task.config, task.data, task.test, show=show)
        account = report._asdict() | {"bytes": worker.stats()["bytes"]}
    _print(account, as_json=seat.as_json)
    return 0


def train_sparse_on_cluster(plan: Plan, task: SparseTask, *, quiet: bool, as_json: bool) -> int:
    """Train on a cluster of its own, print the report, and return the exit code."""
    task.check()
    return aiops.run(_train(plan, task, quiet=quiet, as_json=as_json))


async def _train(plan: Plan, task: SparseTask, *, quiet: bool, as_json: bool) -> int:
    accounts: dict[str, list[bytes]] = {name: [] for name in plan.names("worker")}

    def programs(scheduler: aiops.Scheduler, console: Any) -> list[Program]:
        command = [sys.executable, "-m", "aiops", "train", *task.flags(), "--json"]
        command += ["--scheduler", scheduler.address, *plan.log_options]
        quieten = ["--quiet"] if quiet else []
        return [
            Program(
                name,
                [*command, *quieten, "--name", name],
                worker_environment(plan, scheduler.address, name),
                stdout=_keep(lines),
                stderr=lines_to(console.stderr, name),
            )
            for name, lines in accounts.items()
        ]

    async with shared_console() as console, plan.scheduler() as scheduler:
        code = await run_cluster(plan, console, programs, scheduler)
    if code:
        return code
    reports = [json.loads(b"".join(lines).splitlines()[-1]) for lines in accounts.values()]
    (merged,) = (report for report in reports if report["test_auc"] is not None)
    time_s = {
        phase: sum(report["time_s"][phase] for report in reports) for phase in merged["time_s"]
    }
    processor_s = sum(report["processor_s"] for report in reports)
    seconds = max(report["seconds"] for report in reports)
    merged |= {
        "steps": max(report["steps"] for report in reports),
        "seconds": seconds,
        "time_s": time_s,
        "processor_s": processor_s,
        "time_spent": shares(time_s, "the workers'"),
        "one_process": verdict(time_s, processor_s, seconds),
        "train_loss": merged["train_log_loss"],
        "test_loss": merged["test_log_loss"],
        "workers": plan.workers,
        "servers": plan.servers,
        "bytes": {
            cause: sum(report["bytes"][cause] for report in reports)
            for cause in reports[0]["bytes"]
        },
    }
    _print(merged, as_json=as_json)
    return 0


def _keep(lines: list[bytes]) -> Any:
    async def take(some: bytes) -> None:
        lines.append(some)

    return take


def _print(account: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(account)
    elif account["test_auc"] is None:
        print(_last_lines(account), flush=True)
    else:
        zero = 1 - account["nonzero"] / max(account["features"], 1)
        print(
            f"test AUC {account['test_auc']:.4f}, log-loss {account['test_log_loss']:.4f} "
            f"(train {account['train_log_loss']:.4f})\n"
            f"{account['features']:,} features, {zero:.1%} of the weights are zero\n"
            f"{_last_lines(account)}",
            flush=True,
        )


def _last_lines(account: dict[str, Any]) -> str:
    """Say how long it took, and what the time went to."""
    spent = account.get("time_spent") or shares(account["time_s"], "this worker's")
    lines = [f"{account['steps']} steps in {account['seconds']:.1f} s", spent]
    if "one_process" in account:
        lines.append(account["one_process"])
    return "\n".join(lines)
