"""Key lists that travel once and are named by their signatures afterwards: both ends of it.

A worker that names the same list again and again (the rows of its part of the data) sends it plain
the first time, with its signature the second time, and from then on the signature alone. A server
keeps what came with a signature as long as there is room, and says so when it does not know one;
the list is then sent again. So neither end has to know what the other remembers, and either may be
started anew.

References
----------
.. [1] M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014,
   section 5.1 (key caching).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aiops_protocol.frames import Flag
from aiops_protocol.key_list import signature
from aiops_protocol.limits import CACHED_KEYS_MIN, KEY_CACHE_BYTES
from aiops_protocol.payload import Buffer

__all__ = ["KeyCache", "Named", "SentLists"]

SENT_LISTS_MAX: Final = 4096
"""Lists that a worker remembers for each server, at some 200 bytes; the oldest goes first."""

_KEY_LIST: Final = int(Flag.KEY_LIST)
_KEY_SIGNATURE: Final = int(Flag.KEY_SIGNATURE)


class Named(NamedTuple):
    """How a request names its keys."""

    keys: Buffer
    signature: bytes
    flags: int


class SentLists:
    """Which key lists a worker has sent to a server, and so how to name one now."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[bytes, int] = {}  # by signature, the oldest first

    def name(self, keys: Buffer, *, whole: bool = False) -> Named:
        """Return how to name a list; `whole`: the server has just said that it does not know it."""
        if len(keys) < 8 * CACHED_KEYS_MIN:
            return Named(keys, b"", _KEY_LIST)
        mark = signature(keys)
        times = 1 if whole else self._times.pop(mark, 0)
        self._times[mark] = min(times + 1, 2)
        if len(self._times) > SENT_LISTS_MAX:
            del self._times[next(iter(self._times))]
        if times == 0:
            return Named(keys, b"", _KEY_LIST)
        if times == 1:
            return Named(keys, mark, _KEY_LIST | _KEY_SIGNATURE)
        return Named(b"", mark, _KEY_SIGNATURE)


class KeyCache:
    """The key lists that a server keeps, for all its tables and workers.

    Parameters
    ----------
    limit
        Bytes of keys; what was not asked for longest goes first.
    """

    __slots__ = ("_lists", "limit", "size")

    def __init__(self, limit: int = KEY_CACHE_BYTES) -> None:
        self.limit = limit
        self.size = 0
        self._lists: dict[bytes, bytes] = {}  # what was not asked for longest comes first

    def find(self, mark: bytes) -> bytes | None:
        """Return the list of a signature, if it is here."""
        keys = self._lists.pop(mark, None)
        if keys is not None:
            self._lists[mark] = keys
        return keys

    def keep(self, mark: bytes, keys: Buffer) -> bool:
        """Keep a copy of a list; `False` if the signature is not its own."""
        if signature(keys) != mark:
            return False
        if self.find(mark) is None and len(keys) <= self.limit:
            self._lists[mark] = bytes(keys)
            self.size += len(keys)
            while self.size > self.limit:
                self.size -= len(self._lists.pop(next(iter(self._lists))))
        return True

    def validate(self) -> None:
        """Check what must always hold."""
        assert self.size == sum(map(len, self._lists.values())) <= self.limit
