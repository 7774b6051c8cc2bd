"""`aiops chaos`: `aiops launch` with fault proxies in front of the servers.

What goes wrong when is `aiops.testing.weather`; here it gets its flags, its cluster and a report.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

import aiops
from aiops.testing.chaos_cluster import total
from aiops.testing.faults import Faults
from aiops.testing.proxy import FaultProxy, ReservedPort
from aiops.testing.weather import Storm, Weather
from aiops_cli.cluster_file import ClusterFile, Place
from aiops_cli.console import print_json, shared_console
from aiops_cli.launch import Plan, log_flags, run_cluster, same_program
from aiops_cli.options import logging_options, option, policy_options
from aiops_cli.programs import checked_command
from aiops_cli.scheduler import loss_policy
from aiops_cli.server import import_module

POLL_S: Final = 0.05
MS: Final = 1e-3


@dataclass(slots=True)
class Report:
    """What was done to a run, and what it cost."""

    exit_code: int
    seed: int
    connections: int
    cuts: int
    black_holes: int
    forwarded_bytes: int
    lost_bytes: int
    corrupted_bytes: int
    retransmitted_bytes: int

    def lines(self) -> list[str]:
        """Return it for people."""
        ratio = (
            f" ({self.retransmitted_bytes / self.lost_bytes:.2f} for each)"
            if self.lost_bytes
            else ""
        )
        return [
            f"injected with seed {self.seed}: {self.cuts} cuts, {self.black_holes} black holes, "
            f"{self.corrupted_bytes} bytes changed, over {self.connections} connections",
            f"bytes: {self.forwarded_bytes:,} forwarded, {self.lost_bytes:,} lost, "
            f"{self.retransmitted_bytes:,} sent again{ratio}",
        ]


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="Example:  aiops chaos --cut-every-s 2 --delay-ms 20 --jitter-ms 20 --servers 2"
    " --workers 4 -- python train.py",
)
@option("--servers", type=click.IntRange(min=1), default=1, show_default=True, help="Servers.")
@option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Workers.")
@option("--cut-every-s", type=float, help="Mean seconds between two cuts of a connection.")
@option("--cut-probability", type=float, default=0.0, help="Chance of each piece to be cut.")
@option("--delay-ms", type=float, default=0.0, help="Delay of everything, each way.")
@option("--jitter-ms", type=float, default=0.0, help="Additional delay of up to so much.")
@option("--rate-bytes-per-s", type=float, help="Width of the link to each server, each way.")
@option("--corrupt-every-bytes", type=int, help="Change one byte of so many.")
@option("--black-hole-every-s", type=float, help="Seconds from one black hole to the next.")
@option(
    "--black-hole-s",
    type=float,
    default=3.0,
    show_default=True,
    help="Seconds in a black hole: nothing passes, and nobody is told.",
)
@option("--seed", type=int, default=0, show_default=True, help="Of all chance.")
@policy_options
@option(
    "--import",
    "modules",
    metavar="MODULE",
    multiple=True,
    help="Module that each server imports first: optimizers of your own. May be repeated.",
)
@option("--json", "as_json", is_flag=True, help="End with the report as a line of JSON on stdout.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@logging_options("info")
def chaos(
    servers: int,
    workers: int,
    cut_every_s: float | None,
    cut_probability: float,
    delay_ms: float,
    jitter_ms: float,
    rate_bytes_per_s: float | None,
    corrupt_every_bytes: int | None,
    black_hole_every_s: float | None,
    black_hole_s: float,
    seed: int,
    on_worker_loss: str | None,
    min_workers: int | None,
    heartbeat_s: float,
    modules: tuple[str, ...],
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Run a cluster on this machine like `aiops launch`, with faults between workers and servers.

    The faults begin when the job is complete and end with it. At the end a report says what was
    done, and how much was lost and sent again. The exit code is that of `launch`.
    """
    program = checked_command(command)
    for module in modules:
        import_module(module)
    weather = Weather(
        Faults(
            delay_s=delay_ms * MS,
            jitter_s=jitter_ms * MS,
            rate_bytes_per_s=rate_bytes_per_s,
            cut_probability=cut_probability,
            corrupt_every_bytes=corrupt_every_bytes,
        ),
        cut_every_s=cut_every_s,
        black_hole_every_s=black_hole_every_s,
        black_hole_s=black_hole_s,
        seed=seed,
    )
    settings: dict[str, Any] = {
        "servers": servers,
        "workers": workers,
        "on_worker_loss": loss_policy(on_worker_loss, min_workers),
        "min_workers": min_workers,
        "heartbeat_s": heartbeat_s,
        "modules": modules,
        "log_options": log_flags(click.get_current_context().params),
    }
    report = aiops.run(_run(settings, program, weather))
    if as_json:
        print_json(asdict(report))
    else:
        print("\n".join(report.lines()), file=sys.stderr, flush=True)
    return report.exit_code


async def _run(settings: dict[str, Any], program: list[str], weather: Weather) -> Report:
    async with AsyncExitStack() as stack:
        proxies: list[FaultProxy] = []
        places: list[Place] = []
        for index in range(settings["servers"]):
            port = stack.enter_context(ReservedPort())
            proxy = FaultProxy(str(port.address), seed=weather.seed + index)
            proxies.append(await stack.enter_async_context(proxy))
            places.append(Place(address=proxy.address, bind=str(port.address)))
        own = stack.enter_context(ReservedPort())
        scheduler_place = Place(address=str(own.address), bind=str(own.address))
        cluster = ClusterFile(Path(), scheduler_place, tuple(places), settings["workers"])
        plan = Plan(cluster=cluster, **settings)
        storm = Storm(proxies, weather)
        console = await stack.enter_async_context(shared_console())
        scheduler = await stack.enter_async_context(plan.scheduler())
        raging = asyncio.create_task(_rage(scheduler, storm))
        try:
            code = await run_cluster(plan, console, same_program(plan, program), scheduler)
        finally:
            raging.cancel()
            await asyncio.gather(raging, return_exceptions=True)
            await storm.calm()
        return _report(code, weather, storm, proxies, scheduler.status())


async def _rage(scheduler: aiops.Scheduler, storm: Storm) -> None:
    """Let it begin when the job is complete, so that all runs of a seed are alike, and end."""
    while not scheduler.status()["ready"]:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(POLL_S)
    storm.start()
    await scheduler.wait_ended()
    await storm.calm()


def _report(
    code: int,
    weather: Weather,
    storm: Storm,
    proxies: list[FaultProxy],
    status: dict[str, Any],
) -> Report:
    counters = total(proxies)
    return Report(
        exit_code=code,
        seed=weather.seed,
        connections=counters.connections,
        cuts=counters.cuts,
        black_holes=storm.black_holes,
        forwarded_bytes=counters.forwarded,
        lost_bytes=counters.lost,
        corrupted_bytes=counters.corrupted,
        retransmitted_bytes=status["bytes"]["retransmitted"],
    )
