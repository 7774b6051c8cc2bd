"""`aiops scheduler`: the node that all others meet at."""

from __future__ import annotations

import click

import aiops
from aiops_cli.cluster_file import ClusterFile
from aiops_cli.options import (
    cluster_option,
    listening_options,
    logging_options,
    option,
    policy_options,
)
from aiops_cli.role import Node, Ready, run_role

LOOPBACK = "127.0.0.1:0"


@click.command(epilog="Example:  aiops scheduler --bind 127.0.0.1:9070 --servers 2 --workers 4")
@listening_options
@option("--servers", type=click.IntRange(min=0), help="Servers to wait for.  [default: 1]")
@option("--workers", type=click.IntRange(min=0), help="Workers to wait for.  [default: 0]")
@cluster_option
@policy_options
@logging_options("info")
def scheduler(
    bind: str | None,
    advertise: str | None,
    insecure: bool,
    servers: int | None,
    workers: int | None,
    cluster: ClusterFile | None,
    on_worker_loss: str | None,
    min_workers: int | None,
    heartbeat_s: float,
) -> int:
    """Run the scheduler of one job.

    It registers servers and workers, tells them when the cluster is complete, and holds barriers.
    With --workers it ends when these have finished; without, it serves whoever comes and goes.
    """
    if cluster is not None:
        bind = bind or cluster.scheduler.bind
        advertise = advertise or cluster.scheduler.address
        servers = len(cluster.servers) if servers is None else servers
        workers = cluster.workers if workers is None else workers

    def open_node() -> aiops.Scheduler:
        return aiops.Scheduler(
            bind=bind or LOOPBACK,
            advertise=advertise,
            servers=1 if servers is None else servers,
            workers=workers or 0,
            on_worker_loss=loss_policy(on_worker_loss, min_workers),
            min_workers=min_workers,
            heartbeat_s=heartbeat_s,
            insecure=insecure,
            end_when_idle=bool(workers),
        )

    def ready(node: Node) -> Ready:
        return Ready("scheduler", 0, "scheduler", node.address)

    return run_role(open_node, ready)


def loss_policy(on_worker_loss: str | None, min_workers: int | None) -> str:
    """Return what happens when a worker is lost; to name a minimum means to go on above it."""
    if on_worker_loss == "fail" and min_workers is not None:
        raise click.UsageError(
            "--min-workers says when to go on; it needs --on-worker-loss continue"
        )
    return on_worker_loss or ("fail" if min_workers is None else "continue")
