"""Key lists and ranges as they travel: what is a key, mixed keys, signatures of lists.

A key is any uint64 below `KEY_END`. On the wire a table of layout `hashed` names its rows by
`mix(key)`: a bijection that spreads neighbours over the whole range, so that equal ranges hold
about equally many rows. `KEY_END` itself is mapped to itself, so what is no key stays none.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.errors import MalformedFrame
from aiops_protocol.limits import KEYS_PER_FRAME_MAX, SIGNATURE_BYTES
from aiops_protocol.payload import Buffer

__all__ = [
    "KEY_END",
    "Keys",
    "are_sorted",
    "as_keys",
    "mix",
    "mix_in_place",
    "signature",
    "take_keys",
    "unmix",
]

KEY_END: Final = 2**64 - 1
"""The first number that is no key: the end of the range of all keys."""

Keys: TypeAlias = NDArray[np.uint64]
"""Keys of rows, shape (n,)."""

_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_SHIFTS: Final = tuple(map(np.uint64, (30, 27, 31)))


def _inverse(multiplier: int) -> np.uint64:
    return np.uint64(pow(multiplier, -1, 2**64))


_FIRST_BACK, _SECOND_BACK = _inverse(_FIRST), _inverse(_SECOND)


def mix(keys: Keys) -> Keys:
    """Return the keys in the order of hashed tables, as a new array; the inverse of `unmix`.

    With `x = ~key`: `x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27;
    x *= 0x94D049BB133111EB; x ^= x >> 31`, and `~x` is the result.

    References
    ----------
    .. [1] G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators",
       OOPSLA 2014 (with the multipliers of D. Stafford's variant 13).
    """
    mixed = np.invert(keys)
    scratch = np.empty_like(mixed)
    mix_in_place(mixed, scratch)
    return np.invert(mixed, out=mixed)


def mix_in_place(words: Keys, scratch: Keys) -> None:
    """Mix 64-bit words so that every bit of the result depends on every bit of the input."""
    for shift, multiplier in zip(_SHIFTS, (_FIRST, _SECOND, None), strict=True):
        np.right_shift(words, shift, out=scratch)
        np.bitwise_xor(words, scratch, out=words)
        if multiplier is not None:
            np.multiply(words, np.uint64(multiplier), out=words)


def unmix(mixed: Keys) -> Keys:
    """Return the keys that `mix` made these from, as a new array."""
    words = np.invert(mixed)
    _undo_shift(words, 31)
    np.multiply(words, _SECOND_BACK, out=words)
    _undo_shift(words, 27)
    np.multiply(words, _FIRST_BACK, out=words)
    _undo_shift(words, 30)
    return np.invert(words, out=words)


def _undo_shift(words: Keys, shift: int) -> None:
    """Undo `x ^= x >> shift`; two rounds suffice for shifts above 21."""
    once = words >> np.uint64(shift)
    np.bitwise_xor(words, once, out=once)
    np.right_shift(once, np.uint64(shift), out=once)
    np.bitwise_xor(words, once, out=words)


def take_keys(payload: Buffer, count: int) -> tuple[Buffer, Buffer]:
    """Split a payload into the bytes of its key list and the rest.

    Raises
    ------
    MalformedFrame
        The list is not sorted, repeats a key or holds `KEY_END`.
    """
    view = memoryview(payload)
    if not are_sorted(as_keys(view[: 8 * count])):
        raise MalformedFrame("a key list is unsorted, repeats a key or holds 2**64-1")
    return view[: 8 * count], view[8 * count :]


def take_ranges(meta: Buffer, offset: int, count: int) -> tuple[Buffer, int, int]:
    """Return the raw ranges at a place in metadata, the first begin and the last end.

    Raises
    ------
    MalformedFrame
        They are cut short, not sorted, overlap, or name too many keys.
    """
    raw = memoryview(meta)[offset : offset + 16 * count]
    if len(raw) != 16 * count:
        raise MalformedFrame("the metadata ends within the key ranges")
    marks = np.frombuffer(raw, "<u8")
    if not (marks[0::2] < marks[1::2]).all() or not (marks[1:-1:2] <= marks[2::2]).all():
        raise MalformedFrame("key ranges are empty, reversed, overlapping or out of order")
    keys = keys_in(marks)
    if keys > KEYS_PER_FRAME_MAX:
        raise MalformedFrame(f"{keys} keys in ranges, at most {KEYS_PER_FRAME_MAX} in a frame")
    return bytes(raw), int(marks[0]), int(marks[-1])


def keys_in(marks: NDArray[np.uint64]) -> int:
    """Return how many keys lie in ranges, given as begin, end, begin, end..."""
    return int((marks[1::2] - marks[0::2]).sum())


def as_keys(buffer: Buffer) -> Keys:
    """View bytes as little-endian keys."""
    return np.frombuffer(buffer, "<u8")


def are_sorted(keys: Keys) -> bool:
    """Whether keys rise, none is there twice, and none is `KEY_END`."""
    return not keys.size or (int(keys[-1]) != KEY_END and bool((keys[:-1] < keys[1:]).all()))


def signature(keys: Buffer) -> bytes:
    """Return the 16 bytes that stand for a key list: BLAKE2b over all of its bytes.

    Of 2**40 different lists two have the same signature with a chance of about 2**-49.
    """
    return blake2b(keys, digest_size=SIGNATURE_BYTES).digest()
