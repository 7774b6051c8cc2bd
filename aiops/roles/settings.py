"""Validated settings of the roles, in the words of the user's call."""

from __future__ import annotations

from dataclasses import dataclass

from aiops.errors import ConfigError
from aiops_protocol.limits import SERVERS_MAX, WORKERS_MAX

__all__ = ["SchedulerSettings"]


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a scheduler decides for the whole job.

    Parameters
    ----------
    servers, workers
        How many must register before the job begins. `workers=0`: any number, at any time.
    on_worker_loss
        `"fail"` ends the job when a worker is lost, `"continue"` goes on without it.
    min_workers
        With `"continue"`: fewer workers than this end the job all the same. 0: no such limit.
    heartbeat_s, report_period_s
        Told to every node in its welcome.
    end_when_idle
        End the job when the last worker has left.
    join_timeout_s
        End the job when the expected nodes have not registered by then. `None`: wait for ever.
    trace
        Ask every node for the spans of its phases.
    """

    servers: int = 1
    workers: int = 0
    on_worker_loss: str = "fail"
    min_workers: int = 0
    heartbeat_s: float = 0.5
    report_period_s: float = 1.0
    end_when_idle: bool = False
    join_timeout_s: float | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.servers <= SERVERS_MAX:
            raise ConfigError(f"servers is {self.servers}; it must be from 0 to {SERVERS_MAX}")
        if not 0 <= self.workers <= WORKERS_MAX:
            raise ConfigError(f"workers is {self.workers}; it must be from 0 to {WORKERS_MAX}")
        if self.on_worker_loss not in ("fail", "continue"):
            raise ConfigError(
                f'on_worker_loss is {self.on_worker_loss!r}; it must be "fail" or "continue"'
            )
        if self.min_workers < 0:
            raise ConfigError(f"min_workers is {self.min_workers}; it must be 0 or more")
        if self.workers and self.min_workers > self.workers:
            raise ConfigError(
                f"min_workers is {self.min_workers}, more than the {self.workers} workers expected"
            )
        for name in ("heartbeat_s", "report_period_s"):
            if not 0.002 <= getattr(self, name) <= 3600:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}; it must be from 0.002 to 3600 seconds"
                )
        if self.join_timeout_s is not None and not self.join_timeout_s > 0:
            raise ConfigError(f"join_timeout_s is {self.join_timeout_s}; it must be above 0")
