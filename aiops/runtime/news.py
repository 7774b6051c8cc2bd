"""The membership on its way to everybody: of all the changes of one turn only the newest goes.

When n workers come or leave together, each of them would otherwise be told of n memberships with n
members. Who is told something else is told the membership before, so that the order holds.
"""

from __future__ import annotations

from aiops_protocol.codec import encode
from aiops_protocol.control import ClusterState
from aiops_protocol.frames import Control
from aiops_protocol.payload import Buffer

__all__ = ["News"]


class News:
    """The newest membership, and who has not been told it.

    Attributes
    ----------
    pressing
        Whether the job has become complete, for which everybody waits; or is so no more.
    """

    __slots__ = ("_encoded", "_state", "_untold", "pressing")

    def __init__(self) -> None:
        self.pressing = False
        self._state: ClusterState | None = None
        self._encoded: tuple[bytes, Buffer] = (b"", b"")
        self._untold: dict[int, None] = {}  # peers; a set has no order to repeat

    def put(self, state: ClusterState, peer: int) -> bool:
        """Keep a membership for a peer; whether nobody was waiting before."""
        if state is not self._state:
            self.pressing |= self._state is not None and state.ready is not self._state.ready
            self._state, self._encoded = state, encode(Control(state))
        first = not self._untold
        self._untold[peer] = None
        return first

    def take(self, peer: int) -> tuple[bytes, Buffer] | None:
        """Return the frame that a peer must be told before anything else, if there is one."""
        return self._encoded if self._untold.pop(peer, self) is None else None

    def take_all(self) -> tuple[list[int], tuple[bytes, Buffer]]:
        """Return who is to be told now, and the frame."""
        peers, self._untold = list(self._untold), {}
        self.pressing = False
        return peers, self._encoded
