"""Numbers that look random and are the same everywhere: a hash of a seed and a place.

Because a number depends on its place alone, a vector may be cut anywhere, on any machine and in
any language, and the same number belongs to each element. The hash is that of SplitMix64
(Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.payload import Float32Array

__all__ = ["hashes", "mix", "uniforms"]

_GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_MASK: Final = 2**64 - 1

_BLOCK: Final = 16_384
"""Elements hashed at a time: two such arrays of 128 KiB stay in cache."""


def mix(*numbers: int) -> int:
    """Return one 64-bit number that depends on all of these, and on their order."""
    state = 0
    for number in numbers:
        state = (state + _GOLDEN + (number & _MASK)) & _MASK
        state = ((state ^ state >> 30) * _FIRST) & _MASK
        state = ((state ^ state >> 27) * _SECOND) & _MASK
        state ^= state >> 31
    return state


def hashes(seed: int, start: int, count: int) -> NDArray[np.uint64]:
    """Return a 64-bit number for each of the places `start` to `start + count`.

    Of place p it is the SplitMix64 of `seed + (p + 1) * 0x9E3779B97F4A7C15`.
    """
    out = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    shifted = np.empty(min(count, _BLOCK), np.uint64)
    for at in range(0, count, _BLOCK):
        part = out[at : at + _BLOCK]
        work = shifted[: part.size]
        part *= np.uint64(_GOLDEN)
        part += np.uint64(seed & _MASK)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            np.right_shift(part, np.uint64(shift), out=work)
            part ^= work
            part *= np.uint64(factor)
        np.right_shift(part, np.uint64(31), out=work)
        part ^= work
    return out


def uniforms(seed: int, start: int, count: int) -> Float32Array:
    """Return a float32 in [0, 1) for each place: the upper 24 bits of its hash."""
    numbers = hashes(seed, start, count)
    numbers >>= np.uint64(40)
    out = numbers.astype(np.float32)
    out *= np.float32(2**-24)
    return out
