"""Functions of one's own that run on the servers: `await table.call("norm", power=2.0)`.

What lives here: the decorator, the book in which functions are found by name, what one is given,
and one guarded run. What does not: when it may run, and how it is asked for (`aiops.roles`).

Code never travels, only a name and plain settings; the servers import the module that has the
function (`--import`). A function runs once on each shard, on that shard's part of the table::

    @server_function("norm")
    def norm(part, power=2.0):
        return np.sum(np.abs(part.values, dtype=np.float64) ** power)

    @server_function("scale", changes=True)
    def scale(part, by):
        part.values *= np.float32(by)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from aiops.checks import check_flag, is_one_of
from aiops.errors import ConfigError
from aiops.wording import listed, shown
from aiops_protocol.limits import CALL_RESULT_BYTES_MAX
from aiops_protocol.payload import Float32Array, all_finite

__all__ = [
    "FunctionMistake",
    "ServerFunction",
    "ShardView",
    "function_from",
    "function_names",
    "server_function",
]

RESULT_ELEMENTS_MAX: Final = CALL_RESULT_BYTES_MAX // 4


@dataclass(slots=True)
class ShardView:
    """What a function sees of a table: one server's part.

    Attributes
    ----------
    values : ndarray of float32, shape (end - begin,)
        To be changed in place by a function that changes values; otherwise it may not be written.
    state
        The optimizer's arrays by slot, of the same shape; they may not be written.
    begin, end
        Which elements of the table these are, counted flat.
    shape
        Of the whole table.
    version
        Of the values.
    """

    values: Float32Array
    state: Mapping[str, Float32Array]
    begin: int
    end: int
    shape: tuple[int, ...]
    version: int


class FunctionMistake(ConfigError):
    """A function has done what none may do; the message says what."""


@dataclass(frozen=True, slots=True)
class ServerFunction:
    """A function, and whether it changes values."""

    name: str
    changes: bool
    function: Callable[..., Any]

    def check(self, settings: Mapping[str, object]) -> None:
        """Raise `ConfigError` if the function does not take these settings."""
        try:
            inspect.signature(self.function).bind(None, **settings)
        except TypeError as error:
            raise ConfigError(f"function {self.name}: {error}") from None

    def read(self, view: ShardView, settings: Mapping[str, object]) -> Float32Array:
        """Run it, and return what it returns as a flat array.

        Raises
        ------
        FunctionMistake
            It has returned something else than up to 16,384 numbers, or asked the process to
            exit.
        Exception
            What it has raised itself.
        """
        returned = self._run(view, settings)
        try:
            result = np.asarray([] if returned is None else returned).astype(
                np.float32, casting="same_kind" if returned is not None else "unsafe"
            )
        except (TypeError, ValueError):
            raise FunctionMistake(
                f"it returned a {type(returned).__name__}; return numbers, or an array of them"
            ) from None
        if result.size > RESULT_ELEMENTS_MAX:
            raise FunctionMistake(
                f"it returned {result.size} numbers for one shard; {RESULT_ELEMENTS_MAX} at most"
            )
        return result.reshape(-1)

    def change(self, view: ShardView, settings: Mapping[str, object], *, finite: bool) -> None:
        """Run it on values that it may change; they are a copy.

        Raises
        ------
        FunctionMistake
            It has returned something, given the values another shape, or left some that are not
            finite where they must be.
        Exception
            What it has raised itself.
        """
        values = view.values
        shape = values.shape
        returned = self._run(view, settings)
        if returned is not None:
            raise FunctionMistake(
                f"it returned a {type(returned).__name__}; one that changes values must change "
                "them in place and return nothing"
            )
        if view.values is not values:
            raise FunctionMistake(
                "it put another array in place of the values; change them in place, as in "
                "part.values[:] = 0"
            )
        if values.shape != shape:
            raise FunctionMistake(f"it gave the values the shape {values.shape}, not {shape}")
        if finite and not all_finite(values):
            raise FunctionMistake("it left values that are not finite")

    def _run(self, view: ShardView, settings: Mapping[str, object]) -> object:
        try:
            with np.errstate(all="ignore"):
                return self.function(view, **settings)
        except SystemExit as error:
            raise FunctionMistake(f"it asked the server to exit ({error})") from error


_REGISTERED: Final[dict[str, ServerFunction]] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


def server_function(name: str, *, changes: bool = False) -> Callable[[Function], Function]:
    """Make a function known under a name in this process; a decorator.

    Its first argument is a `ShardView`, the others are settings: numbers, texts, bools or `None`.

    Parameters
    ----------
    name
        By which workers call it.
    changes
        Whether it changes `values`. It then returns nothing; otherwise it returns numbers, or
        an array of at most 16,384 of them.

    Raises
    ------
    ConfigError
        No usable name, no function that takes a shard, or a name that another function has. One
        of the same module and name (a reloaded module) takes its place.
    """
    given: object = name  # callers without a type checker pass anything
    if not isinstance(given, str) or not given or given != given.strip() or len(given) > 64:
        raise ConfigError(f"server_function: name is {shown(name)}; it must be 1 to 64 characters")

    changes = check_flag(changes, f"server_function {name}: changes")

    def remember(function: Function) -> Function:
        if not inspect.signature(function).parameters:
            raise ConfigError(f"server_function {name}: {shown(function)} takes no shard")
        holder = _REGISTERED.get(name)
        if holder is not None and _address(holder.function) != _address(function):
            raise ConfigError(
                f"server_function: the name {shown(name)} already belongs to "
                f"{'.'.join(_address(holder.function))}"
            )
        _REGISTERED[name] = ServerFunction(name, changes, function)
        return function

    return remember


def _address(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, getattr(function, "__qualname__", repr(function))


def function_from(name: str, settings: Mapping[str, object]) -> ServerFunction:
    """Find a function by its name, and check that it takes these settings.

    Raises
    ------
    ConfigError
        Unknown name (one's own must be imported by the servers: `--import`), or settings that
        the function does not take.
    """
    found = _REGISTERED[name] if is_one_of(name, _REGISTERED) else None
    if found is None:
        known = listed(function_names()) or "none"
        raise ConfigError(
            f"unknown function {shown(name)}; known are {known} (servers import others by --import)"
        )
    found.check(settings)
    return found


def function_names() -> tuple[str, ...]:
    """Return the names of all functions known in this process, sorted."""
    return tuple(sorted(_REGISTERED))
