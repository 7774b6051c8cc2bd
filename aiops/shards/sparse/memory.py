"""What sparse rows ask of the limit on a server's memory: they come one by one, in training."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Memory", "NoRoom"]


class NoRoom(Exception):
    """The server's limit leaves no memory for new rows; nothing was changed."""


class Memory(Protocol):
    """A limit that is shared by all tables of a server."""

    def take(self, size: int) -> bool:
        """Take so many bytes; `False`, and nothing taken, if they are not left."""
        ...

    def give(self, size: int) -> None:
        """Give bytes back."""
        ...
