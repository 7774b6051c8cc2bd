"""Small things that the shells of all roles share: opening a door, refusing, logging a note."""

from __future__ import annotations

import socket
from typing import Final

from aiops.errors import ConfigError
from aiops.observability import AiopsLogger
from aiops.roles.actions import Note
from aiops.van import TcpVan
from aiops.van.base import Accept, Address, Listener, Van
from aiops.van.link import Link
from aiops_protocol.control import Refused
from aiops_protocol.errors import ErrorCode
from aiops_protocol.frames import Control

__all__ = ["Silent", "log_note", "open_door", "refuse"]


class Silent:
    """Handles a stream that is opened only to see whether somebody answers."""

    _UNHEARD: Final = memoryview(bytearray(256))

    def get_buffer(self) -> memoryview:
        """Return memory that nobody reads."""
        return self._UNHEARD

    def received(self, count: int) -> None:
        """Drop what comes."""

    def drained(self) -> None:
        """Nothing is written."""

    def lost(self, error: Exception | None) -> None:
        """Nothing is held."""


async def open_door(
    van: Van, bind: Address, sock: socket.socket | None, accept: Accept
) -> Listener:
    """Listen at an address, or on a ready socket."""
    if sock is None:
        return await van.listen(bind, accept)
    if not isinstance(van, TcpVan):
        raise ConfigError("sock= needs the TCP van")
    return van.listen_socket(sock, accept)


def refuse(link: Link, code: ErrorCode, text: str) -> None:
    """Tell a node why it is not taken in, and end its connection."""
    link.send(Control(Refused(code=code, text=text[:1024])))
    link.close()


def log_note(log: AiopsLogger, note: Note) -> None:
    """Write a core's fact into the log."""
    getattr(log, note.level)(note.event, **note.fields)
