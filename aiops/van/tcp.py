"""The TCP van: opens doors and dials, and says in one line why either failed.

What a connected socket does is in `tcp_stream`, how connections are accepted in `tcp_listener`.
Encryption is not here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from aiops.errors import ConfigError, DialFailed
from aiops.observability import RateLimited, get_logger
from aiops.van.base import Accept, Address, Listener, Stream
from aiops.van.tcp_listener import TcpListener
from aiops.van.tcp_stream import TcpStream
from aiops.wording import shown
from aiops_protocol.limits import CONNECTIONS_MAX

__all__ = ["TcpVan"]

STALL_TIMEOUT_S: Final = 150.0
"""The kernel gives a connection up when nothing moves for so long: no acknowledgement, or no room
at the receiver. It does not tell the two apart, and a worker may compute for two minutes without
reading, so this is longer. A dead peer is found sooner, by heartbeats and deadlines."""

KEEPALIVE_S: Final = 15
"""Idle seconds between probes of an idle connection; unanswered ones count as a stall."""

BACKLOG: Final = 1024
"""Connections that may wait to be accepted: all the workers of a job in the same instant."""

DIAL_TIMEOUT_S: Final = 10.0
"""Seconds for one address of a name; a host that drops packets would cost two minutes."""

DESCRIPTORS_SHARE: Final = 0.8
"""Part of the process's descriptors that connections may take; files and dials need the rest."""

DESCRIPTORS_KEPT: Final = 32
"""Descriptors left in any case: an idle process on uvloop holds fourteen, and one too few stops the
door before it can refuse anybody."""

_ADVICE: Final = {
    errno.EADDRINUSE: "stop what listens there, take another port, or use port 0 for a free one",
    errno.EADDRNOTAVAIL: "bind an address of this machine, or 0.0.0.0 for all of them",
    errno.EACCES: "ports below 1024 need privileges; take a higher one, or port 0 for a free one",
}

_HOPELESS: Final = {errno.EINVAL, errno.EACCES, errno.EPERM, errno.EAFNOSUPPORT}
"""Errors of dialling that the same call will meet again."""

_log = get_logger()

SocketAddress: TypeAlias = tuple[Any, ...]


class _Target(NamedTuple):
    family: int
    address: SocketAddress


