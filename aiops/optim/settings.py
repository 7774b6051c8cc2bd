"""Checks for the settings of optimizers, initializers and trainers.

What lives here: one function per sort of setting. Each returns the value as a plain Python number
(so that it can travel in a control message) or raises `ConfigError` with the setting's name and
the fix. What does not: the settings themselves, which are fields of the class they belong to.
"""

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

import numpy as np

from aiops.errors import ConfigError
from aiops.wording import listed, shown

FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
SEED_MAX: Final = 2**64 - 1  # half of a Philox key


def number(
    owner: str,
    name: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return `value` as a float that is inside the bounds also after rounding to float32.

    Parameters
    ----------
    owner, name
        Class and field, for the message.
    value
        Any real number; a bool is refused because it is nearly always a swapped argument.
    above, at_least, below, at_most
        Bounds: the first and third are open, the others closed.

    Raises
    ------
    ConfigError
        Not a number, not finite in float32, or outside the bounds.
    """
    rule = _number_rule(above, at_least, below, at_most)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{owner}: {name} is {shown(value)}; it must be {rule}")
    try:
        plain = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        plain = math.inf
    # Arithmetic is in float32, where 1e-60 is 0 and 0.99999999 is 1: those are what count.
    if not math.isfinite(plain) or abs(plain) > FLOAT32_MAX:
        raise ConfigError(f"{owner}: {name} is {shown(value)}; it must be {rule} that fits float32")
    rounded = float(np.float32(plain))
    inside = (
        (above is None or rounded > above)
        and (at_least is None or rounded >= at_least)
        and (below is None or rounded < below)
        and (at_most is None or rounded <= at_most)
    )
    if not inside:
        note = "" if rounded == plain else f" (in float32 it is {rounded})"
        raise ConfigError(f"{owner}: {name} is {shown(value)}{note}; it must be {rule}")
    return plain


def _number_rule(
    above: float | None, at_least: float | None, below: float | None, at_most: float | None
) -> str:
    parts = [
        f"{word} {bound:g}"
        for word, bound in (
            ("above", above),
            ("at least", at_least),
            ("below", below),
            ("at most", at_most),
        )
        if bound is not None
    ]
    return "a number " + " and ".join(parts) if parts else "a finite number"


def whole(
    owner: str, name: str, value: object, *, at_least: int = 0, at_most: int = SEED_MAX
) -> int:
    """Return `value` as an int inside [at_least, at_most].

    Raises
    ------
    ConfigError
        Not a whole number, or outside the bounds.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        plain = int(value)
        if at_least <= plain <= at_most:
            return plain
    upper = "" if at_most == SEED_MAX else f" and at most {at_most}"
    raise ConfigError(
        f"{owner}: {name} is {shown(value)}; it must be a whole number, at least {at_least}{upper}"
    )


def flag(owner: str, name: str, value: object) -> bool:
    """Return `value` if it is a bool.

    Raises
    ------
    ConfigError
        It is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{owner}: {name} is {shown(value)}; it must be True or False")
    return bool(value)


def build(
    kind: str, classes: Mapping[str, type[Any]], name: object, settings: Mapping[str, object]
) -> Any:
    """Make an instance of the class called `name` from settings that came over the wire.

    Parameters
    ----------
    kind
        What the classes are, for the message: "optimizer", "initializer".
    classes
        The known classes by name.
    name
        The name asked for.
    settings
        Keyword arguments of the class.

    Raises
    ------
    ConfigError
        Unknown name; unknown, missing or bad setting.
    """
    cls = classes.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ConfigError(f"unknown {kind} {shown(name)}; known are {listed(sorted(classes))}")
    try:
        return cls(**settings)
    except TypeError as error:
        # Python's text names the setting: "... got an unexpected keyword argument 'rate'".
        given = listed(sorted(map(str, settings))) or "nothing"
        raise ConfigError(f"{kind} {shown(name)} cannot be made from {given}: {error}") from error
