"""Addresses as users write them, and what may be bound without protection."""

from __future__ import annotations

import ipaddress
import os

from aiops.errors import ConfigError
from aiops.van.base import Address
from aiops.wording import shown

__all__ = ["check_exposure", "is_wildcard", "parse_address", "scheduler_address"]


def parse_address(text: str, what: str) -> Address:
    """Read `host:port` or `[ipv6]:port`; `what` names the setting in the error."""
    given: object = text
    host, colon, port = text.rpartition(":") if isinstance(given, str) else ("", "", "")
    url = "://" in host or any(sign.isspace() or sign == "/" for sign in host)
    digits = port.isascii() and port.isdecimal()
    if not colon or url or not digits or int(port) > 65535:
        raise ConfigError(f"{what} is {shown(text)}; write host:port, for example 127.0.0.1:9070")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{what} is {shown(text)}; write an IPv6 address in brackets: [::1]:9070")
    if not host:
        raise ConfigError(f"{what} is {shown(text)}; name a host, or 0.0.0.0 for all interfaces")
    return Address(host, int(port))


def is_wildcard(host: str) -> bool:
    """Whether the host stands for all interfaces."""
    return host in ("0.0.0.0", "::")


def check_exposure(address: Address, insecure: bool, what: str) -> None:
    """Refuse to open a door beyond this machine unless the user has said so.

    Connections are not authenticated in this version, so whoever reaches the port is a peer.
    """
    if insecure or address.host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"{what} {address} can be reached from other machines, and connections are not "
            "authenticated: bind to 127.0.0.1, or allow it with --insecure (insecure=True)"
        )


def scheduler_address(given: str | None) -> Address:
    """Return the scheduler's address as given, or from the environment."""
    wanted: object = given  # callers without a type checker pass anything
    left_out = wanted is None or (isinstance(wanted, str) and not wanted)
    text = os.environ.get("AIOPS_SCHEDULER") if left_out else given
    if text is None or (left_out and not text):
        raise ConfigError(
            "no scheduler: pass its address (host:port), set AIOPS_SCHEDULER, or run the program "
            "under `aiops launch`"
        )
    return parse_address(text, "the scheduler's address")