class TcpVan:
    """Makes TCP streams and listeners on the running event loop.

    Parameters
    ----------
    connections_max
        Streams open at a time; more are refused by closing them. The process's limit of
        descriptors may allow fewer.
    stall_timeout_s
        Seconds without any progress after which the kernel ends a connection.
    direct
        Write to the sockets ourselves. `False` leaves it to the event loop, at the cost of a
        copy and of a turn; it is the only way where the loop cannot watch a socket for writing.
    """

    def __init__(
        self,
        *,
        connections_max: int = CONNECTIONS_MAX,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        direct: bool | None = None,
    ) -> None:
        self._connections_max = min(connections_max, _descriptors() // 2)  # a stream takes two
        self._stall_timeout_s = stall_timeout_s
        self._direct = sys.platform != "win32" if direct is None else direct
        self._open = 0
        self._complaints = RateLimited(burst=1)

    async def listen(self, address: Address, accept: Accept) -> Listener:
        """Open a door at `address`; port 0 takes a free port.

        A name is resolved and its first address taken.

        Raises
        ------
        ConfigError
            The address is taken, not ours, or cannot be resolved.
        """
        if not address.host:
            raise ConfigError(
                f"cannot listen on {address}: name a host, 127.0.0.1 for this machine only or "
                f"0.0.0.0 for all its addresses"
            )
        try:
            target = (await _resolve(address))[0]
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address}: {_reason(error)}; check the spelling of the host"
            ) from error
        sock = socket.socket(target.family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # elsewhere this means: take the port away from its owner
                # Needed to come back at once to a port with connections in TIME_WAIT. Never
                # SO_REUSEPORT, which lets two servers share a port without knowing.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(target.address)
            return self.listen_socket(sock, accept)
        except OSError as error:
            sock.close()
            advice = _ADVICE.get(error.errno or 0, "choose another address")
            raise ConfigError(f"cannot listen on {address}: {_reason(error)}; {advice}") from error

    def listen_socket(self, sock: socket.socket, accept: Accept) -> Listener:
        """Listen on a ready socket, bound by the caller; the listener owns it from now on.

        Must be called on the event loop.

        Raises
        ------
        ConfigError
            It is not a TCP socket.
        """
        internet = sock.family in (socket.AF_INET, socket.AF_INET6)
        if not internet or sock.type != socket.SOCK_STREAM:
            raise ConfigError(f"cannot listen on {shown(sock)}: it is not a TCP socket")
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        sock.listen(BACKLOG)

        def adopt(connected: socket.socket) -> asyncio.Task[None]:
            stream = self._stream_on(connected, accept)
            return loop.create_task(self._adopt(stream, connected))

        return TcpListener(loop, sock, self._has_room, adopt)

    async def dial(self, address: Address, accept: Accept) -> Stream:
        """Open a stream to `address`, once; the addresses of a name are tried in turn.

        Cancelling leaves nothing behind.

        Raises
        ------
        DialFailed
            Nobody listens, the name does not resolve, or the network is unreachable.
        """
        try:
            targets = await _resolve(address)
        except OSError as error:
            raise _dial_failed(address, error) from error
        failure: OSError | None = None
        for target in targets:
            try:
                sock = await _connect(target)
            except OSError as error:
                failure = failure or error
                continue
            try:
                stream = self._stream_on(sock, accept)
                await self._start(stream, sock)
            except OSError as error:
                raise _dial_failed(address, error) from error
            return stream
        assert failure is not None, "a name that resolves has an address"
        raise _dial_failed(address, failure) from failure

    def _has_room(self) -> bool:
        return self._open < self._connections_max

    def _stream_on(self, sock: socket.socket, accept: Accept) -> TcpStream:
        """Make a stream of a connected socket, or close the socket."""
        loop = asyncio.get_running_loop()
        try:
            sock.setblocking(False)
            _tune(sock, self._stall_timeout_s)
            stream = TcpStream(loop, sock, accept, direct=self._direct, ended=self._ended)
        except BaseException:
            sock.close()
            raise
        self._open += 1
        return stream

    async def _start(self, stream: TcpStream, sock: socket.socket) -> None:
        """Give the socket to the loop; whatever happens, it is not left open."""
        loop = asyncio.get_running_loop()
        try:
            # Also for dialled sockets: with `create_connection` uvloop leaves it open who closes
            # the socket when the call is cancelled.
            await loop.connect_accepted_socket(lambda: stream, sock)
        except BaseException:
            stream.abandon()
            sock.close()
            raise
        if not stream.accepted and stream.failure is not None:
            raise stream.failure

    async def _adopt(self, stream: TcpStream, sock: socket.socket) -> None:
        try:
            await self._start(stream, sock)
        except Exception as error:  # one peer's misfortune, or the owner's fault: the door stays
            if self._complaints.allows(asyncio.get_running_loop().time()):
                _log.warning(
                    "connection_not_taken",
                    peer=stream.remote,
                    not_shown=self._complaints.take_suppressed(),
                    exc_info=error,
                )

    def _ended(self) -> None:
        self._open -= 1


def _descriptors() -> int:
    """Return how many descriptors connections may take in this process."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(2, min(int(soft * DESCRIPTORS_SHARE), soft - DESCRIPTORS_KEPT))


def _tune(sock: socket.socket, stall_timeout_s: float) -> None:
    """Set what a platform knows; nothing here is needed for correctness."""
    tcp = socket.IPPROTO_TCP
    options = [
        (tcp, "TCP_NODELAY", 1),
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (tcp, "TCP_KEEPIDLE", KEEPALIVE_S),
        (tcp, "TCP_KEEPINTVL", KEEPALIVE_S),
        (tcp, "TCP_USER_TIMEOUT", int(stall_timeout_s * 1000)),
    ]
    for level, name, value in options:
        if hasattr(socket, name):
            with suppress(OSError):  # also: the peer has reset the connection meanwhile
                sock.setsockopt(level, getattr(socket, name), value)


async def _resolve(address: Address) -> list[_Target]:
    """Return the socket addresses of a name, without a thread where it is a number."""
    if not 0 <= address.port <= 65535:
        raise OSError(errno.EINVAL, "a port is a number from 0 to 65535")
    kind = socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(*address, type=kind, flags=socket.AI_NUMERICHOST)
    except (socket.gaierror, UnicodeError):
        try:
            found = await asyncio.get_running_loop().getaddrinfo(*address, type=kind)
        except UnicodeError as error:
            raise socket.gaierror(socket.EAI_NONAME, "not a host name") from error
    return [_Target(family, sockaddr) for family, _, _, _, sockaddr in found]


async def _connect(target: _Target) -> socket.socket:
    """Return a socket connected to the target."""
    sock = socket.socket(target.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(DIAL_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(sock, target.address)
        if sock.getsockname() == sock.getpeername():
            # With nobody listening on a local port, the kernel may pick that very port for our own
            # end and connect the socket to itself; it would also keep the real server out.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except TimeoutError as error:
        sock.close()
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error
    except BaseException:
        sock.close()
        raise
    return sock


def _dial_failed(address: Address, error: OSError) -> DialFailed:
    return DialFailed(
        f"cannot connect to {address}: {_reason(error)}",
        peer=str(address),
        retryable=error.errno not in _HOPELESS,
        refused=error.errno == errno.ECONNREFUSED,
    )


def _reason(error: OSError) -> str:
    """Say what went wrong in words, with the name of the number to look up."""
    if isinstance(error, socket.gaierror):
        return f"the host does not resolve ({error.strerror})"
    code = errno.errorcode.get(error.errno or 0, "unknown error")
    match error.errno:
        case errno.ECONNREFUSED:
            return f"nobody listens there ({code})"
        case errno.ENETUNREACH | errno.EHOSTUNREACH:
            return f"the network does not reach it ({code})"
        case errno.ETIMEDOUT:
            return f"no answer ({code})"
        case errno.EADDRINUSE:
            return f"the address is in use ({code})"
        case errno.EADDRNOTAVAIL:
            return f"not an address of this machine ({code})"
        case _:
            return f"{error.strerror or error} ({code})"
