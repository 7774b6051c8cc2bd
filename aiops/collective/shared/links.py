"""Sockets between the processes of one host: they introduce members, hand memory over, and wake.

A `Doorbell` is where a process can be found by the others of its host; with it and the names of
theirs, the members of a group connect to each other (`meet`). A `ShareLink` is one such connection.
Through it go numbers of segments with their files, wake-ups of one byte, and, by its end, the news
that the other process is dead: the kernel closes it, whatever the death was like.

Only processes of the same user are let in.
"""

from __future__ import annotations

import array
import asyncio
import errno
import hmac
import os
import secrets
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from aiops.collective.shared.mapping import map_file
from aiops.collective.shared.pages import Segment
from aiops.errors import ConnectionLost, DialFailed, JoinTimeout
from aiops.wording import shown

__all__ = ["Doorbell", "ShareLink", "host_identity", "supported"]

LAYOUT_VERSION: Final = 3
"""Of boards and of what goes through links: it grows with every change to them."""

_HELLO: Final = struct.Struct("<I32s")  # index of the sender, digest of what the group is
_SEGMENT: Final = struct.Struct("<cqq")  # kind, number, size
_WAKE: Final = b"w"
_MADE: Final = b"s"
_OPENED: Final = b"o"  # made, and the other may write into it
_DROPPED: Final = b"d"
_BACKLOG: Final = 128  # more members of one host than this do not dial in the same moment
_FULL: Final = (errno.EAGAIN, errno.ETOOMANYREFS)  # of messages, or of files on their way
_CREDENTIALS: Final = struct.Struct("3i")


