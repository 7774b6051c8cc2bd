"""FaultProxy: a TCP proxy that does to real connections what real networks do.

For tests and for trying a program of one's own under faults. It knows nothing of what it carries.
Which faults there are is in `faults`, what they do to bytes in `proxy_pipe`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from dataclasses import replace
from typing import Any, Final, Literal

from aiops.checks import check_flag
from aiops.errors import ConfigError
from aiops.optim.settings import whole
from aiops.runtime.addresses import check_exposure, parse_address
from aiops.testing.faults import Counters, Faults, Line
from aiops.testing.proxy_connection import ProxiedConnection, reset
from aiops.testing.proxy_pipe import until_ready
from aiops.van.base import Address
from aiops.wording import shown

__all__ = ["Direction", "FaultProxy", "ReservedPort"]

Direction = Literal["up", "down"]
"""`"up"` is from the clients to the target, `"down"` is back."""

BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Read and not yet delivered, per connection and direction: 20 ms of a link of 200 MB/s."""

BACKLOG: Final = 128

WINDOW_BYTES_MIN: Final = 16 * 1024
"""Below it kernels wait for room for a whole segment."""

ETHERNET_BYTES: Final = 1460
"""A segment of TCP over Ethernet; over loopback it is 64 KB, and kernels keep forty of them."""

OVERLOADED_S: Final = 0.1
"""How long no connection is accepted after accepting has failed for want of descriptors."""


