"""Working arrays of calls over TCP, in which results come about until they take effect.

They are used again: the pages of a new one cost more than the sum over it. An array in shared pages
with a segment of its own gets one whose pages can change places with it, so that its result takes
effect without a copy (`aiops.collective.shared.pages`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import numpy as np

from aiops.collective.call import Array
from aiops.collective.shared import Arena

__all__ = ["Scratch"]

SCRATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Working memory that is kept between calls."""

_Memory = np.ndarray[Any, np.dtype[np.uint8]]


class Scratch:
    """Memory that calls borrow.

    Parameters
    ----------
    arena
        The shared memory of this process.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._free: list[_Memory] = []
        self._spares: list[_Memory] = []
        self._aliased: _Memory | None = None  # shows an array's own pages, so is not used again

    def take(self, flat: Array) -> Array:
        """Return an array like a flat one, with arbitrary content."""
        size = flat.nbytes
        memory = self._spare(flat)
        if memory is None:
            fitting = [memory for memory in self._free if size <= memory.nbytes <= 2 * size + 4096]
            if fitting:
                memory = min(fitting, key=lambda memory: memory.nbytes)
                self._free = [other for other in self._free if other is not memory]
            else:
                memory = np.empty(size, np.uint8)
        return memory[:size].view(flat.dtype)

    def _spare(self, flat: Array) -> _Memory | None:
        for number, memory in enumerate(self._spares):
            if self._arena.can_exchange(flat, memory):
                return self._spares.pop(number)
        with suppress(OSError):  # no files are left: copying works without
            return self._arena.spare(flat)
        return None

    def put(self, work: Array, flat: Array) -> None:
        """Let an array have what a working array made for it has; that one has anything then."""
        memory = work.base
        if isinstance(memory, np.ndarray) and self._arena.can_exchange(flat, memory):
            with suppress(OSError):  # the system allows no more mappings
                if not self._arena.exchange(flat, memory):
                    self._aliased = memory
                return
        flat[...] = work

    def give(self, work: Array) -> None:
        """Take a working array back that nobody uses any more."""
        memory = work.base if work.base is not None else work.view(np.uint8)
        kept = sum(other.nbytes for other in (*self._free, *self._spares))
        if memory is self._aliased:
            self._aliased = None
        elif kept + memory.nbytes <= SCRATCH_BYTES_MAX:
            (self._free if self._arena.locate(memory) is None else self._spares).append(memory)
