"""RowIndex: from a key to the number of its row, for whole arrays of keys at once.

A hash table of buckets of eight keys, one cache line each: a look-up fetches the bucket, compares
all eight, and only in the few full buckets without the key goes on to the next one. The bucket of
a key is the place of its low 32 bits on the scale of all of those, so that growing moves entries in
the order in which they lie. (Not that of its high bits: a sorted list that comes in pieces would
fill one part of the table before the others.)

Keys must be spread evenly, as `aiops_protocol.key_list.mix` spreads them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from aiops_protocol.key_list import KEY_END, Keys

__all__ = ["INDEX_ROWS_MAX", "RowIndex", "RowNumbers"]

RowNumbers = NDArray[np.int64]
"""Numbers of rows; -1 for a key that has none."""

BUCKET: Final = 8
"""Entries in a bucket: eight keys are a cache line."""

FULL: Final = 0.8
"""Part of all places that may be taken: then about one key in fifteen is a bucket further on."""

GROWTH: Final = 1.5
"""By how much the number of places grows: between 15 and 23 bytes for each row."""

FIRST_BUCKETS: Final = 64

SLICE_BUCKETS: Final = 32 * 1024
"""So many buckets move at a time when the table grows: what that needs besides stays small."""

INDEX_ROWS_MAX: Final = 2**32
"""Rows of one shard: their numbers are kept in four bytes."""

_ONES: Final = np.uint64(0x0101010101010101)
_TOP: Final = np.uint64(56)
_LOW_BITS: Final = np.uint64(32)
_LOW: Final = np.uint64(2**32 - 1)


class RowIndex:
    """Row numbers by key; `KEY_END` is never one."""

    __slots__ = ("_buckets", "_keys", "_rows", "size")

    def __init__(self) -> None:
        self.size = 0
        self._allocate(FIRST_BUCKETS)

    def _allocate(self, buckets: int) -> None:
        self._buckets = buckets
        self._keys = np.full((buckets, BUCKET), KEY_END, np.uint64)
        self._rows = np.empty(buckets * BUCKET, np.uint32)

    @property
    def nbytes(self) -> int:
        """Bytes that the index takes."""
        return self._keys.nbytes + self._rows.nbytes

    def bytes_with(self, more: int) -> int:
        """Return the bytes that it will take with so many more keys."""
        return self._buckets_for(self.size + more) * BUCKET * 12

    def _buckets_for(self, size: int) -> int:
        if size <= FULL * BUCKET * self._buckets:
            return self._buckets
        return max(int(GROWTH * self._buckets), int(size / (FULL * BUCKET)) + 1)

    def _places(self, keys: Keys) -> NDArray[np.int64]:
        places = keys & _LOW
        np.multiply(places, np.uint64(self._buckets), out=places)
        np.right_shift(places, _LOW_BITS, out=places)
        return places.view(np.int64)

    def find(self, keys: Keys) -> RowNumbers:
        """Return the row number of each key, -1 where it has none."""
        found = np.full(keys.size, -1, np.int64)
        places = self._places(keys)
        waiting: NDArray[np.int64] | None = None  # places in `found`; None: all
        while keys.size:
            buckets = self._keys.take(places, axis=0)
            words = (buckets == keys[:, None]).view(np.uint64)[:, 0]
            hits = np.flatnonzero(words)
            # One byte of a word is 1: the bytes below it tell which, all ones when 1 is taken off.
            slots = ((words[hits] - np.uint64(1)) & _ONES) * _ONES >> _TOP
            rows = self._rows[places[hits] * BUCKET + slots.astype(np.int64)]
            found[hits if waiting is None else waiting[hits]] = rows
            if hits.size == keys.size:
                break
            on = np.flatnonzero((words == 0) & (buckets[:, -1] != KEY_END))
            waiting = on if waiting is None else waiting[on]
            keys = keys[on]
            places = places[on] + 1
            places[places == self._buckets] = 0
        return found

    def insert(self, keys: Keys, rows: NDArray[np.uint32]) -> None:
        """Note the rows of keys that are not here, none of them twice."""
        self.reserve(keys.size)
        self.size += keys.size
        self._put(keys, rows)

    def reserve(self, more: int) -> None:
        """Grow, if that is necessary, for so many more keys."""
        buckets = self._buckets_for(self.size + more)
        if buckets == self._buckets:
            return
        old_keys, old_rows = self._keys, self._rows.reshape(-1, BUCKET)
        self._allocate(buckets)
        for start in range(0, len(old_keys), SLICE_BUCKETS):
            keys = old_keys[start : start + SLICE_BUCKETS]
            taken = keys != KEY_END
            self._put(keys[taken], old_rows[start : start + SLICE_BUCKETS][taken])

    def _put(self, keys: Keys, rows: NDArray[np.uint32]) -> None:
        places = self._places(keys)
        flat = self._keys.reshape(-1)
        while keys.size:
            if not (places[:-1] <= places[1:]).all():
                order = np.argsort(places)
                keys, rows, places = keys[order], rows[order], places[order]
            free = (self._keys.take(places, axis=0) == KEY_END).view(np.uint64)[:, 0]
            taken = BUCKET - (free * _ONES >> _TOP).astype(np.int64)
            # The n-th newcomer of a bucket takes its n-th free place.
            first = np.empty(keys.size, np.bool_)
            first[:1] = True
            np.not_equal(places[1:], places[:-1], out=first[1:])
            numbers = np.arange(keys.size)
            numbers -= np.maximum.accumulate(np.where(first, numbers, 0))
            slots = taken + numbers
            fits = slots < BUCKET
            at = places[fits] * BUCKET + slots[fits]
            flat[at] = keys[fits]
            self._rows[at] = rows[fits]
            on = ~fits
            keys, rows, places = keys[on], rows[on], places[on] + 1
            places[places == self._buckets] = 0

    def validate(self) -> None:
        """Check what must always hold: a look-up stops at the first bucket that is not full."""
        taken = self._keys != KEY_END
        assert int(taken.sum()) == self.size
        assert not (taken[:, 1:] & ~taken[:, :-1]).any()
        keys = self._keys[taken]
        assert np.unique(keys).size == self.size
        assert (self.find(keys) == self._rows.reshape(-1, BUCKET)[taken]).all()