class ReservedPort:
    """A free port of an address that stays ours without anybody listening at it.

    Whoever binds it with SO_REUSEADDR (every server of aiops does) can listen there; connections
    are refused meanwhile. Only on Linux is it really reserved, elsewhere merely free at first.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._sock = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind((host, port))
        except OSError as error:
            self._sock.close()
            raise ConfigError(f"cannot bind {Address(host, port)}: {error.strerror}") from error
        self.address = Address(host, self._sock.getsockname()[1])
        if sys.platform != "linux":
            self._sock.close()

    def listen(self) -> socket.socket:
        """Return a socket that listens there."""
        sock = socket.socket(_family(self.address.host), socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(tuple(self.address))
            sock.listen(BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Give the port back. Idempotent."""
        self._sock.close()

    def __enter__(self) -> ReservedPort:
        """Return itself; leaving gives the port back."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the port back."""
        self.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _narrow(sock: socket.socket, buffer_bytes: int) -> None:
    """Let the kernel keep no more than so much of what comes, and that in small segments."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes // 2)  # it is doubled
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, ETHERNET_BYTES)


def _are_lines(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(one, Line) for one in pair)


class FaultProxy:
    """A TCP proxy in front of `target` whose faults can be changed at any time.

    Parameters
    ----------
    target
        `host:port` that the connections go to.
    faults
        Of both directions, to begin with.
    bind, insecure
        Where to listen; port 0 takes a free one (see `address`). Beyond this machine only if
        `insecure`.
    seed
        Of everything that is left to chance. What one read returns is up to the kernel, so two
        runs of one seed are alike, not equal.
    buffer_bytes
        What may be read and not yet delivered, per connection and direction; then the sender has
        to wait, as it has to on a real link.
    window_bytes
        Let no more than about so much be on its way, per connection and direction, what lies in
        kernels on this side included: with a delay it is what limits a connection, as the window
        of TCP does on a long link. In place of `buffer_bytes`.
    lines
        Up and down, in place of `faults`. Proxies that were given the same one share its width, as
        the links of one host share its network card.

    Attributes
    ----------
    counters
        What went through, what was lost, how often was cut.

    Examples
    --------
    >>> async with FaultProxy("127.0.0.1:9070", Faults(delay_s=0.02)) as proxy:  # doctest: +SKIP
    ...     proxy.cut_after(1000, "up")     # a reset right behind the 1000th byte from now
    ...     proxy.hold()                    # a black hole
    ...     proxy.release()
    """

    def __init__(
        self,
        target: str,
        faults: Faults | None = None,
        *,
        bind: str = "127.0.0.1:0",
        insecure: bool = False,
        seed: int = 0,
        buffer_bytes: int = BUFFER_BYTES,
        window_bytes: int | None = None,
        lines: tuple[Line, Line] | None = None,
    ) -> None:
        whole("FaultProxy", "buffer_bytes", buffer_bytes, at_least=1)
        if window_bytes is not None:
            whole(
                "FaultProxy", "window_bytes", window_bytes, at_least=WINDOW_BYTES_MIN, at_most=2**31
            )
        pair: object = lines
        if not (pair is None or _are_lines(pair)):
            raise ConfigError(f"FaultProxy: lines is {shown(lines)}; pass two Line(...)")
        if lines is not None and faults is not None:
            raise ConfigError("FaultProxy: lines have faults of their own; give one of the two")
        given: object = faults
        if not isinstance(given, Faults | None):
            raise ConfigError(f"FaultProxy: faults is {shown(faults)}; pass Faults(...)")
        insecure = check_flag(insecure, "FaultProxy: insecure")
        self.target = parse_address(target, "the proxy's target")
        self._bind = parse_address(bind, "the proxy's bind")
        check_exposure(self._bind, insecure, "the proxy at")
        self._window_bytes = window_bytes
        self._buffer_bytes = buffer_bytes if window_bytes is None else window_bytes // 2
        self.counters = Counters()
        chance = random.Random(whole("FaultProxy", "seed", seed, at_least=-(2**63)))
        healthy = faults or Faults()
        up, down = lines or (Line(healthy, chance), Line(healthy, chance))
        self._lines = {"up": up, "down": down}
        self._gates = {"up": asyncio.Event(), "down": asyncio.Event()}
        for gate in self._gates.values():
            gate.set()
        self._port: ReservedPort | None = None
        self._door: asyncio.Task[None] | None = None
        self._connections: dict[ProxiedConnection, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._chance = chance

    def __repr__(self) -> str:
        where = "not started" if self._port is None else self.address
        return f"<FaultProxy {where} to {self.target}>"

    @property
    def address(self) -> str:
        """Where to connect to, `host:port`."""
        if self._port is None:
            raise ConfigError("the proxy is not started: use `async with FaultProxy(...)`")
        return str(self._port.address)

    @property
    def connections(self) -> int:
        """Connections that are open through it now."""
        return len(self._connections)

    async def __aenter__(self) -> FaultProxy:
        """Open the door."""
        self._port = ReservedPort(*self._bind)
        self._open_door()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Reset what is open, and leave nothing behind."""
        await self._close_door()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._port is not None:
            self._port.close()

    # --- faults ---

    def set(self, direction: Direction | None = None, **changes: Any) -> None:
        """Change some of the faults, of both directions if none is named; see `Faults`.

        What was read already keeps the delay that it was given.
        """
        for line in self._each(self._lines, direction):
            line.faults = replace(line.faults, **changes)

    def faults(self, direction: Direction) -> Faults:
        """Return the faults in force."""
        return self._lines[direction].faults

    def cut(self, *, reset: bool = True, one: bool = False) -> None:
        """Cut the connections that are open now, or `one` of them by chance.

        Parameters
        ----------
        reset
            By RST; otherwise both ends see an orderly end of stream.
        """
        connections = list(self._connections)
        if one and connections:
            connections = [self._chance.choice(connections)]
        for connection in connections:
            connection.cut(reset=reset)

    def cut_after(self, count: int, direction: Direction = "up", *, reset: bool = True) -> None:
        """Cut once, when `count` more bytes of a direction have passed, all connections together.

        The connection that carries the last of them is cut, and the receiver gets exactly these
        bytes.
        """
        if count < 0:
            raise ConfigError(f"cut_after: count is {count}; it must be 0 or more")
        self._lines[direction].cut_after(count, reset=reset)

    def half_close(self, direction: Direction) -> None:
        """End one direction of the connections that are open; the other one goes on.

        The receiver sees the end of the stream. What the sender still sends is swallowed.
        """
        for connection in list(self._connections):
            (connection.up if direction == "up" else connection.down).close()

    def hold(self, direction: Direction | None = None) -> None:
        """Let nothing pass, silently: a black hole, or with a direction a one-way partition.

        Connections stay open and new ones are accepted; what is sent is kept, up to
        `buffer_bytes`, and so are ends and resets.
        """
        for gate in self._each(self._gates, direction):
            gate.clear()

    def release(self, direction: Direction | None = None) -> None:
        """Let everything flow that was held, as TCP does when a link is back."""
        for gate in self._each(self._gates, direction):
            gate.set()

    def forget(self) -> None:
        """Let nothing pass over the connections that are open now, silently and for good.

        As a middlebox does that has lost its table: new connections are well. What the old ones
        still send is swallowed and counts as lost.
        """
        for connection in list(self._connections):
            connection.forget()

    async def refuse(self) -> None:
        """Refuse new connections, as if nobody listened; open ones are not touched."""
        await self._close_door()

    def accept(self) -> None:
        """Take new connections again."""
        if self._door is None:
            self._open_door()

    @staticmethod
    def _each(both: dict[str, Any], direction: Direction | None) -> list[Any]:
        return list(both.values()) if direction is None else [both[direction]]

    # --- connections ---

    def _open_door(self) -> None:
        assert self._port is not None
        listening = self._port.listen()
        if self._window_bytes is not None:
            _narrow(listening, self._window_bytes // 2)
        self._door = asyncio.get_running_loop().create_task(self._accept(listening))
        # Not by the task itself: one that is cancelled at once has never begun.
        self._door.add_done_callback(lambda _: listening.close())

    async def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            door.cancel()
            await asyncio.gather(door, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await until_ready(listening)
            try:
                client, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                continue
            except OSError:
                await asyncio.sleep(OVERLOADED_S)
                continue
            self.counters.connections += 1
            self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        task.add_done_callback(lambda _: client.close())

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.result()

    async def _serve(self, client: socket.socket) -> None:
        client.setblocking(False)
        for gate in self._gates.values():
            await gate.wait()
        try:
            target = await self._dial()
        except OSError:
            self.counters.unreachable += 1
            reset(client)
            return
        with target:
            for sock in (client, target):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = ProxiedConnection(
                client,
                target,
                (self._lines["up"], self._lines["down"]),
                (self._gates["up"], self._gates["down"]),
                self._buffer_bytes,
                self.counters,
            )
            self._connections[connection] = None
            try:
                await connection.run()
            finally:
                del self._connections[connection]

    async def _dial(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        host, port = self.target
        kind = socket.SOCK_STREAM
        try:  # a number needs no thread to ask for it
            found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=kind)
        family, kind, protocol, _, address = found[0]
        target = socket.socket(family, kind, protocol)
        try:
            target.setblocking(False)
            if self._window_bytes is not None:
                _narrow(target, self._window_bytes // 2)
            await loop.sock_connect(target, address)
        except BaseException:
            target.close()
            raise
        return target
