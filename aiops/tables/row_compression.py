"""Compression of a sparse table's rows: which codecs fit, and what is held back for each key.

What lives here: a codec as it is for rows, and the residual of each key that this worker has
pushed. What does not: codecs (`aiops.compression`), cutting and sending (`sparse_table`), and how
rows are rounded on their way back (`reads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aiops.checks import is_one_of
from aiops.compression import (
    QSGD,
    BFloat16,
    Chain,
    Codec,
    ErrorFeedback,
    Float8,
    Float16,
    Int4,
    Int8,
    Lz4,
    NoFeedback,
    OneBit,
    codec_from,
)
from aiops.compression.checks import finite
from aiops.compression.spelling import AUTO, as_codec
from aiops.errors import ConfigError
from aiops.shards.sparse.index import RowIndex
from aiops_protocol.codecs import Encoded, mix
from aiops_protocol.key_list import Keys, as_keys
from aiops_protocol.key_list import mix as mixed
from aiops_protocol.payload import Float32Array

__all__ = ["HELD_BYTES_MAX", "HeldRows", "RowCompressor", "row_codec", "row_spelling"]

HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""What one worker holds back of one table at most: four million rows of 16 values. The rows of
further keys are sent as they are, so that nothing is lost."""

FIRST_ROWS: Final = 256

_FOR_PUSHES: Final = (Float16, BFloat16, Float8, Int8, Int4, OneBit, QSGD, Lz4)
_FOR_PULLS: Final = (Float16, BFloat16)

_KEYS: Final = "keys"
_RESIDUAL: Final = "residual"
_PUSHES: Final = "pushes"
_CODEC: Final = "codec"


def row_spelling(given: Codec | str | None, what: str, *, nonfinite: bool, pulls: bool) -> str:
    """Check the codec of the rows that a sparse table is pushed, or pulled; return its spelling.

    Raises
    ------
    ConfigError
        No codec, or one that makes no sense for rows; the message says what there is.
    """
    if given is None:
        return ""
    setting = "pull_compression" if pulls else "compression"
    if is_one_of(given, (AUTO,)):
        raise ConfigError(f"{what}: {setting} auto is for dense tables; name a codec such as bf16")
    codec = as_codec(given, f"{what}: {setting}")
    _check(codec, f"{what}: {setting}", pulls=pulls)
    if nonfinite and not codec.lossless:
        raise ConfigError(
            f"{what}: {setting} {codec.spelling()} with allow_nonfinite=True: NaN or infinity "
            "would stay in what is held back; use a table without one of them"
        )
    return codec.spelling()


def _check(codec: Codec, what: str, *, pulls: bool) -> None:
    plain = codec.codec if isinstance(codec, NoFeedback | ErrorFeedback) else codec
    parts = plain.codecs if isinstance(plain, Chain) else (plain,)
    if pulls:
        if len(parts) != 1 or not isinstance(codec, _FOR_PULLS):
            raise ConfigError(
                f"{what} cannot be {codec.spelling()}: a server does not know which rows a worker "
                "has, so rows are only rounded; there is fp16 and bf16"
            )
        return
    if not all(isinstance(part, _FOR_PUSHES) for part in parts):
        raise ConfigError(
            f"{what} cannot be {codec.spelling()}: a push of rows names few elements already, and "
            "what is left out of a row might never be pushed again; there is fp16, bf16, fp8, "
            "int8, int4, one-bit, qsgd and lz4"
        )


def row_codec(spelling: str, width: int) -> Codec:
    """Return a codec without feedback, with blocks no longer than a row where that is possible.

    A block is a power of two, and 16 at least; so it is a whole part of a row if the width is a
    multiple of 16, and reaches over to the next row if not.
    """
    codec = codec_from(spelling)
    if isinstance(codec, NoFeedback | ErrorFeedback):
        codec = codec.codec
    most = max(16, width & -width)
    if isinstance(codec, Chain):
        first, *rest = codec.codecs
        return Chain(_limited(first, most), *rest)
    return _limited(codec, most)


def _limited(codec: Codec, most: int) -> Codec:
    if getattr(codec, "block", 0) > most:
        return replace(codec, block=most)  # type: ignore[type-var]  # codecs are dataclasses
    return codec


class HeldRows:
    """A row for each key that was pushed and whose rest is held back.

    Parameters
    ----------
    width
        Of a row.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._index = RowIndex()
        self._keys: Keys = np.empty(0, np.uint64)
        self._rows: Float32Array = np.empty((0, width), np.float32)

    @property
    def count(self) -> int:
        """Keys that there are."""
        return self._index.size

    @property
    def rows(self) -> Float32Array:
        """What is held back, shape (count, width)."""
        return self._rows[: self.count]

    @property
    def keys(self) -> Keys:
        """Their keys, as they travel."""
        return self._keys[: self.count]

    def find(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the row number of each key, -1 for none, and whether it has a place, or may."""
        numbers = self._index.find(mixed(keys))
        missing = numbers < 0
        room = HELD_BYTES_MAX // (4 * self._width + 24) - self.count
        fits = np.cumsum(missing) <= max(room, 0)
        return numbers, ~missing | fits

    def get(self, numbers: NDArray[np.int64]) -> Float32Array:
        """Return rows by number, zeros for -1."""
        if not self.count:
            return np.zeros((numbers.size, self._width), np.float32)
        found = np.take(self._rows, np.maximum(numbers, 0), axis=0)
        found[numbers < 0] = 0.0
        return found

    def put(self, keys: Keys, numbers: NDArray[np.int64], rows: Float32Array) -> None:
        """Set rows; those of number -1 are made."""
        missing = np.flatnonzero(numbers < 0)
        if missing.size:
            first, last = self.count, self.count + missing.size
            if last > len(self._rows):
                size = max(2 * len(self._rows), last, FIRST_ROWS)
                self._rows = np.concatenate(
                    [self.rows, np.empty((size - first, self._width), np.float32)]
                )
                self._keys = np.concatenate([self.keys, np.empty(size - first, np.uint64)])
            numbers = numbers.copy()
            numbers[missing] = np.arange(first, last)
            self._keys[first:last] = keys[missing]
            self._index.insert(mixed(keys[missing]), numbers[missing].astype(np.uint32))
        self._rows[numbers] = rows


