"""What members of a ring send for operations, or generations, that this one has not begun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from aiops.runtime.ring_peer import CONNECTIONS_MAX, RingPeer
from aiops_protocol.frames import RingBegin, RingConfirm, RingFrame, RingPiece
from aiops_protocol.limits import (
    EARLY_BYTES_MAX,
    EARLY_PIECE_BYTES_MIN,
    OPERATIONS_AHEAD_MAX,
    WORKERS_MAX,
)

__all__ = ["EarlyFrames", "RingData", "StrangerFrames"]

RingData: TypeAlias = RingBegin | RingPiece | RingConfirm

FRAMES_BESIDE_MAX: Final = CONNECTIONS_MAX + WORKERS_MAX.bit_length()
"""Frames of a member that come with the pieces of an operation: RING_BEGIN over each connection,
and a RING_CONFIRM in each round. None has more bytes than count for a small piece."""

OPERATION_BYTES_MAX: Final = EARLY_BYTES_MAX + FRAMES_BESIDE_MAX * EARLY_PIECE_BYTES_MIN
STRANGER_BYTES_MAX: Final = OPERATIONS_AHEAD_MAX * OPERATION_BYTES_MAX


def _counted(frame: RingFrame) -> int:
    return max(len(frame.payload), EARLY_PIECE_BYTES_MIN)


class EarlyFrames:
    """Frames by operation, in the order in which they came; bounded for each member."""

    def __init__(self) -> None:
        self._frames: dict[int, list[tuple[RingPeer, RingFrame]]] = {}
        self._bytes: dict[tuple[int, int], int] = {}  # by operation and member

    def keep(self, peer: RingPeer, frame: RingFrame) -> bool:
        """Keep a frame, unless it is too much of this member for one operation."""
        key = frame.operation, peer.index
        size = self._bytes.get(key, 0) + _counted(frame)
        if size > OPERATION_BYTES_MAX:
            return False
        self._bytes[key] = size
        if not peer.early.keeps(frame.payload):  # it lies in the connection's buffer
            frame = msgspec.structs.replace(frame, payload=bytes(frame.payload))
        self._frames.setdefault(frame.operation, []).append((peer, frame))
        return True

    def of(self, operation: int) -> Sequence[tuple[RingPeer, RingFrame]]:
        """Return what was kept for an operation, and keep it."""
        return tuple(self._frames.get(operation, ()))

    def pop(self, operation: int) -> Sequence[tuple[RingPeer, RingFrame]]:
        """Return what was kept for an operation, and keep it no more."""
        frames = self._frames.pop(operation, [])
        for peer, _ in frames:
            self._bytes.pop((operation, peer.index), None)
        return frames

    def clear(self) -> None:
        """Keep nothing any more."""
        self._frames.clear()
        self._bytes.clear()


class StrangerFrames:
    """Frames of a connection whose group is not formed here yet; bounded."""

    def __init__(self) -> None:
        self.frames: list[RingData] = []
        self._bytes = 0

    def keep(self, frame: RingData) -> bool:
        """Keep a frame, unless it is too much."""
        self._bytes += _counted(frame)
        if self._bytes > STRANGER_BYTES_MAX:
            return False
        self.frames.append(msgspec.structs.replace(frame, payload=bytes(frame.payload)))
        return True
