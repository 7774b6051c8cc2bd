"""Which connections of each node are open, and what it means when they are not.

A node has two to its scheduler: one for control messages, one for heartbeats. When something on
the way resets one of them, the node opens it again; when both have ended and none comes back, the
process is gone. Nothing here is about silence on an open connection: that is `detector.py`.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["Connections"]

SEVERED_PERIODS: Final = 2
"""After so many heartbeat periods without any connection a node is lost."""

CONTROL_ABSENT_MAX_S: Final = 150.0
"""So long may a node whose heartbeats come be without its control connection: a worker that
computes for two minutes in its event loop cannot open it before, and has half a minute for it."""


class _Open(msgspec.Struct):
    hearts: int = 0  # a new heartbeat connection may come before the old one's end
    heartless_since: float = 0.0
    control_lost_at: float | None = None
    reason: str = ""


class Connections:
    """The connections of all nodes of a job, by peer.

    Parameters
    ----------
    heartbeat_s
        The period H.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._severed_s = SEVERED_PERIODS * heartbeat_s
        self._nodes: dict[int, _Open] = {}

    def add(self, peer: int, now: float) -> None:
        """Begin with a node that has just joined, over its control connection."""
        self._nodes[peer] = _Open(heartless_since=now)

    def forget(self, peer: int) -> None:
        """Stop with a node that is gone."""
        self._nodes.pop(peer, None)

    def heart_opened(self, peer: int) -> None:
        """Note a heartbeat connection."""
        node = self._nodes.get(peer)
        if node is not None:
            node.hearts += 1

    def heart_ended(self, peer: int, now: float) -> None:
        """Note the end of one."""
        node = self._nodes.get(peer)
        if node is not None:
            node.hearts -= 1
            if not node.hearts:
                node.heartless_since = now

    def control_lost(self, peer: int, reason: str, now: float) -> None:
        """Note the end of a control connection that may be opened again."""
        node = self._nodes.get(peer)
        if node is not None:
            node.control_lost_at, node.reason = now, reason

    def control_back(self, peer: int) -> float | None:
        """Note that it was opened again; returns when it had been lost."""
        node = self._nodes.get(peer)
        if node is None:
            return None
        lost_at, node.control_lost_at = node.control_lost_at, None
        return lost_at

    def severed(self, peer: int) -> bool:
        """Whether the node has no connection at all at the moment."""
        node = self._nodes.get(peer)
        return node is not None and node.control_lost_at is not None and not node.hearts

    def reason(self, peer: int) -> str:
        """Return how the node's last control connection ended."""
        node = self._nodes.get(peer)
        return "" if node is None else node.reason

    def excuse(self, stalled_s: float) -> None:
        """Do not count a time in which this process itself was not running."""
        for node in self._nodes.values():
            node.heartless_since += stalled_s
            if node.control_lost_at is not None:
                node.control_lost_at += stalled_s

    def judge(self, now: float) -> list[tuple[int, str]]:
        """Return the peers that are lost by what ended, each with the reason."""
        lost = []
        for peer, node in self._nodes.items():
            if node.control_lost_at is None:
                continue
            without_s = now - node.control_lost_at
            if not node.hearts and (
                now - max(node.control_lost_at, node.heartless_since) >= self._severed_s
            ):
                lost.append((peer, node.reason))
            elif without_s >= CONTROL_ABSENT_MAX_S:
                text = f"{node.reason}; it was not opened again within {without_s:.0f} s"
                lost.append((peer, text))
        return lost
