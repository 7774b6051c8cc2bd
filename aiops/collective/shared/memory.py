"""The memory of one member of a shared group, and that of the others as it sees it.

Arrays of `Arena.empty` are reduced where they are. Here is what is needed besides: room for
ordinary arrays (`staged`), for this member's part of a result (`results`), and spares that change
places with arrays whose result is complete. All of it ends with the group. Nothing here knows of
calls.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiops.collective.shared.links import ShareLink
from aiops.collective.shared.pages import Arena, Segment, create_segment

__all__ = ["BOARD", "GroupMemory", "Private"]

Array = NDArray[Any]

BOARD: Final = -1
"""The number of a member's board. Segments of the arena count from 0 up, those of a group down."""

STAGED_BYTES_KEPT: Final = 256 * 1024 * 1024
"""Ordinary arrays are copied into pages that are kept for the next one up to this size: fresh pages
cost more than the copy. `Arena.empty` needs none of it. What is kept of a larger result goes with
the next call that is smaller."""

SPARE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all spares of a group together. There is one for each size of array; arrays beyond this are
written by copying."""


class Private:
    """Memory of a group itself, for what has no place in shared pages yet; it grows on demand."""

    __slots__ = ("array", "number")

    def __init__(self) -> None:
        self.number = 0
        self.array: Array = np.empty(0, np.uint8)


class GroupMemory:
    """What one member of a group has mapped.

    Parameters
    ----------
    arena
        The shared memory of this process.
    links
        Connections to all other members, by index.
    """

    def __init__(self, arena: Arena, links: Mapping[int, ShareLink]) -> None:
        self.staged, self.results = Private(), Private()
        self._arena = arena
        self._links = links
        self._next = BOARD
        self._dropped: deque[int] = deque()
        self._spares: dict[int, Array] = {}  # by the size of the arrays that they go with

    def open(self) -> None:
        """Begin to tell the others of all segments of the arena."""
        self._arena.watch(self._announce, self._dropped.append)

    def close(self) -> None:
        """Stop that; the arena stays."""
        self._arena.unwatch(self._announce, self._dropped.append)

    def release(self) -> None:
        """Unmap everything now: a garbage collection may be far away, and this is large."""
        for link in self._links.values():
            link.segments.clear()
        self.staged, self.results = Private(), Private()
        self._spares.clear()

    # --- one's own ---

    def _announce(self, segment: Segment) -> None:
        for link in self._links.values():
            link.made(segment)

    def create(self, size: int) -> tuple[int, Array]:
        """Make a segment that only this member writes; return its number and its bytes."""
        fd, array = create_segment(size)
        number, self._next = self._next, self._next - 1
        try:
            self._announce(Segment(number, fd, array.size))
        finally:
            os.close(fd)  # the mapping stays, here and there
        return number, array

    def grown(self, memory: Private, size: int) -> Private:
        """Return `staged` or `results` with room for so many bytes, and not for far too many."""
        too_much = memory.array.size - mmap.PAGESIZE >= max(size, STAGED_BYTES_KEPT)
        if memory.array.size < size or too_much:
            if memory.number:
                self._dropped.append(memory.number)
            memory.number, memory.array = self.create(size)
        return memory

    def trim(self) -> None:
        """Let go of what is too large to be kept for the next call."""
        if self.staged.array.size > STAGED_BYTES_KEPT:
            self._dropped.append(self.staged.number)
            self.staged = Private()

    def tell_dropped(self) -> None:
        """Tell the others which segments are used no more."""
        while self._dropped:
            number = self._dropped.popleft()
            for link in self._links.values():
                link.dropped(number)

    # --- spares ---

    def spare(self, array: Array) -> Array | None:
        """Return memory that can change places with that of an array, or `None`.

        Others may write into it. It belongs to the group and not to the arena: after a call was
        given up nobody uses it again, so a member that was stopped meanwhile and goes on writing
        can spoil nothing.
        """
        known = self._spares.get(array.nbytes)
        if known is None:
            kept = sum(spare.nbytes for spare in self._spares.values())
            if kept + array.nbytes <= SPARE_BYTES_MAX:
                known = self._arena.spare(array)
                if known is not None:
                    self._spares[array.nbytes] = known
        elif not self._arena.can_exchange(array, known):
            return None
        return known

    def exchange(self, array: Array, spare: Array) -> None:
        """Let an array have the content of its spare; their pages change places.

        Raises
        ------
        OSError
            Nothing has changed.
        """
        if not self._arena.exchange(array, spare):
            del self._spares[array.nbytes]

    def number_of(self, spare: Array) -> int:
        """Return by which number the others know a spare."""
        location = self._arena.locate(spare)
        assert location is not None
        return location.segment

    # --- the others' ---

    def of(self, member: int, number: int) -> Array:
        """Return a segment of another member.

        Raises
        ------
        OSError
            This process could not take it over: no files or no memory are left.
        """
        link = self._links[member]
        if number not in link.segments:
            link.take()  # it was sent before the call was described
        if number not in link.segments:
            raise OSError("that of another process cannot be taken over: too many open files")
        return link.segments[number]
