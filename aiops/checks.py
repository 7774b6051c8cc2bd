"""Checks of what users pass: names, counts, deadlines, arrays. Each error says what to do."""

from __future__ import annotations

from collections.abc import Container
from typing import Final, TypeGuard

import numpy as np

from aiops.errors import ConfigError, UsageError
from aiops.wording import shown
from aiops_protocol.frames import AckLevel
from aiops_protocol.limits import NAME_CHARS_MAX, WEIGHT_MAX
from aiops_protocol.payload import Float32Array, all_finite

__all__ = [
    "check_ack",
    "check_array",
    "check_count",
    "check_flag",
    "check_name",
    "check_optional_name",
    "check_out",
    "check_text",
    "check_timeout",
    "check_weight",
    "is_number",
    "is_one_of",
    "positive",
]

_NAME_CHARS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-")
_FLOAT32: Final = np.dtype(np.float32)

TIMEOUT_S_MAX: Final = 1e9
"""Thirty years: what travels, and what every event loop can wait for. Longer is this long."""


ACK_LEVELS: Final = {"received": AckLevel.RECEIVED, "applied": AckLevel.APPLIED}


def check_ack(ack: object, what: str) -> AckLevel:
    """Return the level of a push's acknowledgement."""
    level = ACK_LEVELS.get(ack) if isinstance(ack, str) else None
    if level is not None:
        return level
    why = ""
    if is_one_of(ack, ("replicated", "durable")):
        why = ": servers keep neither replicas nor snapshots yet"
    raise UsageError(f'{what}: ack={shown(ack)}{why}; it may be "applied" or "received"')


def check_name(name: object, what: str) -> str:
    """Return a name that may travel and stand in a log line; `ConfigError` otherwise."""
    if (
        not isinstance(name, str)
        or not name
        or len(name) > NAME_CHARS_MAX
        or not set(name) <= _NAME_CHARS
    ):
        raise ConfigError(
            f"{what} is {shown(name)}; use 1 to {NAME_CHARS_MAX} letters, digits and . _ : -"
        )
    return name


def check_optional_name(name: object, what: str) -> str:
    """Return a name that may be left out, empty if it is; see `check_name`."""
    left_out = name is None or (isinstance(name, str) and not name)
    return "" if left_out else check_name(name, what)


def check_count(value: object, what: str) -> int:
    """Return a whole number of 0 or more; `UsageError` otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise UsageError(f"{what} is {shown(value)}; it must be a whole number, 0 or more")
    return int(value)


def is_number(value: object) -> TypeGuard[float]:
    """Whether this is one of Python's or numpy's real numbers; a bool is not meant as one."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_one_of(value: object, names: Container[str]) -> bool:
    """Whether this is one of some words; an array, which equals them one by one, is none."""
    return isinstance(value, str) and value in names


def check_text(value: object, what: str) -> str:
    """Return a text that may be left out, empty if it is; `ConfigError` for all else."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{what} is {shown(value)}; it must be a text, or be left out")
    return value or ""


def check_timeout(value: object, what: str, name: str = "timeout_s") -> float:
    """Return seconds above 0, infinity included; `UsageError` otherwise."""
    if not is_number(value) or not value > 0:
        raise UsageError(f"{what}: {name} is {shown(value)}; it must be a number above 0")
    return float(min(value, TIMEOUT_S_MAX))


def positive(value: object, what: str) -> float:
    """Return a setting in seconds, above 0, infinity included; `ConfigError` otherwise."""
    if not is_number(value) or not value > 0:
        raise ConfigError(f"{what} is {shown(value)}; it must be a number above 0")
    return float(min(value, TIMEOUT_S_MAX))


def check_flag(value: object, what: str) -> bool:
    """Return a setting that is on or off; `ConfigError` for all else, such as the word "no"."""
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{what} is {shown(value)}; it must be True or False")
    return bool(value)


def check_weight(value: object, what: str) -> float:
    """Return the weight of a contribution; `UsageError` if it can be none."""
    if not is_number(value) or not 1 / WEIGHT_MAX <= value <= WEIGHT_MAX:
        raise UsageError(
            f"{what} is {shown(value)}; it must be a number above 0, at most {WEIGHT_MAX:.0e} "
            "(who has no samples does not push)"
        )
    return float(value)


def check_array(
    array: object, shape: tuple[int, ...], what: str, *, allow_nonfinite: bool
) -> Float32Array:
    """Return the array as one flat contiguous float32 array, copied only if it is strided.

    Raises
    ------
    UsageError
        Not a float32 array, another shape, or NaN and infinity where they are not allowed.
    """
    if type(array) is not np.ndarray:
        array = _plain(array, what)
    if array.dtype != _FLOAT32:
        raise UsageError(
            f"{what}: the array is {array.dtype}; only float32 travels, and nothing is cast "
            "silently: use .astype(numpy.float32)"
        )
    if array.shape != shape:
        raise UsageError(f"{what}: the array has shape {array.shape}, expected {shape}")
    flat: Float32Array = array.reshape(-1) if array.flags.c_contiguous else array.ravel()
    if not allow_nonfinite and not all_finite(flat):
        bad = int(np.flatnonzero(~np.isfinite(flat))[0])
        where = tuple(int(i) for i in np.unravel_index(bad, shape)) if shape else ()
        raise UsageError(
            f"{what}: the value at {where} is {flat[bad]}; nothing was sent (open the table with "
            "allow_nonfinite=True to let NaN and infinity pass)"
        )
    return flat


def _plain(array: object, what: str) -> Float32Array:
    """Return a float32 scalar, or an array of a subclass, as a plain array."""
    if isinstance(array, np.ma.MaskedArray):
        raise UsageError(f"{what}: masked arrays do not travel; use .filled(...)")
    if not isinstance(array, np.float32 | np.ndarray):
        raise UsageError(
            f"{what}: pass a numpy array of float32, not {type(array).__name__} "
            "(numpy.asarray(x, numpy.float32))"
        )
    return np.asarray(array)


def check_out(out: object, shape: tuple[int, ...], what: str) -> None:
    """Check an array that values are to be received into; `UsageError` if it does not do."""
    if not isinstance(out, np.ndarray) or out.dtype != _FLOAT32:
        raise UsageError(f"{what}: out must be a numpy array of float32")
    if out.shape != shape:
        raise UsageError(f"{what}: out has shape {out.shape}, expected {shape}")
    if not (out.flags.c_contiguous and out.flags.writeable):
        raise UsageError(
            f"{what}: out must be contiguous and writeable; leave it out to get a fresh array"
        )
