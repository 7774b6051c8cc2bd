"""Bytes that a stream accepted and has not handed on yet, in order, owned or borrowed.

Here lives only the bookkeeping, which every kind of stream shares; who takes the bytes, and when,
is the stream's business. Small buffers are gathered into one piece, so that many small frames
leave in one call; large ones are kept as views, so that nothing is copied without need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from aiops_protocol.payload import Buffer

__all__ = ["Outgoing"]


class Outgoing:
    """A queue of bytes.

    Attributes
    ----------
    size
        Bytes in the queue.
    """

    __slots__ = ("_borrowed", "_pieces", "_tail", "size")

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._borrowed: deque[bool] = deque()  # as long as _pieces
        self._tail = bytearray()  # gathered small buffers; comes after all the pieces
        self.size = 0

    def gather(self, buffer: Buffer) -> None:
        """Copy a small buffer to the end."""
        self._tail += buffer
        self.size += len(buffer) if type(buffer) is bytes else memoryview(buffer).nbytes

    def append(self, buffer: Buffer, *, borrowed: bool) -> None:
        """Put a buffer at the end, as it is if `borrowed`, else its copy."""
        view = memoryview(buffer) if borrowed else memoryview(bytes(buffer))
        if view.nbytes:
            self._seal()
            self._put(view.cast("B"), borrowed=borrowed)
            self.size += view.nbytes

    def chunks(self, most: int) -> list[Buffer]:
        """Return the first `most` pieces at the most, in order; nothing is taken away.

        The list holds views of the memory: drop it before the queue is used again.
        """
        if self._tail:
            if not self._pieces:
                return [self._tail]
            if len(self._pieces) < most:
                return [*self._pieces, self._tail]
        return list(islice(self._pieces, most))

    def advance(self, count: int) -> None:
        """Forget the first `count` bytes: they were handed on."""
        self.size -= count
        if not self.size:
            self._clear()
            return
        while count:
            if not self._pieces:
                self._seal()
            first = self._pieces[0]
            if count < first.nbytes:
                self._pieces[0] = first[count:]
                return
            count -= first.nbytes
            self._pieces.popleft()
            self._borrowed.popleft()

    def own(self) -> None:
        """Replace what is still borrowed by copies, so that the lender may change its memory."""
        if True in self._borrowed:
            self._pieces = deque(self._owned())
            self._borrowed = deque([False] * len(self._pieces))

    def clear(self) -> None:
        """Drop everything; borrowed memory is let go."""
        self._clear()
        self.size = 0

    def _clear(self) -> None:
        self._pieces.clear()
        self._borrowed.clear()
        if self._tail:
            self._tail = bytearray()

    def _owned(self) -> Iterator[memoryview]:
        for view, borrowed in zip(self._pieces, self._borrowed, strict=True):
            yield memoryview(bytes(view)) if borrowed else view

    def _seal(self) -> None:
        """Make a piece of what was gathered, before something else follows it."""
        if self._tail:
            self._put(memoryview(self._tail), borrowed=False)
            self._tail = bytearray()

    def _put(self, view: memoryview, *, borrowed: bool) -> None:
        self._pieces.append(view)
        self._borrowed.append(borrowed)
