"""Consistency modes as users name them; what they mean is `docs/explanation/consistency.md`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias, get_args

from aiops.errors import ConfigError

__all__ = ["ASP", "BSP", "SSP", "Consistency", "consistency_from"]

Reduce = Literal["mean", "sum", "median", "trimmed_mean", "majority_sign"]

Settings: TypeAlias = dict[str, float | int | bool | str | None]

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
    """

    mode: ClassVar[str] = "bsp"
    reduce: Reduce = "mean"
    trim: int | None = None

    def __post_init__(self) -> None:
        _check_reduce("BSP", self.reduce, self.trim)

    def settings(self) -> Settings:
        """Return what travels to the servers."""
        return _reduce_settings(self.reduce, self.trim)

    def check_workers(self, workers: int) -> None:
        """Raise `ConfigError` if so many workers are too few."""
        _check_trim("BSP", self.trim, workers)


def _check_reduce(mode: str, reduce: object, trim: object) -> None:
    if reduce not in get_args(Reduce):
        names = ", ".join(f'"{name}"' for name in get_args(Reduce))
        raise ConfigError(f"{mode}: reduce is {reduce!r}; it must be one of {names}")
    if reduce == "trimmed_mean":
        _check_whole(mode, "trim", trim, 1, "values to leave out at each end")
    elif trim is not None:
        raise ConfigError(f'{mode}: trim={trim!r} is for reduce="trimmed_mean", not {reduce!r}')


def _check_whole(mode: str, name: str, value: object, least: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"{mode}: {name} is {value!r}; it must be a whole number of {what}, {least} or more"
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


Consistency = BSP | ASP | SSP


def consistency_from(text: str) -> Consistency:
    """Return the mode that a short text names: `bsp`, `asp`, or `ssp:3`.

    Raises
    ------
    ConfigError
        It names none, or its number is wrong.
    """
    name, colon, given = text.partition(":")
    number = int(given) if given.isascii() and given.isdigit() else None
    match name:
        case "bsp" if not colon:
            return BSP()
        case "asp" if not colon:
            return ASP()
        case "ssp" if number is not None:
            return SSP(staleness=number)
    raise ConfigError(f"consistency is {text!r}; it must be bsp, asp, or ssp:N such as ssp:3")
