"""Consistency modes as users name them; what they mean is `docs/explanation/consistency.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias, get_args

from aiops.checks import is_one_of
from aiops.errors import ConfigError
from aiops.wording import shown

__all__ = ["ASP", "BSP", "SSP", "Consistency", "Quorum", "consistency_from"]

Reduce = Literal["mean", "sum", "median", "trimmed_mean", "majority_sign"]

Settings: TypeAlias = dict[str, float | int | bool | str | None]

GRACE_S_MAX: Final = 3600.0
"""An hour: who waits longer for the late ones wants BSP."""

STALENESS_MAX: Final = 1_000_000
"""More clocks than this apart is no bound: `ASP` says so plainly."""


@dataclass(frozen=True, slots=True)
class BSP:
    """Bulk-synchronous: all workers see exactly the same version in each step.

    Parameters
    ----------
    reduce
        What the contributions of a round become, element by element: their `"mean"` over the
        workers that pushed, or their `"sum"`, a float32 left fold in rank order, so the bits never
        vary; or one that bears workers that send nonsense: `"median"`, `"trimmed_mean"`,
        `"majority_sign"`.
    trim
        With `"trimmed_mean"`: so many of the lowest and so many of the highest are left out of
        each element. There must be more than twice as many workers.
    drop_slowest
        A round closes when all but so many have sealed it; what the slowest push to it is dropped,
        and they go on with the newest version. Then a pull gets the version of this worker's
        clock or a later one, and timing decides who is in which round.
    """

    mode: ClassVar[str] = "bsp"
    reduce: Reduce = "mean"
    trim: int | None = None
    drop_slowest: int = 0

    def __post_init__(self) -> None:
        _check_reduce("BSP", self.reduce, self.trim)
        _check_whole("BSP", "drop_slowest", self.drop_slowest, 0, "workers")

    def settings(self) -> Settings:
        """Return what travels to the servers."""
        dropped = {"drop_slowest": self.drop_slowest} if self.drop_slowest else {}
        return _reduce_settings(self.reduce, self.trim) | dropped

    def check_workers(self, workers: int) -> None:
        """Raise `ConfigError` if so many workers are too few."""
        _check_trim("BSP", self.trim, workers - self.drop_slowest if workers else 0)
        if 0 < workers <= self.drop_slowest:
            raise ConfigError(
                f"BSP: drop_slowest={self.drop_slowest} of {workers} workers leaves nobody; start "
                "more workers, or drop fewer"
            )


def _check_reduce(mode: str, reduce: object, trim: object) -> None:
    if not is_one_of(reduce, get_args(Reduce)):
        names = ", ".join(f'"{name}"' for name in get_args(Reduce))
        raise ConfigError(f"{mode}: reduce is {shown(reduce)}; it must be one of {names}")
    if reduce == "trimmed_mean":
        _check_whole(mode, "trim", trim, 1, "values to leave out at each end")
    elif trim is not None:
        raise ConfigError(
            f'{mode}: trim={shown(trim)} is for reduce="trimmed_mean", not {shown(reduce)}'
        )


def _check_whole(mode: str, name: str, value: object, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{mode}: {name} is {shown(value)}; it must be a whole number of {what}, {least} or "
            "more"
        )


def _check_trim(mode: str, trim: int | None, workers: int) -> None:
    if trim is not None and 0 < workers <= 2 * trim:
        raise ConfigError(
            f"{mode}: trim={trim} leaves nothing of {workers} workers; take less than half of them"
        )


def _reduce_settings(reduce: Reduce, trim: int | None) -> Settings:
    return {"reduce": reduce} | ({} if trim is None else {"trim": trim})


@dataclass(frozen=True, slots=True)
class ASP:
    """Asynchronous: every push takes effect at once, every pull gets what is there."""

    mode: ClassVar[str] = "asp"

    def settings(self) -> Settings:
        """Return what travels to the servers."""
        return {}

    def check_workers(self, workers: int) -> None:
        """Any number will do."""


@dataclass(frozen=True, slots=True)
class SSP:
    """Stale-synchronous: pushes take effect at once, but nobody runs far ahead.

    A worker that has completed c clocks may pull and push only when everybody has completed
    c - `staleness`. What it pulls then contains all that everybody pushed in their first
    c - `staleness` clocks, and all that it has pushed itself [1]_, [2]_.

    Parameters
    ----------
    staleness
        By how many clocks a worker may be ahead of the slowest; 0 waits like `BSP`.

    References
    ----------
    .. [1] Q. Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel
       Parameter Server", NIPS 2013.
    .. [2] J. Wei et al., "Managed Communication and Consistency for Fast Data-Parallel
       Iterative Analytics" (Bösen), SoCC 2015.
    """

    mode: ClassVar[str] = "ssp"
    staleness: int = 3

    def __post_init__(self) -> None:
        _check_whole("SSP", "staleness", self.staleness, 0, "clocks")
        if self.staleness > STALENESS_MAX:
            raise ConfigError(
                f"SSP: staleness is {self.staleness}; at most {STALENESS_MAX}, or ASP()"
            )

    def settings(self) -> Settings:
        """Return what travels to the servers."""
        return {"staleness": self.staleness}

    def check_workers(self, workers: int) -> None:
        """Any number will do."""


Late = Literal["drop", "next"]


@dataclass(frozen=True, slots=True)
class Quorum:
    """Rounds as in BSP, which close without those who are late.

    A round closes when everybody has sealed it, or when `minimum` workers have contributed and
    `grace_s` more seconds have passed; where fewer than `minimum` are left, when all of them have.
    Whoever was late goes on with the newest version. A pull gets the version of this worker's clock
    or a later one; timing decides who is in which round, and given that, the bits do not depend on
    the number of servers [1]_.

    Parameters
    ----------
    minimum
        So many contributions are enough.
    grace_s
        How long the others are waited for then. `None`: learned, the 95th percentile of how late
        the last contributions were, at most 10 s.
    late
        What becomes of a contribution whose round has closed: `"drop"`, or `"next"`: it counts in
        the next round to close, with its own weight.
    reduce, trim
        As for `BSP`.

    References
    ----------
    .. [1] A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language
       Models", 2023, which drops contributions; backup workers are from J. Chen et al.,
       "Revisiting Distributed Synchronous SGD", 2016.
    """

    mode: ClassVar[str] = "quorum"
    minimum: int
    grace_s: float | None = None
    late: Late = "drop"
    reduce: Reduce = "mean"
    trim: int | None = None

    def __post_init__(self) -> None:
        _check_reduce("Quorum", self.reduce, self.trim)
        _check_whole("Quorum", "minimum", self.minimum, 1, "workers")
        grace_s: object = self.grace_s
        if grace_s is not None and not _is_seconds(grace_s):
            raise ConfigError(
                f"Quorum: grace_s is {shown(grace_s)}; it must be seconds from 0 to "
                f"{GRACE_S_MAX:g}, or None to learn it"
            )
        if not is_one_of(self.late, get_args(Late)):
            raise ConfigError(f'Quorum: late is {shown(self.late)}; it must be "drop" or "next"')

    def settings(self) -> Settings:
        """Return what travels to the servers."""
        grace_s = None if self.grace_s is None else float(self.grace_s)
        own: Settings = {"minimum": self.minimum, "grace_s": grace_s, "late": self.late}
        return own | _reduce_settings(self.reduce, self.trim)

    def check_workers(self, workers: int) -> None:
        """Raise `ConfigError` if so many workers are too few."""
        if 0 < workers < self.minimum:
            raise ConfigError(
                f"Quorum: minimum={self.minimum} of {workers} workers can never be reached; start "
                f"{self.minimum} workers or more, or ask for fewer"
            )
        _check_trim("Quorum", self.trim, self.minimum if workers else 0)


def _is_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= GRACE_S_MAX


Consistency = BSP | ASP | SSP | Quorum


def consistency_from(text: str) -> Consistency:
    """Return the mode that a short text names: `bsp`, `asp`, `ssp:3` or `quorum:3`.

    Raises
    ------
    ConfigError
        It names none, or its number is wrong.
    """
    asked: object = text  # callers without a type checker pass anything
    name, colon, given = text.partition(":") if isinstance(asked, str) else ("", "", "")
    number = int(given) if given.isascii() and given.isdigit() else None
    match name:
        case "bsp" if not colon:
            return BSP()
        case "asp" if not colon:
            return ASP()
        case "ssp" if number is not None:
            return SSP(staleness=number)
        case "quorum" if number is not None:
            return Quorum(minimum=number)
    raise ConfigError(
        f"consistency is {shown(text)}; it must be bsp, asp, ssp:N such as ssp:3, or quorum:N"
    )
