"""What an optimizer is, and the book in which they are found by name.

What lives here: the abstract `Optimizer`, `register`, `optimizer_from`, and the two things that
several optimizers do to a gradient before they use it. What does not: the optimizers (one file
each), the arrays they work on (a server's shard owns those), and any notion of a frame, a round
or a network.

An optimizer is a frozen record of settings plus one elementwise step. Only its name and its
settings travel; code never does. A class of one's own is therefore registered under a name in
every process that needs it::

    @register
    @dataclass(frozen=True, slots=True)
    class SignStep(Optimizer):
        name: ClassVar[str] = "sign-step"
        lr: float = 0.01

        def update(self, values, gradient, state, step, scratch):
            np.sign(gradient, out=gradient)
            gradient *= np.float32(self.lr)
            values -= gradient
"""

import copy
import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from aiops.errors import ConfigError
from aiops.optim.schedules import Schedule, check_rate
from aiops.optim.settings import build, number
from aiops.wording import shown
from aiops_protocol.payload import Float32Array

Steps: TypeAlias = "int | NDArray[np.uint32]"
"""How often elements have been stepped: one number for all of them, or one for each."""


class Optimizer(ABC):
    """The step that a server takes with each gradient.

    Subclass it as a frozen dataclass whose fields are the settings. The bits of the result must
    not depend on how an array is cut into servers and segments: work element by element, and
    never look at a norm, a maximum or any other value that spans elements.
    """

    __slots__ = ()

    name: ClassVar[str]
    """The word that stands for this class on the wire and on the command line."""

    slots: ClassVar[tuple[str, ...]] = ()
    """Names of the float32 arrays kept per element; they are zero before the first step."""

    uses_step: ClassVar[bool] = True
    """Whether `update` looks at `step`. Counting it costs up to 4 bytes per element in a table
    without rounds; with `False` the number means nothing."""

    @abstractmethod
    def update(
        self,
        values: Float32Array,
        gradient: Float32Array,
        state: Mapping[str, Float32Array],
        step: Steps,
        scratch: Float32Array,
    ) -> None:
        """Move `values` by one step, in place.

        Parameters
        ----------
        values : ndarray of float32, shape (n,)
            The parameters; contiguous.
        gradient : ndarray of float32, shape (n,)
            May be overwritten; its content afterwards means nothing.
        state
            One array of shape (n,) per name in `slots`, changed in place.
        step : int, or ndarray of uint32, shape (n,)
            How many steps these elements have taken, counting this one: the first step is 1.
            With rounds the number of the round. Otherwise each element counts the gradients that
            it has got; an array only where these differ, as after pushes of some rows.
        scratch : ndarray of float32, shape (at least n,)
            Working space, so that a step allocates nothing; its content means nothing.
        """

    def settings(self) -> dict[str, float | int | bool | str | None]:
        """Return the settings by name, as they travel, ready for `optimizer_from`."""
        return {
            name: str(value) if isinstance(value, Schedule) else value
            for name, value in _fields(self).items()
        }

    @property
    def zero_is_nothing(self) -> bool:
        """Whether a gradient of zero leaves an element and its state as they are.

        Then a push that sends few values is applied to those alone. `False` unless you know.
        """
        return False

    @property
    def scheduled(self) -> bool:
        """Whether a setting changes with the clock."""
        return any(isinstance(value, Schedule) for value in _fields(self).values())

    def at(self, clock: int) -> Self:
        """Return this optimizer as it is at a clock: each schedule replaced by its rate.

        Any setting may be a `Schedule`; `update` is only ever called on what this returns.
        """
        now = {
            name: value(clock)
            for name, value in _fields(self).items()
            if isinstance(value, Schedule)
        }
        if not now:
            return self
        # Not made anew: a rate may fall to 0, which nobody may ask for as a setting.
        optimizer = copy.copy(self)
        for name, value in now.items():
            object.__setattr__(optimizer, name, value)
        return optimizer


def _fields(optimizer: Optimizer) -> dict[str, Any]:
    if not dataclasses.is_dataclass(optimizer):
        return {}
    return {field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)}


_REGISTERED: Final[dict[str, type[Optimizer]]] = {}

AnyOptimizer = TypeVar("AnyOptimizer", bound=type[Optimizer])


