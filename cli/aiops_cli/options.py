"""Options that several commands share, with their environment twins.

Only names, types and help texts; what a command does with them is its own business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from aiops.observability import configure
from aiops_cli.cluster_file import ClusterFile, read_cluster_file

Command = TypeVar("Command", bound=Callable[..., Any])
DEBUG_KEY = "debug"


class ClusterFileType(click.ParamType[ClusterFile]):
    """A path to a cluster file, read and checked when the command line is."""

    name = "file"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ClusterFile:
        """Read the file; a `ConfigError` says what is wrong with it."""
        return value if isinstance(value, ClusterFile) else read_cluster_file(Path(value))


def option(flag: str, *names: str, **settings: Any) -> Callable[[Command], Command]:
    """Declare an option with its twin: ``--min-workers`` and ``AIOPS_MIN_WORKERS``."""
    twin = "AIOPS_" + flag.split("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(flag, *names, envvar=twin, show_envvar=True, **settings)


def scheduler_option(command: Command) -> Command:
    """Where the scheduler is."""
    return option("--scheduler", metavar="HOST:PORT", help="Address of the scheduler.")(command)


def cluster_option(command: Command) -> Command:
    """Take addresses from a file."""
    return option(
        "--cluster",
        type=ClusterFileType(),
        help="Cluster file (TOML) with fixed addresses, in place of the address options.",
    )(command)


def listening_options(command: Command) -> Command:
    """Where a role listens."""
    for decorate in (
        option("--insecure", is_flag=True, help="Listen beyond loopback, without encryption."),
        option(
            "--advertise",
            metavar="HOST:PORT",
            help="Address that others reach this node at, if not the one it listens on.",
        ),
        option(
            "--bind",
            metavar="HOST:PORT",
            help="Address to listen on; port 0 takes a free one.  [default: 127.0.0.1:0]",
        ),
    ):
        command = decorate(command)
    return command


def policy_options(command: Command) -> Command:
    """Say what the scheduler does about lost workers."""
    for decorate in (
        option(
            "--heartbeat-s",
            type=float,
            default=0.5,
            show_default=True,
            help="Seconds between two heartbeats of a node.",
        ),
        option(
            "--min-workers",
            type=click.IntRange(min=1),
            help="Go on while this many workers are left; implies continue.",
        ),
        option(
            "--on-worker-loss",
            type=click.Choice(["continue", "fail"]),
            help="Whether the job goes on without a lost worker.  [default: fail]",
        ),
    ):
        command = decorate(command)
    return command


def logging_options(
    default_level: Literal["info", "warning", "error"],
) -> Callable[[Command], Command]:
    """Add options for logs and tracebacks; the logs are set up before the command runs."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_logs(*args: Any, log_format: Any, log_level: Any, **kwargs: Any) -> Any:
            configure(log_format, log_level)
            return command(*args, **kwargs)

        decorated: Any = with_logs
        for add in (
            option(
                "--debug",
                is_flag=True,
                expose_value=False,
                callback=_remember_debug,
                help="Show the traceback of an error.",
            ),
            option(
                "--log-level",
                type=click.Choice(["debug", "info", "warning", "error"]),
                default=default_level,
                show_default=True,
                help="The least level that is logged, on stderr.",
            ),
            option(
                "--log-format",
                type=click.Choice(["console", "json"]),
                default="console",
                show_default=True,
                help="Log lines for people or for machines.",
            ),
        ):
            decorated = add(decorated)
        return decorated  # type: ignore[no-any-return]  # click's decorators change its type

    return decorate


def _remember_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().ensure_object(dict)[DEBUG_KEY] = True


def scheduler_address(scheduler: str | None, cluster: ClusterFile | None) -> str:
    """Return the scheduler's address from whichever option was given.

    Raises
    ------
    click.UsageError
        Neither was, or both.
    """
    if cluster is not None:
        if scheduler is not None and scheduler != cluster.scheduler.address:
            raise click.UsageError(
                f"--scheduler {scheduler} and --cluster {cluster.path} "
                f"({cluster.scheduler.address}) differ; give one of them"
            )
        return cluster.scheduler.address
    if scheduler is None:
        raise click.UsageError(
            "where is the scheduler? Give --scheduler HOST:PORT or --cluster FILE"
        )
    return scheduler