def supported() -> bool:
    """Say whether this system has what is needed: Linux, with files without names."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def host_identity() -> str:
    """Return a text that is the same for two processes exactly if they can share memory.

    Not the host's name: containers share names, and clones of machines do. It is the kernel's
    boot, the network name space, in which doorbells are found, and the version of the layout.
    """
    if not supported():
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{os.stat('/proc/self/ns/net').st_ino:x}.{LAYOUT_VERSION}"


class Doorbell:
    """Where this process can be found by others of its host; closed with `close`.

    Attributes
    ----------
    name
        What the others need to know, printable.
    """

    def __init__(self) -> None:
        self.name = f"aiops-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            # A leading zero byte: a name of the kernel's, not of the file system's, so that
            # nothing is left of it after a death.
            self._socket.bind(f"\0{self.name}")
            self._socket.listen(_BACKLOG)
        except OSError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, Callable[[int, socket.socket], None]] = {}
        self._early: dict[tuple[bytes, int], socket.socket] = {}
        self._silent: set[socket.socket] = set()  # at the door, and have not said who they are
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Be found no more. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for link in [*self._early.values(), *self._silent]:
            _discard(self._loop, link)
        self._early.clear()
        self._silent.clear()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:  # nobody else at the door, or no files left
                return
            link.setblocking(False)
            if _same_user(link):
                self._silent.add(link)
                self._loop.add_reader(link.fileno(), self._hello, link)
            else:
                link.close()

    def _hello(self, link: socket.socket) -> None:
        """Read who is at the door; a member that comes before its group is asked for waits."""
        self._loop.remove_reader(link.fileno())
        self._silent.discard(link)
        try:
            index, digest = _HELLO.unpack(link.recv(_HELLO.size))
        except (OSError, struct.error):
            link.close()
            return
        taker = self._waiting.get(digest)
        if taker is not None:
            taker(index, link)
        else:
            if len(self._early) >= _BACKLOG:  # the oldest has given up long ago
                self._early.pop(next(iter(self._early))).close()
            self._early[digest, index] = link

    async def meet(
        self, group: str, index: int, names: Mapping[int, str], timeout_s: float
    ) -> dict[int, ShareLink]:
        """Connect to all other members of a group; those with a lower index are dialled.

        Parameters
        ----------
        group
            What all members know and nobody else: who does not give it is not let in.
        index
            This member.
        names
            The names of the doorbells of all others, by their index.
        timeout_s
            How long to wait for them.

        Raises
        ------
        DialFailed, JoinTimeout
            One cannot be reached, or did not come; no connection is left.
        """
        digest = hmac.digest(b"aiops-shared-group", group.encode(), "sha256")
        links: dict[int, socket.socket] = {}
        complete = self._loop.create_future()

        def come(other: int, link: socket.socket) -> None:
            if other in names and other not in links:
                links[other] = link
            else:
                link.close()
            if len(links) == len(names) and not complete.done():
                complete.set_result(None)

        self._waiting[digest] = come
        try:
            for other, name in sorted(names.items()):
                if other < index:
                    come(other, self._dial(name, _HELLO.pack(index, digest)))
            for key in [key for key in self._early if key[0] == digest]:
                come(key[1], self._early.pop(key))
            if names:
                async with asyncio.timeout(timeout_s):
                    await complete
        except BaseException as error:
            for link in links.values():
                _discard(self._loop, link)
            if isinstance(error, TimeoutError):
                absent = ", ".join(str(i) for i in sorted(set(names) - set(links)))
                raise JoinTimeout(
                    f"members {absent} did not connect for shared memory within {timeout_s:g} s",
                    operation="shared memory",
                    elapsed_s=timeout_s,
                ) from None
            raise
        finally:
            del self._waiting[digest]
        return {other: ShareLink(link) for other, link in links.items()}

    def _dial(self, name: str, hello: bytes) -> socket.socket:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            link.connect(f"\0{name}")
            if not _same_user(link):
                raise PermissionError("it belongs to another user")
            link.send(hello)
        except OSError as error:
            link.close()
            raise DialFailed(
                f"the process {shown(name)} of this host cannot be reached for shared memory: "
                f"{error}",
                peer=name,
                retryable=True,
            ) from error
        return link


class ShareLink:
    """A connection to another process of this host.

    Attributes
    ----------
    segments
        Memory of the other process, by number; read-only unless it is open to others.
    """

    def __init__(self, link: socket.socket) -> None:
        self.segments: dict[int, NDArray[Any]] = {}
        self._socket = link
        self._loop = asyncio.get_running_loop()
        self._lost: Callable[[Exception | None], None] | None = None
        self._woken: Callable[[], None] | None = None
        self._unsent: deque[tuple[bytes, int | None]] = deque()

    def open(self, woken: Callable[[], None], lost: Callable[[Exception | None], None]) -> None:
        """Begin to listen: `woken` after anything has come, `lost` once at the end."""
        self._woken, self._lost = woken, lost
        self._loop.add_reader(self._socket.fileno(), self._ready)

    def close(self) -> None:
        """End the connection; nothing is called any more, the segments stay. Idempotent."""
        self._lost = self._woken = None
        self._forget_unsent()
        _discard(self._loop, self._socket)

    def wake(self) -> None:
        """Wake the other process, if it sleeps."""
        try:
            self._socket.send(_WAKE)
        except BlockingIOError:
            pass  # it has wake-ups enough
        except OSError as error:
            self._fail(error)

    def made(self, segment: Segment) -> None:
        """Hand a segment of this process to the other."""
        kind = _OPENED if segment.open else _MADE
        self._tell(_SEGMENT.pack(kind, segment.number, segment.size), segment.fd)

    def dropped(self, number: int) -> None:
        """Tell that a segment is used no more."""
        self._tell(_SEGMENT.pack(_DROPPED, number, 0), None)

    def _tell(self, message: bytes, fd: int | None) -> None:
        """Send now, or as soon as there is room: the socket takes some hundred messages."""
        try:
            if self._unsent or not self._sent(message, fd):
                self._unsent.append((message, None if fd is None else os.dup(fd)))
        except OSError as error:
            self._fail(error)

    def _sent(self, message: bytes, fd: int | None) -> bool:
        rights = (
            [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        )
        try:
            self._socket.sendmsg([message], rights)
        except OSError as error:
            if error.errno in _FULL:
                return False
            raise
        return True

    def flush(self) -> bool:
        """Send what there was no room for; return whether nothing is left."""
        try:
            while self._unsent and self._sent(*self._unsent[0]):
                _, fd = self._unsent.popleft()
                if fd is not None:
                    os.close(fd)
        except OSError as error:
            self._fail(error)
        return not self._unsent

    def _forget_unsent(self) -> None:
        while self._unsent:
            _, fd = self._unsent.popleft()
            if fd is not None:
                os.close(fd)

    def take(self) -> None:
        """Take everything that has come, also what a dead process sent before its death."""
        reset: OSError | None = None
        while self._lost is not None:
            try:
                message, rights, _, _ = self._socket.recvmsg(_SEGMENT.size, socket.CMSG_SPACE(4))
            except BlockingIOError:
                return
            except OSError as error:
                # A process that died with something unread: the system says so at once, before
                # what it had sent; that is still there, and needed.
                if reset is not None:
                    self._end(error)
                reset = error
                continue
            if not message:
                self._end(reset)
            elif message != _WAKE:
                self._segment(message, rights)

    def _segment(self, message: bytes, rights: list[tuple[int, int, bytes]]) -> None:
        kind, number, size = _SEGMENT.unpack(message)
        if kind == _DROPPED:
            self.segments.pop(number, None)
            return
        if not rights:  # the system could not give this process the file
            self._end(OSError("memory cannot be taken over: too many open files"))
            return
        (fd,) = struct.unpack("i", rights[0][2])
        try:
            self.segments[number] = map_file(fd, size, writable=kind == _OPENED)
        except OSError as error:
            self._end(error)
        finally:
            os.close(fd)

    def _ready(self) -> None:
        woken = self._woken
        self.take()
        if woken is not None:
            woken()

    def _fail(self, error: OSError) -> None:
        """End because nothing can be sent; what the other has sent is taken first."""
        self.take()
        if self._lost is not None:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        lost = self._lost
        self._lost = None
        self._forget_unsent()
        self._loop.remove_reader(self._socket.fileno())
        if lost is not None:
            lost(error if error is None else ConnectionLost(str(error)))


def _same_user(link: socket.socket) -> bool:
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.geteuid())


def _discard(loop: asyncio.AbstractEventLoop, link: socket.socket) -> None:
    if link.fileno() >= 0:
        loop.remove_reader(link.fileno())
        link.close()
