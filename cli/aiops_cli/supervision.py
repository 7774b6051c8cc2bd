"""What a launcher decides: who failed, who is told to end, with which exit code. Pure.

`Supervision` takes what happened and the time, and answers with what to do; processes, signals and
timers are `supervisor`'s. The life of a launch:

    RUNNING    all is well, or a loss that the job may survive
    FAILING    something failed: the others learn of it from the scheduler and end by themselves
    STOPPING   they have been told to end: by us after the failure's grace, or because we were
    CLOSING    every worker has ended: the servers take their leave
    KILLING    the last resort
    ENDED      no child is left
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, TypeAlias, assert_never

FAILURE_GRACE_S: Final = 10.0  # for the others to learn of a failure, raise, and clean up
STOP_GRACE_S: Final = 10.0  # between a signal and SIGKILL; a role ends within its own 8 s before
CLOSE_GRACE_S: Final = 2.0  # a server of a job that has ended leaves in milliseconds
EXIT_FAILED: Final = 1


class Phase(enum.Enum):
    """Where a launch stands; see the top of this file."""

    RUNNING = enum.auto()
    FAILING = enum.auto()
    STOPPING = enum.auto()
    CLOSING = enum.auto()
    KILLING = enum.auto()
    ENDED = enum.auto()


@dataclass(frozen=True, slots=True)
class ChildExited:
    """A child has ended; `code` is negative if a signal ended it, as `subprocess` says it."""

    name: str
    code: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The scheduler says that the job is over.

    `lost_worker` is the first worker that it lost, if any: it is the one that failed, though others
    that learned of it may be quicker to end.
    """

    ok: bool
    reason: str
    lost_worker: str | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The launcher itself was told to end, for the first time."""

    signum: int


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time that `next_deadline` named has come."""


Event: TypeAlias = ChildExited | JobEnded | Interrupted | DeadlineReached


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to these children."""

    names: tuple[str, ...]
    signum: int


@dataclass(frozen=True, slots=True)
class EndJob:
    """Tell the scheduler to end the job, and with it the servers."""

    reason: str


@dataclass(frozen=True, slots=True)
class TellOfEnd:
    """Tell the scheduler of a child's end: it knows nothing of one that had not registered."""

    name: str
    role: str
    reason: str
    clean: bool


@dataclass(frozen=True, slots=True)
class Say:
    """Tell the user what happened."""

    event: str
    fields: dict[str, str | int | float]


Action: TypeAlias = Send | EndJob | TellOfEnd | Say


def exit_code_of(code: int) -> int:
    """Turn a return code of `subprocess` into the one that a shell would show."""
    return 128 - code if code < 0 else code


