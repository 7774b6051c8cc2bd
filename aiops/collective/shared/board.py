"""The page on which one member of a shared group tells the others how far it is.

Each member writes its own board and reads those of the others. A counter is written after what it
speaks about. Processors other than x86 may show writes of one process to another in a different
order; taking and releasing a lock is a fence on every one of them, and costs 50 ns.
"""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

from numpy.typing import NDArray

__all__ = ["BOARD_BYTES", "NONE", "SMALL_BYTES", "Board", "Facts", "fence"]

SMALL_BYTES: Final = 64 * 1024
"""An array up to this size is put on the board itself, and each member reduces all of it: one
meeting in place of two. Measured with two processes at this size: 11 to 37 us, the other way 39 to
47."""

TEXT_BYTES: Final = 2048
"""How long the description of a call can be; a longer one is cut, with a digest of the whole."""

_HEAD_BYTES: Final = 4096
_SLOT_BYTES: Final = 64 + TEXT_BYTES + SMALL_BYTES
BOARD_BYTES: Final = _HEAD_BYTES + 2 * _SLOT_BYTES

_lock = threading.Lock()


def fence() -> None:
    """Let everything written before be seen before everything written (or read) after."""
    _lock.acquire()
    _lock.release()


NONE: Final = 1 << 62
"""No segment has this number."""


class Facts(NamedTuple):
    """Where the memory of one member for one call is: numbers of segments, and an offset in bytes.

    Its array lies in `segment` from `offset` on. `result` is where it puts its chunk of the result
    for those who copy it, and `target` where it wants the others to put theirs; `NONE` if it copies
    their results itself.
    """

    segment: int = 0
    offset: int = 0
    result: int = 0
    target: int = NONE


class Board:
    """One member's board.

    Parameters
    ----------
    memory
        The bytes of its segment, ``BOARD_BYTES`` of them.

    Attributes
    ----------
    words : memoryview of int64
        At ``ARRIVED`` the number of the last call that the member has come to, at ``VOTED`` the
        last one of which it has its part of the result, at ``ASLEEP`` whether it must be woken,
        at ``ENDED`` the first call that it does without, once the group has ended for it; 0 before.
    """

    # A cache line each: who looks at one is not disturbed by writes to the other.
    ARRIVED: Final = 0
    VOTED: Final = 8
    ASLEEP: Final = 16
    ENDED: Final = 24

    def __init__(self, memory: NDArray[Any]) -> None:
        assert memory.size >= BOARD_BYTES
        self.words = memory[:_HEAD_BYTES].data.cast("q")
        slots = [memory[_HEAD_BYTES + i * _SLOT_BYTES :][:_SLOT_BYTES] for i in range(2)]
        self._facts = [slot[:64].data.cast("q") for slot in slots]
        self._texts = [slot[64 : 64 + TEXT_BYTES].data for slot in slots]
        self._smalls = [slot[64 + TEXT_BYTES :] for slot in slots]

    # Calls take turns with two slots: who comes to call k+2 knows that all have come to call k+1,
    # hence that all are done with call k.

    def describe(self, number: int, text: bytes, flags: int, facts: Facts) -> None:
        """Say what call `number` is, and where its memory is."""
        slot = number % 2
        self._texts[slot][: len(text)] = text
        numbers = self._facts[slot]
        numbers[0], numbers[1] = len(text), flags
        numbers[2], numbers[3], numbers[4], numbers[5] = facts

    def text(self, number: int) -> bytes:
        """Return the description of a call."""
        slot = number % 2
        return bytes(self._texts[slot][: self._facts[slot][0]])

    def facts(self, number: int) -> Facts:
        """Return where the memory of a call is."""
        return Facts(*self._facts[number % 2][2:6])

    def flags(self, number: int) -> int:
        """Return what the member wants all others to know."""
        return self._facts[number % 2][1]

    def small(self, number: int, size: int) -> NDArray[Any]:
        """Return the place of a small array, in bytes."""
        return self._smalls[number % 2][:size]