def register(cls: AnyOptimizer) -> AnyOptimizer:
    """Make an optimizer class known under its `name` in this process.

    Use it as the outermost decorator. Registering the same class again (a reloaded module) takes
    the newer one.

    Raises
    ------
    ConfigError
        Not a concrete `Optimizer`; no usable name or slots; a name that another class has.
    """
    given: object = cls  # callers without a type checker pass anything
    if not isinstance(given, type) or not issubclass(given, Optimizer):
        raise ConfigError(f"register: {shown(cls)} must be a subclass of aiops.optim.Optimizer")
    title = cls.__qualname__
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise ConfigError(f"register: {title} does not define {missing}")
    name: object = getattr(cls, "name", None)
    if not isinstance(name, str) or not name or name != name.strip():
        raise ConfigError(f'register: {title} needs a name, for example name: ClassVar = "mine"')
    slots: object = cls.slots
    if (
        not isinstance(slots, tuple)
        or not all(isinstance(slot, str) and slot for slot in slots)
        or len(set(slots)) != len(slots)
    ):
        raise ConfigError(f"register: {title}.slots is {shown(slots)}; it must be a tuple of names")
    holder = _REGISTERED.get(name)
    if holder is not None and _address(holder) != _address(cls):
        raise ConfigError(
            f"register: the name {shown(name)} already belongs to {'.'.join(_address(holder))}; "
            f"give {title} another one"
        )
    _REGISTERED[name] = cls
    return cls


def _address(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def optimizer_from(name: str, settings: Mapping[str, object]) -> Optimizer:
    """Make an optimizer from its name and its settings, as they arrive over the wire.

    Raises
    ------
    ConfigError
        Unknown name (a class of one's own must be imported by the servers: `--import`); unknown,
        missing or bad setting.
    """
    given: object = settings
    if not isinstance(given, Mapping):
        raise ConfigError(f"optimizer {shown(name)}: settings is {shown(given)}; pass a mapping")
    parsed = {
        key: Schedule.parse(str(value)) if Schedule.is_text(value) else value
        for key, value in settings.items()
    }
    try:
        made = build("optimizer", _REGISTERED, name, parsed)
    except ConfigError:
        raise
    except Exception as error:  # one's own class checks its settings as it likes
        raise ConfigError(
            f"optimizer {shown(name)} refuses its settings: {shown(error)}"
        ) from error
    assert isinstance(made, Optimizer)
    return made


def optimizer_names() -> tuple[str, ...]:
    """Return the names of all optimizers known in this process, sorted."""
    return tuple(sorted(_REGISTERED))


def check_common(optimizer: Optimizer) -> None:
    """Check `lr`, `weight_decay`, `clip_value` and `clip_row`, and keep them as plain floats.

    `lr` may be a `Schedule`; the others need not be there.

    Raises
    ------
    ConfigError
        One of them is not a number or is out of bounds.
    """
    lr = check_rate(type(optimizer).__name__, getattr(optimizer, "lr", None))
    object.__setattr__(optimizer, "lr", lr)
    if hasattr(optimizer, "weight_decay"):
        keep_number(optimizer, "weight_decay", at_least=0.0)
    if getattr(optimizer, "clip_value", None) is not None:
        keep_number(optimizer, "clip_value", above=0.0)
    if getattr(optimizer, "clip_row", None) is not None:
        keep_number(optimizer, "clip_row", above=0.0)


def keep_number(optimizer: Optimizer, field: str, **bounds: float) -> None:
    """Check one number of a frozen optimizer and store it as a plain float.

    A numpy scalar or an int is as good a setting as a float, but only plain numbers travel, and
    two optimizers with equal settings must compare equal.
    """
    value = number(type(optimizer).__name__, field, getattr(optimizer, field), **bounds)
    object.__setattr__(optimizer, field, value)


def clip_and_decay(
    values: Float32Array,
    gradient: Float32Array,
    scratch: Float32Array,
    clip_value: float | None,
    weight_decay: float,
) -> None:
    """Clip each element of a gradient, then add weight decay to it, in place.

    The order is that of training loops which clip before the optimizer steps: the decay itself
    is never clipped. With `clip_value` `None` and `weight_decay` 0 the bits stay as they are.
    """
    if clip_value is not None:
        limit = np.float32(clip_value)
        np.clip(gradient, -limit, limit, out=gradient)
    if weight_decay:
        decay = scratch[: values.size]
        np.multiply(values, np.float32(weight_decay), out=decay)
        np.add(gradient, decay, out=gradient)