@dataclass(slots=True)
class Supervision:
    """Decide the fate of one launch.

    Parameters
    ----------
    workers, servers
        Names of the children of each role; together they are unique.
    survives_losses
        A lost worker is no failure by itself: the scheduler judges whether enough are left.
    """

    workers: tuple[str, ...]
    servers: tuple[str, ...]
    survives_losses: bool = False
    phase: Phase = field(default=Phase.RUNNING, init=False)
    _alive: dict[str, None] = field(init=False)
    _deadline: float | None = field(default=None, init=False)
    _interrupted_by: int | None = field(default=None, init=False)
    _failed_workers: dict[str, int] = field(default_factory=dict, init=False)
    _lost_worker: str | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)
    _finished_workers: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._alive = dict.fromkeys((*self.workers, *self.servers))
        assert len(self._alive) == len(self.workers) + len(self.servers), "names are unique"

    @property
    def exit_code(self) -> int:
        """What the launcher would end with now: final once the phase is ENDED."""
        if self._interrupted_by is not None:
            return 128 + self._interrupted_by
        # Losses that the job may survive are no failure, unless nobody is left.
        if self._failed or (self._failed_workers and not self._finished_workers):
            first = next(iter(self._failed_workers.values()), EXIT_FAILED)
            return self._failed_workers.get(self._lost_worker or "", first)
        return 0

    def next_deadline(self) -> float | None:
        """Return when to call `handle` with `DeadlineReached`, if at all."""
        return self._deadline

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one thing that happened and return what to do about it, in order."""
        match event:
            case ChildExited(name, code):
                return self._child_exited(name, code, now)
            case JobEnded():
                return self._job_ended(event, now)
            case Interrupted(signum):
                return self._interrupted(signum, now)
            case DeadlineReached():
                return self._too_late(now)
            case _:
                assert_never(event)

    def _child_exited(self, name: str, code: int, now: float) -> list[Action]:
        if name not in self._alive:
            return []
        del self._alive[name]
        actions = self._judge(name, exit_code_of(code), now)
        if not self._alive:
            self._enter(Phase.ENDED, None)
        elif not self._living(self.workers) and self.phase in (Phase.RUNNING, Phase.FAILING):
            self._enter(Phase.CLOSING, now + CLOSE_GRACE_S)
            actions.append(EndJob("every worker has ended"))
        return actions

    def _judge(self, name: str, code: int, now: float) -> list[Action]:
        if self.phase not in (Phase.RUNNING, Phase.FAILING):
            return []  # we told it to end: how it did so is no failure
        is_worker = name in self.workers
        if not self._living(self.workers) and code == 0:
            self._finished_workers += is_worker
            return []  # nobody is left who could wait for it
        reason, clean = f"exit code {code}", is_worker and code == 0
        tell = TellOfEnd(name, "worker" if is_worker else "server", reason, clean)
        if clean:
            self._finished_workers += 1
            return [tell]
        if is_worker:
            self._failed_workers[name] = code
        said: list[Action] = [Say("child_failed", {"child": name, "exit_code": code}), tell]
        return said if is_worker and self.survives_losses else said + self._fail(now)

    def _job_ended(self, job: JobEnded, now: float) -> list[Action]:
        if self._lost_worker is None:
            self._lost_worker = job.lost_worker
        # A job that ended well leaves its workers all the time they want for what comes after it.
        if job.ok or self.phase is not Phase.RUNNING:
            return []
        return [Say("job_failed", {"reason": job.reason}), *self._fail(now)]

    def _fail(self, now: float) -> list[Action]:
        self._failed = True
        if self.phase is Phase.RUNNING:
            self._enter(Phase.FAILING, now + FAILURE_GRACE_S)
        return []

    def _interrupted(self, signum: int, now: float) -> list[Action]:
        if self.phase is Phase.ENDED or self._interrupted_by is not None:
            return []  # a second signal ends the launcher itself, and its children with it
        self._interrupted_by = signum
        name = signal.Signals(signum).name
        return [EndJob(f"the launcher received {name}"), *self._stop(signum, now)]

    def _too_late(self, now: float) -> list[Action]:
        if self._deadline is None or now < self._deadline:
            return []
        match self.phase:
            case Phase.FAILING:
                return [
                    Say("stopping_the_others", {"children": ", ".join(self._alive)}),
                    EndJob("a part of the job failed"),
                    *self._stop(signal.SIGTERM, now),
                ]
            case Phase.CLOSING:
                return self._stop(signal.SIGTERM, now)
            case _:
                return self._kill(now)

    def _stop(self, signum: int, now: float) -> list[Action]:
        self._enter(Phase.STOPPING, now + STOP_GRACE_S)
        return [Send(tuple(self._alive), signum)]

    def _kill(self, now: float) -> list[Action]:
        # SIGKILL can't be refused, but a process deep in the kernel may take it late: ask again.
        self._enter(Phase.KILLING, now + STOP_GRACE_S)
        killed = tuple(self._alive)
        return [Say("killing", {"children": ", ".join(killed)}), Send(killed, signal.SIGKILL)]

    def _enter(self, phase: Phase, deadline: float | None) -> None:
        self.phase = phase
        self._deadline = deadline

    def _living(self, names: Iterable[str]) -> bool:
        return any(name in self._alive for name in names)
