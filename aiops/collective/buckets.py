"""Several arrays as one: small ones are fused, so that a call's fixed cost is paid once for many.

Values only; `member.py` performs the calls.

References
----------
S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
section 3.2.3 (gradient bucketing).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aiops.collective.call import Array

__all__ = ["Bucket", "fuse"]


class Bucket:
    """Arrays of one type that are moved in one call.

    Parameters
    ----------
    arrays
        In order.
    """

    __slots__ = ("arrays", "count")

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = tuple(arrays)
        self.count = sum(array.size for array in arrays)

    @property
    def in_place(self) -> bool:
        """Whether the bucket is one array that needs no copy."""
        return len(self.arrays) == 1 and self.arrays[0].flags.c_contiguous

    def fused(self) -> Array:
        """Return a flat copy of all elements."""
        flat = np.empty(self.count, self.arrays[0].dtype if self.arrays else np.float32)
        for array, part in self._parts(flat):
            part[...] = array
        return flat

    def spread(self, flat: Array) -> None:
        """Write a flat result back into the arrays."""
        for array, part in self._parts(flat):
            array[...] = part

    def _parts(self, flat: Array) -> Iterator[tuple[Array, Array]]:
        begin = 0
        for array in self.arrays:
            yield array, flat[begin : begin + array.size].reshape(array.shape)
            begin += array.size


def fuse(arrays: Sequence[Array], bucket_bytes: int) -> list[Bucket]:
    """Put arrays into buckets of at most `bucket_bytes`, in order.

    A larger array has a bucket of its own; a change of type begins a new one.
    """
    buckets: list[list[Array]] = []
    size = 0
    for array in arrays:
        fits = buckets and buckets[-1][0].dtype == array.dtype
        if not fits or size + array.nbytes > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(array)
        size += array.nbytes
    return [Bucket(bucket) for bucket in buckets]
