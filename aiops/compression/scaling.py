"""Whole numbers with a step for each block: what several codecs make of values.

What lives here: division by the scales of blocks, rounding, and the choice of the shorter form.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs import Encoded, Levels, SparseLevels, uniforms
from aiops_protocol.payload import Float32Array

__all__ = ["divide_blocks", "rounded", "shortest_levels"]


def divide_blocks(x: Float32Array, scales: Float32Array, block: int) -> Float32Array:
    """Divide each value by the scale of its block; where that is zero the result is zero."""
    divisors = np.where(scales > 0, scales, np.float32(np.inf))
    out = np.empty_like(x)
    whole = x.size // block
    at = whole * block
    np.divide(
        x[:at].reshape(whole, block), divisors[:whole, None], out=out[:at].reshape(whole, block)
    )
    if at < x.size:
        np.divide(x[at:], divisors[-1], out=out[at:])
    return out


def rounded(
    scaled: Float32Array, most: int, seed: int | None = None, start: int = 0
) -> NDArray[np.int8]:
    """Round to whole numbers from -most to most, in place: to the nearest, or by chance.

    Parameters
    ----------
    seed
        If given, a value between two numbers becomes the upper one with the probability that
        makes the mean right; `None` rounds to the nearest.
    start
        Place of the first value in its vector.
    """
    if seed is None:
        np.rint(scaled, out=scaled)
    else:
        scaled += uniforms(seed, start, scaled.size)
        np.floor(scaled, out=scaled)
    np.clip(scaled, -most, most, out=scaled)
    return scaled.astype(np.int8)


def shortest_levels(
    numbers: NDArray[np.int8], steps: Float32Array, block: int, bits: int
) -> Encoded:
    """Return numbers times steps in the form that is shorter, by how many are not zero.

    Parameters
    ----------
    steps
        One for each block, such that a bfloat16 holds it.
    bits
        Of each number, where all are written.
    """
    sparse = SparseLevels.of(numbers, steps, block)
    if 8 * sparse.payload_bytes < bits * numbers.size:
        return sparse
    return Levels(numbers, steps, block, bits, half_steps=True)
