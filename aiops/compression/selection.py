"""Which elements of a vector are the largest: exactly, or by a threshold from a sample."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.codecs import hashes
from aiops_protocol.payload import Float32Array

__all__ = ["largest", "largest_by_sample", "largest_of_blocks", "wanted_of"]

SAMPLE_MIN: Final = 4_096
SAMPLE_SHARE: Final = 0.01


def wanted_of(size: int, ratio: float) -> int:
    """Return how many of `size` elements a ratio stands for: at least one."""
    return min(size, max(1, round(size * ratio)))


def largest(magnitude: Float32Array, wanted: int) -> NDArray[np.int64]:
    """Return the places of the `wanted` largest, ascending; zeros are left out.

    Of equal ones the first are taken, so that the choice is the same everywhere.
    """
    size = magnitude.size
    if wanted >= size:
        return np.flatnonzero(magnitude)
    threshold = np.partition(magnitude, size - wanted)[size - wanted]
    if threshold == 0:
        return np.flatnonzero(magnitude)
    places = np.flatnonzero(magnitude >= threshold)
    if places.size > wanted:
        above = magnitude[places] > threshold
        equal = np.flatnonzero(~above)[wanted - int(above.sum()) :]
        places = np.delete(places, equal)
    return places


def largest_by_sample(magnitude: Float32Array, wanted: int, seed: int) -> NDArray[np.int64]:
    """Return the places of about the `wanted` largest, never more; one pass over the vector.

    The threshold is that of a sample of one in a hundred (Lin et al., "Deep gradient
    compression", ICLR 2018); should it let too many pass, the largest of those are taken.
    """
    size = magnitude.size
    sampled = max(SAMPLE_MIN, round(size * SAMPLE_SHARE))
    if sampled >= size:
        return largest(magnitude, wanted)
    places = hashes(seed, 0, sampled) % np.uint64(size)
    sample = magnitude[places.astype(np.int64)]
    rank = min(sampled - 1, max(0, sampled - 1 - round(sampled * wanted / size)))
    threshold = np.partition(sample, rank)[rank]
    found = np.flatnonzero(magnitude > threshold)
    if found.size > wanted:
        found = found[largest(magnitude[found], wanted)]
    return found


def largest_of_blocks(magnitude: Float32Array, ratio: float, block: int) -> NDArray[np.int64]:
    """Return the places of the largest of each block, ascending; zeros are left out."""
    whole = magnitude.size // block
    kept = wanted_of(block, ratio)
    parts = []
    if whole:
        blocks = magnitude[: whole * block].reshape(whole, block)
        thresholds = np.partition(blocks, block - kept, axis=1)[:, block - kept]
        chosen = blocks >= thresholds[:, None]
        chosen &= blocks > 0
        for row in np.flatnonzero(chosen.sum(axis=1) > kept):  # equal ones at the threshold
            chosen[row] = False
            chosen[row, largest(blocks[row], kept)] = True
        parts.append(np.flatnonzero(chosen))
    tail = magnitude[whole * block :]
    if tail.size:
        parts.append(largest(tail, wanted_of(tail.size, ratio)) + whole * block)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
