"""`aiops launch`: a whole cluster on one machine around the user's own program.

The scheduler runs in this process; servers and workers are its children. `run_cluster` does that
for any workers and is what `aiops train` uses as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import click

import aiops
from aiops_cli.cluster_file import ClusterFile
from aiops_cli.console import Console, shared_console
from aiops_cli.environment import child_environment
from aiops_cli.options import cluster_option, logging_options, option, policy_options
from aiops_cli.programs import checked_command
from aiops_cli.scheduler import LOOPBACK, loss_policy
from aiops_cli.server import import_module
from aiops_cli.stopping import stop_signals
from aiops_cli.supervision import STOP_GRACE_S, Supervision
from aiops_cli.supervisor import Children, Program, lines_to

STOP_WITHIN_S: Final = 2 * STOP_GRACE_S  # the children's grace, their SIGKILL, and our own end


@dataclass(frozen=True, slots=True)
class Plan:
    """The cluster to run on this machine.

    Parameters
    ----------
    servers, workers
        How many of each.
    cluster
        Fixed addresses for scheduler and servers; without it they take free ports of loopback.
    modules
        Modules that the servers import.
    log_options
        The flags about logs that each server gets.
    """

    servers: int
    workers: int
    cluster: ClusterFile | None = None
    on_worker_loss: str = "fail"
    min_workers: int | None = None
    heartbeat_s: float = 0.5
    insecure: bool = False
    trace: bool = False
    modules: tuple[str, ...] = ()
    log_options: tuple[str, ...] = ()

    def scheduler(self) -> aiops.Scheduler:
        """Return the scheduler of this plan, not yet open."""
        place = self.cluster.scheduler if self.cluster is not None else None
        return aiops.Scheduler(
            bind=place.bind if place else LOOPBACK,
            advertise=place.address if place else None,
            servers=self.servers,
            workers=self.workers,
            on_worker_loss=self.on_worker_loss,
            min_workers=self.min_workers,
            heartbeat_s=self.heartbeat_s,
            insecure=self.insecure,
            trace=self.trace,
        )

    def server_command(self, index: int, scheduler: str) -> list[str]:
        """Return the command of one server."""
        place = self.cluster.server(index) if self.cluster is not None else None
        command = [sys.executable, "-m", "aiops", "server", "--scheduler", scheduler]
        command += ["--name", f"server-{index}", "--bind", place.bind if place else LOOPBACK]
        if place:
            command += ["--advertise", place.address]
        if self.insecure:
            command.append("--insecure")
        for module in self.modules:
            command += ["--import", module]
        return [*command, *self.log_options]

    @property
    def log_environment(self) -> dict[str, str]:
        """The level, as what aiops logs within the users' programs is asked to keep to it."""
        flags = dict(zip(self.log_options[::2], self.log_options[1::2], strict=True))
        level = flags.get("--log-level")
        return {} if level is None else {"AIOPS_LOG_LEVEL": level}

    def names(self, role: str) -> tuple[str, ...]:
        """Return the names of all nodes of a role."""
        count = self.workers if role == "worker" else self.servers
        return tuple(f"{role}-{rank}" for rank in range(count))


WorkerPrograms = Callable[[aiops.Scheduler, Console], Sequence[Program]]


async def run_cluster(
    plan: Plan,
    console: Console,
    worker_programs: WorkerPrograms,
    scheduler: aiops.Scheduler,
) -> int:
    """Run servers and workers as children of this process around an open scheduler.

    Parameters
    ----------
    plan
        What to run.
    console
        Where the children's lines go.
    worker_programs
        Makes the workers' programs, in the order of their names.
    scheduler
        The open scheduler.

    Returns
    -------
    exit_code : int
        That of the first worker that failed, 1 if only something else did, 128 plus its number
        after a signal.
    """
    children = Children(
        Supervision(
            plan.names("worker"),
            plan.names("server"),
            survives_losses=plan.on_worker_loss == "continue",
        )
    )
    servers = [
        Program(
            name,
            plan.server_command(index, scheduler.address),
            child_environment({}),
            stdout=_discard,  # the ready line: whoever is ready tells the scheduler too
            stderr=lines_to(console.stderr, name),
        )
        for index, name in enumerate(plan.names("server"))
    ]
    with stop_signals(STOP_WITHIN_S, children.kill) as stop:
        return await children.run(scheduler, [*servers, *worker_programs(scheduler, console)], stop)


