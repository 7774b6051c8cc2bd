"""A worker at the other end of a data connection, and how much of it may wait here."""

from __future__ import annotations

from typing import Final

import msgspec

from aiops_protocol.frames import Request
from aiops_protocol.limits import PULL_WINDOW_BYTES

__all__ = ["Caller"]

PULLS_WAITING_MAX: Final = 4096
"""Pulls of one connection that wait by rule; a worker's own window stays far below."""

KEYS_WAITING_BYTES_MAX: Final = 4 * PULL_WINDOW_BYTES
"""Key lists of the pulls of one connection that wait by rule; as many again as may be asked for."""


class Caller(msgspec.Struct, gc=False):
    """A worker at the other end of a data connection."""

    rank: int
    incarnation: int
    order: int = 0  # of all connections to this server
    customers: int = 1  # its sessions are the numbers below
    session: int = -1  # of its first request; below 0 before that, as for a probe
    pulls_waiting: int = 0
    keys_waiting_bytes: int = 0

    def may_wait(self, request: Request) -> bool:
        """Whether one more pull may wait by rule."""
        fits = self.keys_waiting_bytes + _size(request) <= KEYS_WAITING_BYTES_MAX
        return fits and self.pulls_waiting < PULLS_WAITING_MAX

    def waits(self, request: Request) -> None:
        """Count a pull that begins to wait."""
        self.pulls_waiting += 1
        self.keys_waiting_bytes += _size(request)

    def waits_no_more(self, request: Request) -> None:
        """Count it no more."""
        self.pulls_waiting -= 1
        self.keys_waiting_bytes -= _size(request)


def _size(request: Request) -> int:
    return len(request.keys) + len(request.payload)
