"""What the shells of scheduler, server and worker are given, checked in the words of the call.

What is decided for a whole job is `aiops.roles.settings`; addresses are `addresses`.
"""

from __future__ import annotations

import os
import socket
from typing import Final, NamedTuple, TypeGuard

from aiops.checks import check_count, check_flag, check_text
from aiops.errors import ConfigError
from aiops.runtime.addresses import check_exposure, parse_address
from aiops.van import TcpVan
from aiops.van.base import Address, Van
from aiops.wording import shown

__all__ = ["Door", "check_door", "check_memory_limit", "check_van"]

MEMORY_SHARE: Final = 0.8
"""Part of the machine's memory that shards may take unless told otherwise."""

MEMORY_BYTES_MAX: Final = 2**63 - 1
"""More cannot be told to the scheduler, and no machine has it."""


class Door(NamedTuple):
    """Where a node listens, on which ready socket if any, and under which address it is known."""

    bind: Address
    sock: socket.socket | None
    advertise: Address | None


def check_door(bind: str, sock: object, advertise: str | None, insecure: object, what: str) -> Door:
    """Return where a node is to listen; `ConfigError` if it cannot be, or must not."""
    address = parse_address(bind, "bind")
    known_as = check_text(advertise, "advertise")
    allowed = check_flag(insecure, "insecure")
    if sock is None:
        check_exposure(address, allowed, what)
    elif not isinstance(sock, socket.socket):
        raise ConfigError(
            f"sock is {shown(sock)}; pass a TCP socket that is bound, for example "
            'socket.create_server(("127.0.0.1", 0)), or leave it out'
        )
    public = parse_address(known_as, "advertise") if known_as else None
    return Door(address, sock, public)


def check_van(van: object) -> Van:
    """Return how connections are made: over TCP if nothing is said."""
    if van is None:
        return TcpVan()
    if not _is_van(van):
        raise ConfigError(f"van is {shown(van)}; pass one of aiops.van, or leave it out")
    return van


def _is_van(value: object) -> TypeGuard[Van]:
    """Whether this has what a van has; nobody needs to derive one from ours."""
    return callable(getattr(value, "listen", None)) and callable(getattr(value, "dial", None))


def check_memory_limit(limit_bytes: int | None) -> int:
    """Return how many bytes the shards of a server may take: a part of the machine's if unsaid."""
    given = 0 if limit_bytes is None else check_count(limit_bytes, "memory_limit_bytes")
    if given > MEMORY_BYTES_MAX:
        raise ConfigError(f"memory_limit_bytes is {shown(given)}; at most {MEMORY_BYTES_MAX}")
    return given or int(MEMORY_SHARE * _machine_memory_bytes())


def _machine_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not Linux, not macOS
        return 4 * 1024**3