async def _discard(_lines: bytes) -> None:
    return


def worker_environment(plan: Plan, scheduler: str, name: str) -> dict[str, str]:
    """Return the environment in which `aiops.connect()` needs no argument."""
    return child_environment(
        {
            "AIOPS_SCHEDULER": scheduler,
            "AIOPS_NAME": name,
            "AIOPS_WORKERS": str(plan.workers),
            "AIOPS_SERVERS": str(plan.servers),
        }
        | plan.log_environment
    )


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example:  aiops launch --servers 2 --workers 4 -- python train.py --epochs 3",
)
@option(
    "--servers", type=click.IntRange(min=0), help="Servers to start; rings need none.  [default: 1]"
)
@option("--workers", type=click.IntRange(min=1), help="Workers to start.  [default: 1]")
@cluster_option
@policy_options
@option("--insecure", is_flag=True, help="Listen beyond loopback, without encryption.")
@option(
    "--import",
    "modules",
    metavar="MODULE",
    multiple=True,
    help="Module that each server imports first: optimizers of your own. May be repeated.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@logging_options("info")
def launch(
    servers: int | None,
    workers: int | None,
    cluster: ClusterFile | None,
    on_worker_loss: str | None,
    min_workers: int | None,
    heartbeat_s: float,
    insecure: bool,
    modules: tuple[str, ...],
    command: tuple[str, ...],
) -> int:
    """Run scheduler, servers and workers on this machine; COMMAND is the program of each worker.

    The workers' lines are passed on as they are. The exit code is that of the first worker that
    failed; the others then have 10 s to end by themselves. A worker lost under
    `--on-worker-loss continue` is no failure while the job goes on.
    """
    program = checked_command(command)
    for module in modules:
        import_module(module)
    settings = click.get_current_context().params
    plan = Plan(
        servers=plan_count("servers", servers, len(cluster.servers) if cluster else None),
        workers=plan_count("workers", workers, cluster.workers if cluster else None),
        cluster=cluster,
        on_worker_loss=loss_policy(on_worker_loss, min_workers),
        min_workers=min_workers,
        heartbeat_s=heartbeat_s,
        insecure=insecure,
        modules=modules,
        log_options=log_flags(settings),
    )
    return aiops.run(_launch(plan, program))


def log_flags(settings: dict[str, object]) -> tuple[str, ...]:
    """Return the flags that make a child log as this process does."""
    return (
        *("--log-format", str(settings["log_format"])),
        *("--log-level", str(settings["log_level"])),
    )


def plan_count(what: str, given: int | None, in_file: int | None, default: int = 1) -> int:
    """Return how many nodes of a kind to start, by flag or by cluster file."""
    if in_file is None:
        return default if given is None else given
    if given not in (None, in_file):
        raise click.UsageError(f"--{what} {given}, but the cluster file has {in_file}")
    return in_file


def same_program(plan: Plan, program: list[str]) -> WorkerPrograms:
    """Let every worker run the same command; its lines are passed on as they are."""

    def workers(scheduler: aiops.Scheduler, console: Console) -> list[Program]:
        return [
            Program(
                name,
                program,
                worker_environment(plan, scheduler.address, name),
                stdout=lines_to(console.stdout, name),
                stderr=lines_to(console.stderr, name),
            )
            for name in plan.names("worker")
        ]

    return workers


async def _launch(plan: Plan, program: list[str]) -> int:
    async with shared_console() as console, plan.scheduler() as scheduler:
        return await run_cluster(plan, console, same_program(plan, program), scheduler)
