"""Initial values of a table, computed where they are needed.

What lives here: rules that give the value of any range of elements without knowing the rest, so
that each server fills its own part and the result is the same however the table is cut. What does
not: initial values given as an array, which are ordinary assigned data.

Random rules draw in blocks of `BLOCK` elements, each from a counter-based generator keyed by
(seed, number of the block). A range that begins inside a block draws that block from its start.
A row of a sparse table draws from its key: a hash of seed, key and column.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar, Final

import numpy as np

from aiops.errors import ConfigError
from aiops.optim.settings import FLOAT32_MAX, build, number, whole
from aiops.wording import shown
from aiops_protocol.key_list import Keys, mix, mix_in_place
from aiops_protocol.payload import Float32Array

# 256 KiB of float32: small enough that a cut inside a block wastes little, large enough that
# setting up a generator (about 15 us) does not count.
BLOCK: Final = 65_536

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Initializer(ABC):
    """A rule for the initial values of a table."""

    __slots__ = ()

    kind: ClassVar[str]
    """The word that stands for this rule on the wire."""

    @abstractmethod
    def fill(self, begin: int, end: int) -> Float32Array:
        """Return the initial values of the elements [begin, end) as a new array.

        Raises
        ------
        ValueError
            Not 0 <= begin <= end.
        """

    @abstractmethod
    def fill_rows(self, words: Keys, width: int) -> Float32Array:
        """Return the initial rows of a sparse table for mixed keys, shape (len(words), width)."""

    def settings(self) -> dict[str, float | int]:
        """Return the settings by name, ready for `initializer_from`."""
        assert is_dataclass(self)
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Constant(Initializer):
    """Every element starts at the same value.

    Parameters
    ----------
    value
        Any finite float32.
    """

    kind: ClassVar[str] = "constant"

    value: float = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        object.__setattr__(self, "value", number("Constant", "value", self.value))

    def fill(self, begin: int, end: int) -> Float32Array:
        """Return the initial values of [begin, end); see `Initializer.fill`."""
        return np.full(_length(begin, end), self.value, np.float32)

    def fill_rows(self, words: Keys, width: int) -> Float32Array:
        """Return the initial rows for mixed keys; see `Initializer.fill_rows`."""
        return np.full((words.size, width), self.value, np.float32)


@dataclass(frozen=True, slots=True)
class Normal(Initializer):
    """Elements are drawn from a normal distribution.

    Parameters
    ----------
    std
        Standard deviation, at least 0.
    mean
        Mean.
    seed
        The same seed gives the same table on every machine with the same numpy.
    """

    kind: ClassVar[str] = "normal"

    std: float = 0.01
    mean: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        object.__setattr__(self, "std", number("Normal", "std", self.std, at_least=0.0))
        object.__setattr__(self, "mean", number("Normal", "mean", self.mean))
        object.__setattr__(self, "seed", whole("Normal", "seed", self.seed))
        # The generator stays inside 20 standard deviations, so this is what float32 must hold.
        if abs(self.mean) + 20.0 * self.std > FLOAT32_MAX:
            raise ConfigError(
                f"Normal: std {shown(self.std)} around mean {shown(self.mean)} does not fit "
                "float32; make std smaller"
            )

    def fill(self, begin: int, end: int) -> Float32Array:
        """Return the initial values of [begin, end); see `Initializer.fill`."""
        return self._scaled(_draw(self.seed, begin, end, normal=True))

    def fill_rows(self, words: Keys, width: int) -> Float32Array:
        """Return the initial rows for mixed keys; see `Initializer.fill_rows`.

        Two columns come from one 64-bit word, by the method of Box and Muller in double precision:
        within 6.7 standard deviations.
        """
        first, second = _row_words(self.seed, words, width)
        # In (0, 1], so that there is a logarithm.
        radius = np.sqrt(-2.0 * np.log((first + 1.0) * 2.0**-32))
        angle = second * (2.0 * np.pi * 2.0**-32)
        values = np.empty((words.size, width), np.float32)
        values[:, 0::2] = radius * np.cos(angle)
        values[:, 1::2] = (radius * np.sin(angle))[:, : width // 2]
        return self._scaled(values)

    def _scaled(self, values: Float32Array) -> Float32Array:
        np.multiply(values, np.float32(self.std), out=values)
        np.add(values, np.float32(self.mean), out=values)
        return values


@dataclass(frozen=True, slots=True)
class Uniform(Initializer):
    """Elements are drawn evenly from an interval.

    Parameters
    ----------
    low, high
        Ends of the interval, low < high; rounding to float32 can give `high` itself.
    seed
        The same seed gives the same table on every machine with the same numpy.
    """

    kind: ClassVar[str] = "uniform"

    low: float
    high: float
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        object.__setattr__(self, "low", number("Uniform", "low", self.low))
        object.__setattr__(self, "high", number("Uniform", "high", self.high, above=self.low))
        object.__setattr__(self, "seed", whole("Uniform", "seed", self.seed))
        if self.high - self.low > FLOAT32_MAX:
            raise ConfigError(
                f"Uniform: the width of low={shown(self.low)} to high={shown(self.high)} does not "
                "fit float32; bring them closer together"
            )

    def fill(self, begin: int, end: int) -> Float32Array:
        """Return the initial values of [begin, end); see `Initializer.fill`."""
        return self._scaled(_draw(self.seed, begin, end, normal=False))

    def fill_rows(self, words: Keys, width: int) -> Float32Array:
        """Return the initial rows for mixed keys; see `Initializer.fill_rows`."""
        first, second = _row_words(self.seed, words, width)
        values = np.empty((words.size, width), np.float32)
        # 24 bits: what a float32 holds exactly.
        values[:, 0::2] = (first >> np.uint64(8)) * 2.0**-24
        values[:, 1::2] = ((second >> np.uint64(8)) * 2.0**-24)[:, : width // 2]
        return self._scaled(values)

    def _scaled(self, values: Float32Array) -> Float32Array:
        low, high = np.float32(self.low), np.float32(self.high)
        np.multiply(values, np.float32(self.high - self.low), out=values)
        np.add(values, low, out=values)
        np.minimum(values, high, out=values)
        return values


_KINDS: Final[dict[str, type[Initializer]]] = {cls.kind: cls for cls in (Constant, Normal, Uniform)}


def initializer_from(kind: str, settings: Mapping[str, object]) -> Initializer:
    """Make an initializer from its kind and settings, as they arrive over the wire.

    Raises
    ------
    ConfigError
        Unknown kind; unknown, missing or bad setting.
    """
    made = build("initializer", _KINDS, kind, settings)
    assert isinstance(made, Initializer)
    return made


def _draw(seed: int, begin: int, end: int, *, normal: bool) -> Float32Array:
    """Draw the elements [begin, end) of the endless table that belongs to `seed`."""
    values = np.empty(_length(begin, end), np.float32)
    position = begin
    while position < end:
        block, skipped = divmod(position, BLOCK)
        stop = min(end, (block + 1) * BLOCK)
        part = values[position - begin : stop - begin]
        key = np.array([seed, block], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key))
        draw = generator.standard_normal if normal else generator.random
        if skipped == 0:
            draw(dtype=np.float32, out=part)
        else:
            part[:] = draw(skipped + part.size, dtype=np.float32)[skipped:]
        position = stop
    return values


def _row_words(seed: int, words: Keys, width: int) -> tuple[Keys, Keys]:
    """Return two arrays of 32 random bits, shape (len(words), ceil(width / 2)): a stream per key.

    The stream of a key is that of the SplitMix64 generator that is seeded with key and seed.
    """
    start = words ^ mix(np.array([seed], np.uint64))
    scratch = np.empty_like(start)
    mix_in_place(start, scratch)
    steps = np.arange(1, -(-width // 2) + 1, dtype=np.uint64) * _GOLDEN
    drawn = start[:, None] + steps
    mix_in_place(drawn, np.empty_like(drawn))
    return drawn >> np.uint64(32), drawn & np.uint64(0xFFFFFFFF)


def _length(begin: int, end: int) -> int:
    if not 0 <= begin <= end:
        raise ValueError(f"range [{begin}, {end}) must satisfy 0 <= begin <= end")
    return end - begin
