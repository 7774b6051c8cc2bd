"""`aiops server`: the node that holds a part of the parameters."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

import click

import aiops
from aiops_cli.cluster_file import ClusterFile
from aiops_cli.options import (
    cluster_option,
    listening_options,
    logging_options,
    option,
    scheduler_address,
    scheduler_option,
)
from aiops_cli.role import Ready, run_role
from aiops_cli.scheduler import LOOPBACK


@click.command(
    epilog="Examples:  aiops server --scheduler 127.0.0.1:9070"
    "  |  aiops server --cluster cluster.toml --index 0"
)
@scheduler_option
@cluster_option
@option("--index", type=click.IntRange(min=0), help="Which server of the cluster file this is.")
@option("--name", help="A name of its own; a restarted server of that name gets its rank back.")
@listening_options
@option(
    "--connect-timeout-s",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds to go on trying to reach the scheduler.",
)
@option(
    "--import",
    "modules",
    metavar="MODULE",
    multiple=True,
    help="Import a module first, which registers optimizers of your own; may be repeated.",
)
@logging_options("info")
def server(
    scheduler: str | None,
    cluster: ClusterFile | None,
    index: int | None,
    name: str | None,
    bind: str | None,
    advertise: str | None,
    insecure: bool,
    connect_timeout_s: float,
    modules: tuple[str, ...],
) -> int:
    """Run a server: it joins the job of a scheduler and leaves with it."""
    address = scheduler_address(scheduler, cluster)
    if cluster is not None:
        if index is None:
            raise click.UsageError(
                f"which server of {cluster.path} is this? Give --index 0 to "
                f"{len(cluster.servers) - 1}"
            )
        place = cluster.server(index)
        bind, advertise = bind or place.bind, advertise or place.address
        name = name or f"server-{index}"
    elif index is not None:
        raise click.UsageError("--index counts the servers of a cluster file; give --cluster too")
    for module in modules:
        import_module(module)

    def open_node() -> aiops.Server:
        return aiops.Server(
            scheduler=address,
            name=name,
            bind=bind or LOOPBACK,
            advertise=advertise,
            insecure=insecure,
            connect_timeout_s=connect_timeout_s,
        )

    def ready(node: aiops.Server) -> Ready:
        return Ready("server", node.rank, node.name, node.address)

    return run_role(open_node, ready)


def import_module(name: str) -> None:
    """Import a module of the user's for what it registers.

    Raises
    ------
    click.UsageError
        It cannot be imported.
    """
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise click.UsageError(
            f"cannot import {name!r}: give the name of a module as in an import statement, "
            "such as my_module or package.module"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # an installed script does not look where the user stands
    try:
        # stdout belongs to the ready line, or to the workers of a launch
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module(name)
    except ImportError as error:
        raise click.UsageError(f"cannot import {name}: {error}") from error
