"""Validated settings of the roles, in the words of the user's call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aiops.checks import check_flag, is_number, is_one_of, positive
from aiops.errors import ConfigError
from aiops.wording import shown
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
        for name, least, most in (
            ("servers", 0, SERVERS_MAX),
            ("workers", 0, WORKERS_MAX),
            ("min_workers", 0, WORKERS_MAX),
        ):
            self._take(name, _whole(name, getattr(self, name), least, most))
        if not is_one_of(self.on_worker_loss, ("fail", "continue")):
            raise ConfigError(
                f'on_worker_loss is {shown(self.on_worker_loss)}; it must be "fail" or "continue"'
            )
        if self.workers and self.min_workers > self.workers:
            raise ConfigError(
                f"min_workers is {self.min_workers}, more than the {self.workers} workers expected"
            )
        for name in ("heartbeat_s", "report_period_s"):
            seconds = getattr(self, name)
            if not is_number(seconds) or not 0.002 <= seconds <= 3600:
                raise ConfigError(
                    f"{name} is {shown(seconds)}; it must be from 0.002 to 3600 seconds"
                )
            self._take(name, float(seconds))
        if self.join_timeout_s is not None:
            self._take("join_timeout_s", positive(self.join_timeout_s, "join_timeout_s"))
        for name in ("end_when_idle", "trace"):
            self._take(name, check_flag(getattr(self, name), name))

    def _take(self, name: str, value: object) -> None:
        """Keep a setting as a plain Python value, which can travel."""
        object.__setattr__(self, name, value)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not least <= value <= most
    ):
        raise ConfigError(f"{name} is {shown(value)}; it must be from {least} to {most}")
    return int(value)
