"""What members of a ring send for operations that this one has not begun."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from aiops.runtime.ring_peer import CONNECTIONS_MAX, RingPeer
from aiops_protocol.frames import RingFrame
from aiops_protocol.limits import EARLY_BYTES_MAX, TEXT_BYTES_MAX

__all__ = ["EarlyFrames"]

BEGIN_BYTES_MAX: Final = CONNECTIONS_MAX * TEXT_BYTES_MAX
"""The text of RING_BEGIN comes with the pieces, over each connection of a member."""


class EarlyFrames:
    """Frames by operation, in the order in which they came; bounded for each member."""

    def __init__(self) -> None:
        self._frames: dict[int, list[tuple[RingPeer, RingFrame]]] = {}
        self._bytes: dict[tuple[int, int], int] = {}  # by operation and member

    def keep(self, peer: RingPeer, frame: RingFrame) -> bool:
        """Keep a frame, unless it is too much of this member for one operation."""
        key = frame.operation, peer.index
        size = self._bytes.get(key, 0) + len(frame.payload)
        if size > EARLY_BYTES_MAX + BEGIN_BYTES_MAX:
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
