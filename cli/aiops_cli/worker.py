"""`aiops worker`: become the user's program, with the way to the cluster in its environment."""

from __future__ import annotations

import os

import click

from aiops.errors import ConfigError
from aiops_cli.cluster_file import ClusterFile
from aiops_cli.options import (
    cluster_option,
    logging_options,
    option,
    scheduler_address,
    scheduler_option,
)
from aiops_cli.programs import checked_command


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example:  aiops worker --scheduler 127.0.0.1:9070 -- python train.py --epochs 3",
)
@scheduler_option
@cluster_option
@option("--name", help="Name of the worker; a restarted worker of that name gets its rank back.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@logging_options("info")
def worker(
    scheduler: str | None, cluster: ClusterFile | None, name: str | None, command: tuple[str, ...]
) -> None:
    """Run COMMAND as a worker of a running cluster.

    In the command, `aiops.connect()` without an argument finds the scheduler. This process becomes
    the command: output, signals and exit code are the command's own.
    """
    program = checked_command(command)
    environment = {**os.environ, "AIOPS_SCHEDULER": scheduler_address(scheduler, cluster)}
    if name is not None:
        environment["AIOPS_NAME"] = name
    try:
        os.execvpe(program[0], program, environment)
    except OSError as error:
        raise ConfigError(f"cannot run {program[0]}: {error.strerror}") from error
