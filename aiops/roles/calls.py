"""Functions of the user's own on one server's part of a table: finding, running, refusing.

What lives here: what a CALL becomes. One that reads runs when a pull of its clock could be
answered. One that changes values runs on a copy, which is then assigned: so it takes effect as
an `assign` does, at once or with the round, and a function that fails has changed nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiops.errors import ConfigError
from aiops.functions import FunctionMistake, ServerFunction, ShardView, function_from
from aiops.roles.consistency import Outcome, Rule
from aiops.shards.shard import Shard
from aiops_protocol.calls import called
from aiops_protocol.errors import ErrorCode, MalformedFrame
from aiops_protocol.frames import Request
from aiops_protocol.payload import Float32Array

__all__ = ["Refusal", "run_change", "run_read"]


class Refusal(Exception):
    """Why a function was not run, or has failed: a code and a text."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


_SORTS: Final = {True: "changes values: use transform", False: "only reads: use call"}


def run_read(name: str, shape: tuple[int, ...], rule: Rule, request: Request) -> Float32Array:
    """Run a function that reads; return what it returns.

    Raises
    ------
    Refusal
        There is no such function, or it has failed.
    """
    function, settings = _found(request, changes=False)
    shard = _dense(rule, name)
    values = shard.values[:]
    values.flags.writeable = False
    try:
        return function.read(_view(values, shard, shape, rule.version), settings)
    except Exception as error:
        raise _failed(function, name, error) from error


def run_change(
    name: str, shape: tuple[int, ...], rule: Rule, rank: int, request: Request, *, finite: bool
) -> Outcome:
    """Run a function that changes values, and assign what it has made of them.

    Raises
    ------
    Refusal
        There is no such function, or it has failed; nothing was changed.
    """
    function, settings = _found(request, changes=True)
    shard = _dense(rule, name)
    values = shard.values.copy()
    try:
        function.change(_view(values, shard, shape, rule.version), settings, finite=finite)
    except Exception as error:
        raise _failed(function, name, error) from error
    return rule.assign(rank, request.clock, slice(0, shard.size), values)


def _dense(rule: Rule, name: str) -> Shard:
    if not isinstance(rule.shard, Shard):
        text = f"functions run on dense tables, and {name} is sparse"
        raise Refusal(ErrorCode.INVALID_SETTING, text)
    return rule.shard


def _found(request: Request, *, changes: bool) -> tuple[ServerFunction, Mapping[str, object]]:
    try:
        call = called(request.payload)
        function = function_from(call.function, call.settings)
    except (MalformedFrame, ConfigError) as error:
        raise Refusal(ErrorCode.INVALID_SETTING, str(error)) from None
    if function.changes is not changes:
        text = f"function {call.function} {_SORTS[function.changes]}"
        raise Refusal(ErrorCode.INVALID_SETTING, text)
    return function, call.settings


def _view(values: Float32Array, shard: Shard, shape: tuple[int, ...], version: int) -> ShardView:
    state = {slot: array[:] for slot, array in shard.state.items()}
    for array in state.values():
        array.flags.writeable = False
    return ShardView(values, MappingProxyType(state), shard.begin, shard.end, shape, version)


def _failed(function: ServerFunction, table: str, error: Exception) -> Refusal:
    what = str(error) if isinstance(error, FunctionMistake) else repr(error)
    text = f"function {function.name} failed on table {table}, nothing was changed: {what}"
    return Refusal(ErrorCode.FUNCTION_FAILED, text)
