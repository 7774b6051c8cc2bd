"""Memory that other processes of this host can map, and the arrays in it.

Each segment is a file without a name (`memfd_create`): it exists as long as somebody has it open or
mapped, so no death of any process, at any moment, leaves anything behind. Who else has a segment is
told by `links.py`.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aiops.errors import UsageError

__all__ = ["Arena", "Location", "Segment", "create_segment", "map_segment"]

Array = NDArray[Any]

SLAB_BYTES: Final = 16 * 1024 * 1024
"""Small arrays share a segment of this size: a process has about a thousand files, and a model may
have as many arrays."""

_ALIGNMENT: Final = 64  # a cache line, and what the widest vector instructions like
_HUGE_PAGE_BYTES: Final = 2 * 1024 * 1024


class Segment(NamedTuple):
    """One piece of shared memory of this process: its number, its file, and how long it is."""

    number: int
    fd: int
    size: int


class Location(NamedTuple):
    """Where an array lies: in which segment, from which byte on."""

    segment: int
    offset: int


def map_segment(fd: int, size: int, *, writable: bool) -> Array:
    """Map a segment and return its bytes; it is unmapped with the last array that looks at it."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, access)
    if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: slower, nothing else
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def create_segment(size: int) -> tuple[int, Array]:
    """Make a file without a name of at least so many bytes, and map it; the file is the caller's.

    Raises
    ------
    OSError
        No memory or no files are left.
    """
    size = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    fd = os.memfd_create("aiops-ring", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        return fd, map_segment(fd, size, writable=True)
    except OSError:
        os.close(fd)
        raise


class Arena:
    """The shared memory of one process: segments, and arrays in them.

    It outlives rings: an array that was made for one can be used after it was formed anew.

    Attributes
    ----------
    segments
        Those in use, by number.
    """

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self._made: list[Callable[[Segment], None]] = []
        self._dropped: list[Callable[[int], None]] = []
        self._next = 0
        # (address, size, number) of all segments in order of address. Replaced as a whole, never
        # changed: a garbage collection may drop a segment at any moment, in any thread.
        self._index: tuple[tuple[int, int, int], ...] = ()
        self._slab: tuple[Array, int] | None = None

    def watch(self, made: Callable[[Segment], None], dropped: Callable[[int], None]) -> None:
        """Call these for each segment that is made or dropped; `made` for all there are now.

        `dropped` is called by the garbage collector, in any thread, and may only take note.
        """
        for segment in self.segments.values():
            made(segment)
        self._made.append(made)
        self._dropped.append(dropped)

    def unwatch(self, made: Callable[[Segment], None], dropped: Callable[[int], None]) -> None:
        """Stop calling them."""
        self._made.remove(made)
        self._dropped.remove(dropped)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        """Make an array in shared pages, all zero at first.

        Its memory is given back when the last array that looks at it is gone.

        Raises
        ------
        UsageError
            The type holds Python objects, or a length is negative.
        """
        kind = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        if kind.hasobject or any(size < 0 for size in sizes):
            raise UsageError(f"empty: shape is {shape}, dtype {kind}; numbers and sizes from 0 up")
        size = prod(sizes) * kind.itemsize
        raw = self._carve(size) if size <= SLAB_BYTES // 16 else self._make(size)[:size]
        return raw.view(kind).reshape(sizes)

    def _carve(self, size: int) -> Array:
        slab, used = self._slab or (self._make(SLAB_BYTES), 0)
        if used + size > slab.size:
            slab, used = self._make(SLAB_BYTES), 0
        self._slab = (slab, used + -(-size // _ALIGNMENT) * _ALIGNMENT)
        return slab[used : used + size]

    def _make(self, size: int) -> Array:
        """Make a segment of at least so many bytes; it lives as long as an array looks at it."""
        fd, array = create_segment(size)
        segment = Segment(self._next, fd, array.size)
        self._next += 1
        start = array.__array_interface__["data"][0]
        self._index = tuple(sorted((*self._index, (start, array.size, segment.number))))
        self.segments[segment.number] = segment
        weakref.finalize(array, self._drop, segment.number).atexit = False
        for made in self._made:
            made(segment)
        return array

    def _drop(self, number: int) -> None:
        segment = self.segments.pop(number)
        self._index = tuple(entry for entry in self._index if entry[2] != number)
        os.close(segment.fd)
        for dropped in self._dropped:
            dropped(number)

    def locate(self, array: Array) -> Location | None:
        """Say where a contiguous array lies, or `None` if it is in no segment of this arena."""
        start = array.__array_interface__["data"][0]
        index = self._index
        at = bisect_right(index, (start, sys.maxsize, 0)) - 1
        if at < 0:
            return None
        begin, size, number = index[at]
        return Location(number, start - begin) if start + array.nbytes <= begin + size else None