class Split(NamedTuple):
    """A push of rows: those that are encoded, and those that have to go as they are."""

    encoded: Encoded
    coded: NDArray[np.bool_]


class RowCompressor:
    """A codec with what it holds back, for the pushes of one worker to one sparse table.

    Parameters
    ----------
    spelling
        As `row_spelling` returns it.
    width
        Of a row.
    seed
        Of all random numbers.

    Attributes
    ----------
    pushes
        How many were encoded.
    bytes_given, bytes_sent
        Of their values, and of what these became, without keys.
    rows_plain
        Rows that went as they are, because what would be held back of them has no place.
    """

    def __init__(self, spelling: str, width: int, seed: int) -> None:
        given = codec_from(spelling)
        self._spelling = given.spelling()
        self._width = width
        self._seed = seed
        self.codec = row_codec(spelling, width)
        self._feeds = given.feedback in ("needed", "own")
        self._held = HeldRows(width)
        self.pushes = self.bytes_given = self.bytes_sent = self.rows_plain = 0

    def encode(self, keys: Keys, rows: Float32Array) -> Split:
        """Encode the rows of one push, shape (n, width); keys as they travel, none twice.

        Raises
        ------
        UsageError
            NaN or infinity, given or as a sum with what was held back. Nothing has changed.
        """
        seed = mix(self._seed, self.pushes)
        if not self._feeds:
            encoded = self.codec.encode(rows.reshape(-1), {}, seed)
            coded = np.ones(keys.size, np.bool_)
        else:
            with np.errstate(all="ignore"):
                encoded, coded = self._with_rest(keys, rows, seed)
        self.pushes += 1
        self.bytes_given += rows.nbytes
        self.rows_plain += int(coded.size - coded.sum())
        return Split(encoded, coded)

    def _with_rest(
        self, keys: Keys, rows: Float32Array, seed: int
    ) -> tuple[Encoded, NDArray[np.bool_]]:
        numbers, coded = self._held.find(keys)
        if not coded.all():
            keys, numbers, rows = keys[coded], numbers[coded], rows[coded]
        total = (self._held.get(numbers) + rows).reshape(-1)
        finite(total, self.codec)
        encoded = self.codec.encode(total, {}, seed)
        rest = total.copy()  # what was encoded may have borrowed the sum
        encoded.take_from(rest)
        finite(rest, self.codec)
        self._held.put(keys, numbers, rest.reshape(-1, self._width))
        return encoded, coded

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what is held back of all keys."""
        return float(np.sqrt(np.sum(np.square(self._held.rows, dtype=np.float64))))

    def stats(self) -> dict[str, Any]:
        """Return codec, pushes, bytes, and how much is held back of how many rows."""
        return {
            "codec": self._spelling,
            "pushes": self.pushes,
            "bytes_given": self.bytes_given,
            "bytes_sent": self.bytes_sent,
            "residual_norm": self.residual_norm,
            "rows_held": self._held.count,
            "rows_plain": self.rows_plain,
        }

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that the next push depends on, as arrays of one's own to keep."""
        return {
            _KEYS: self._held.keys.copy(),
            _RESIDUAL: self._held.rows.copy(),
            _PUSHES: np.array(self.pushes, np.int64),
            _CODEC: np.array(self._spelling),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on where `state_dict` was taken.

        Raises
        ------
        ConfigError
            It is of another codec or width, or no such state.
        """
        spelling = str(state.get(_CODEC, ""))
        if spelling != self._spelling:
            raise ConfigError(
                f"the saved compression state is of {spelling or 'no codec'}, the table's "
                f"compression is {self._spelling}"
            )
        keys, rows, pushes = (state.get(name) for name in (_KEYS, _RESIDUAL, _PUSHES))
        if keys is None or rows is None or pushes is None or np.ndim(pushes):
            raise ConfigError("the saved compression state lacks keys, residual or pushes")
        unique = np.unique(keys).size == keys.size
        if keys.dtype != np.uint64 or rows.shape != (keys.size, self._width) or not unique:
            raise ConfigError(
                f"the saved compression state has {keys.size} keys and rows of shape {rows.shape}, "
                f"the table has rows of {self._width}"
            )
        if rows.dtype != np.float32 or not np.isfinite(rows).all():
            raise ConfigError("the saved compression state has rows that are no finite float32")
        held = HeldRows(self._width)
        if keys.size:
            held.put(as_keys(keys.tobytes()), np.full(keys.size, -1), rows)
        self._held = held
        self.pushes = int(pushes)
