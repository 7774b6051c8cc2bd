"""Memory that other processes of this host can map, and the arrays in it.

Each segment is a file without a name (`memfd_create`): it exists as long as somebody has it open or
mapped, so no death of any process, at any moment, leaves anything behind. Who else has a segment is
told by `links.py`, how it is mapped by `mapping.py`.
"""

from __future__ import annotations

import mmap
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from aiops.collective.member import check_shape
from aiops.collective.shared import mapping
from aiops.collective.shared.mapping import (
    address_of,
    can_exchange,
    create_file,
    map_file,
    map_movable,
)

__all__ = ["Arena", "Location", "Segment", "create_segment"]

Array = NDArray[Any]

SLAB_BYTES: Final = 16 * 1024 * 1024
"""Small arrays share a segment of this size: a process has about a thousand files, and a model may
have as many arrays."""

_ALIGNMENT: Final = 64  # a cache line, and what the widest vector instructions like


class Segment(NamedTuple):
    """One piece of shared memory of this process: its number, its file, and how long it is.

    Others may write only into those that are `open` to them.
    """

    number: int
    fd: int
    size: int
    open: bool = False


class Location(NamedTuple):
    """Where an array lies: in which segment, from which byte on."""

    segment: int
    offset: int


def create_segment(size: int, *, movable: bool = False) -> tuple[int, Array]:
    """Make a file without a name of at least so many bytes, and map it; the file is the caller's.

    Parameters
    ----------
    size
        Bytes; rounded up to whole pages.
    movable
        Map it so that it can change places with another one (`mapping.exchange`).

    Raises
    ------
    OSError
        No memory or no files are left.
    """
    size = max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    fd = create_file(size)
    try:
        return fd, map_movable(fd, size) if movable else map_file(fd, size, writable=True)
    except OSError:
        os.close(fd)
        raise


class _Region:
    """Where a segment lies in this process, which one it is, and how much of it is used.

    Which one it is can change.
    """

    __slots__ = ("address", "segment", "size", "used")

    def __init__(self, address: int, segment: Segment, used: int) -> None:
        self.address, self.segment, self.size = address, segment, segment.size
        self.used = used


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
        # All regions in order of address. Replaced as a whole, never changed: a garbage collection
        # may drop a segment at any moment, in any thread.
        self._index: tuple[_Region, ...] = ()
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
        MemoryError
            There is not so much memory to share.
        """
        kind, sizes = check_shape(shape, dtype)
        size = prod(sizes) * kind.itemsize
        try:
            if size <= SLAB_BYTES // 16:
                raw = self._carve(size)
            else:
                raw = self._make(size, movable=can_exchange())[:size]
        except (OSError, OverflowError) as error:
            raise MemoryError(f"empty: {size} bytes cannot be shared: {error}") from error
        return raw.view(kind).reshape(sizes)

    def _carve(self, size: int) -> Array:
        slab, used = self._slab or (self._make(SLAB_BYTES), 0)
        if used + size > slab.size:
            slab, used = self._make(SLAB_BYTES), 0
        self._slab = (slab, used + -(-size // _ALIGNMENT) * _ALIGNMENT)
        return slab[used : used + size]

    def _make(self, size: int, *, movable: bool = False) -> Array:
        """Make a segment of at least so many bytes; it lives as long as an array looks at it."""
        fd, array = create_segment(size, movable=movable)
        segment = Segment(self._next, fd, array.size, movable)
        self._next += 1
        region = _Region(address_of(array), segment, size)
        self._index = tuple(sorted((*self._index, region), key=_address))
        self.segments[segment.number] = segment
        # The array keeps no arena: that keeps an array itself, the newest one for small ones.
        weakref.finalize(array, _drop, weakref.ref(self), region).atexit = False
        for made in self._made:
            made(segment)
        return array

    def _forget(self, region: _Region) -> None:
        self._index = tuple(other for other in self._index if other is not region)
        del self.segments[region.segment.number]
        for dropped in self._dropped:
            dropped(region.segment.number)

    def _region(self, array: Array) -> _Region | None:
        start = address_of(array)
        index = self._index
        at = bisect_right(index, start, key=_address) - 1
        region = index[at] if at >= 0 else None
        if region is None or start + array.nbytes > region.address + region.size:
            return None
        return region

    def locate(self, array: Array) -> Location | None:
        """Say where a contiguous array lies, or `None` if it is in no segment of this arena."""
        region = self._region(array)
        if region is None:
            return None
        return Location(region.segment.number, address_of(array) - region.address)

    # --- pages that change places ---

    def spare(self, array: Array) -> Array | None:
        """Make memory that can change places with that of an array, or `None` if none can.

        None can unless the array fills a segment of its own. The memory lives as long as what this
        returns; others may write into it.

        Raises
        ------
        OSError
            No memory or no files are left.
        """
        region = self._filled(array)
        return None if region is None else self._make(region.size, movable=True)

    def can_exchange(self, array: Array, spare: Array) -> bool:
        """Say whether an array can change places with a spare that was made for another."""
        region = self._filled(array)
        return region is not None and region.size == spare.nbytes

    def _filled(self, array: Array) -> _Region | None:
        """Return the region that an array has for itself, if it can be moved."""
        region = self._region(array)
        if region is None or not region.segment.open:
            return None
        # Pages change places as a whole, with all that is in them.
        whole = (address_of(array), array.nbytes) == (region.address, region.used)
        return region if whole else None

    def exchange(self, array: Array, spare: Array) -> bool:
        """Let an array show the pages of a spare of its size, and the spare those of the array.

        Returns
        -------
        both
            Whether the spare can be used again.

        Raises
        ------
        OSError
            Nothing has changed.
        """
        one, two = self._region(array), self._region(spare)
        assert one is not None
        assert two is not None
        both = mapping.exchange(one.address, two.address, one.size)
        one.segment, two.segment = two.segment, one.segment
        return both


def _drop(arena: weakref.ref[Arena], region: _Region) -> None:
    os.close(region.segment.fd)
    if (used := arena()) is not None:
        used._forget(region)


def _address(region: _Region) -> int:
    return region.address
