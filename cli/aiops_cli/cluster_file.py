"""The cluster file: fixed addresses of a cluster, in TOML.

    workers = 4

    [scheduler]
    address = "10.0.0.1:9070"

    [[servers]]
    address = "10.0.0.2:9071"
    bind = "0.0.0.0:9071"        # where it differs from the address that others use

Reading and checking only; who starts what with it is the commands' business.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiops.errors import ConfigError

EXAMPLE = 'address = "10.0.0.1:9070"'


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node listens and how the others reach it."""

    address: str
    bind: str


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The content of a cluster file."""

    path: Path
    scheduler: Place
    servers: tuple[Place, ...]
    workers: int

    def server(self, index: int) -> Place:
        """Return the server with this index.

        Raises
        ------
        ConfigError
            The file has no such server.
        """
        if not 0 <= index < len(self.servers):
            raise ConfigError(
                f"--index {index} is out of range: {self.path} has {len(self.servers)} servers, "
                f"so it goes from 0 to {len(self.servers) - 1}"
            )
        return self.servers[index]


def read_cluster_file(path: Path) -> ClusterFile:
    """Read and check a cluster file.

    Raises
    ------
    ConfigError
        It cannot be read or something in it is wrong; the message names the place.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the cluster file {path} is not TOML: {error}") from error
    try:
        return _checked(path, content)
    except ConfigError as error:
        raise ConfigError(f"the cluster file {path}: {error}") from None


def _checked(path: Path, content: dict[str, Any]) -> ClusterFile:
    _only(content, {"scheduler", "servers", "workers"}, "the file")
    workers = content.get("workers")
    # bool is an int in Python, and `workers = true` is not a number of workers
    if type(workers) is not int or workers < 1:
        raise ConfigError(f"workers must be a whole number of at least 1, not {workers!r}")
    servers = content.get("servers")
    if not isinstance(servers, list) or not servers:
        raise ConfigError(f"needs at least one [[servers]] table with {EXAMPLE}")
    places = tuple(_place(entry, f"server {index}") for index, entry in enumerate(servers))
    scheduler = _place(content.get("scheduler"), "the scheduler")
    _all_different([scheduler, *places])
    return ClusterFile(path, scheduler, places, workers)


def _place(entry: object, whose: str) -> Place:
    if not isinstance(entry, dict):
        raise ConfigError(f"{whose} needs a table with {EXAMPLE}")
    _only(entry, {"address", "bind"}, whose)
    address = _host_and_port(entry.get("address"), f"the address of {whose}")
    return Place(address, _host_and_port(entry.get("bind", address), f"the bind of {whose}"))


def _host_and_port(value: object, what: str) -> str:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"{what} must be a text host:port with a fixed port, not {value!r}")
    assert isinstance(value, str)
    return value


def _only(table: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise ConfigError(
            f"{where} has {', '.join(unknown)}, but only {', '.join(sorted(known))} is known"
        )


def _all_different(places: list[Place]) -> None:
    seen: set[str] = set()
    for place in places:
        if place.address in seen:
            raise ConfigError(f"the address {place.address} appears twice")
        seen.add(place.address)
