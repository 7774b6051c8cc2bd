"""The membership on its way to everybody: of all the changes of one turn only the newest goes.

When n workers come or leave together, each of them would otherwise be told of n memberships with n
members; and when they come one after the other, of n times all members: who has been told a
membership before is told what differs. Who is told something else is told the membership before,
so that the order holds.
"""

from __future__ import annotations

from aiops.roles.member_changes import difference
from aiops_protocol.codec import encode
from aiops_protocol.control import ClusterState
from aiops_protocol.frames import Control
from aiops_protocol.payload import Buffer

__all__ = ["News"]


class News:
    """The newest membership, who has not been told it, and what everybody was told before.

    Attributes
    ----------
    pressing
        Whether the job has become complete, for which everybody waits; or is so no more.
    """

    __slots__ = ("_frames", "_state", "_told", "_untold", "pressing")

    def __init__(self) -> None:
        self.pressing = False
        self._state: ClusterState | None = None
        self._untold: dict[int, None] = {}  # peers; a set has no order to repeat
        self._told: dict[int, ClusterState] = {}
        # Of the newest membership, by `id` of the one before: `_told` keeps those alive.
        self._frames: dict[int, tuple[bytes, Buffer]] = {}

    def put(self, state: ClusterState, peer: int) -> bool:
        """Keep a membership for a peer; whether nobody was waiting before."""
        if state is not self._state:
            self.pressing |= self._state is not None and state.ready is not self._state.ready
            self._state = state
            self._frames.clear()
        first = not self._untold
        self._untold[peer] = None
        return first

    def take(self, peer: int) -> tuple[bytes, Buffer] | None:
        """Return the frame that a peer must be told before anything else, if there is one."""
        return self._tell(peer) if self._untold.pop(peer, self) is None else None

    def take_all(self) -> list[tuple[int, tuple[bytes, Buffer]]]:
        """Return who is to be told now, and what."""
        peers, self._untold = self._untold, {}
        self.pressing = False
        return [(peer, self._tell(peer)) for peer in peers]

    def forget(self, peer: int) -> None:
        """Take note that a peer is told nothing more."""
        self._untold.pop(peer, None)
        self._told.pop(peer, None)

    def _tell(self, peer: int) -> tuple[bytes, Buffer]:
        state = self._state
        assert state is not None
        before = self._told.get(peer)
        self._told[peer] = state
        frame = self._frames.get(id(before))
        if frame is None:
            news = state if before is None else difference(before, state)
            frame = self._frames[id(before)] = encode(Control(news))
        return frame
