"""Mappings of files without a name, and how two of them change places.

The arrays of a caller stay at their addresses; which pages lie there can change. `exchange` swaps
what two addresses show without a copy: only entries of the page table move (64 MB take some tens
of microseconds, to copy them takes milliseconds). Which file is whose is the business of
`pages.py`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["address_of", "can_exchange", "create_file", "exchange", "map_file", "map_movable"]

Array = NDArray[Any]

_HUGE_PAGE_BYTES: Final = 2 * 1024 * 1024
"""Also what an entry of the upper table covers: so aligned, a mapping moves 512 pages at once."""

# <linux/mman.h>, the same on every architecture; Python has names for some of them only.
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
_PROT_NONE: Final = 0
_FAILED: Final = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    """Load the C library when it is needed: elsewhere than on Linux it lacks what is used here."""
    libc = ctypes.CDLL(None, use_errno=True)
    address, size, flags = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = libc.mremap.restype = address
    libc.mmap.argtypes = [address, size, flags, flags, flags, ctypes.c_long]
    libc.mremap.argtypes = [address, size, size, flags, address]
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = [address, size, flags]
    return libc


def create_file(size: int) -> int:
    """Make a file without a name, and return its descriptor, which is the caller's.

    Raises
    ------
    OSError
        No files are left.
    """
    fd = os.memfd_create("aiops-ring", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def map_file(fd: int, size: int, *, writable: bool) -> Array:
    """Map a file and return its bytes; it is unmapped with the last array that looks at it."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, access)
    if size >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them: slower, nothing else
            mapped.madvise(mmap.MADV_HUGEPAGE)
    array: Array = np.frombuffer(mapped, np.uint8)
    return array


def map_movable(fd: int, size: int) -> Array:
    """Map a file for reading and writing, so that it can change places with another (`exchange`).

    It is unmapped with the last array that looks at it. Parameters as for `map_file`.
    """
    at = _reserve(size)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc().mmap(at, size, access, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) == _FAILED:
        error = _last_error()
        _libc().munmap(at, size)
        raise error
    _advise(at, size)
    memory = memoryview((ctypes.c_ubyte * size).from_address(at)).cast("B")
    array: Array = np.frombuffer(memory, np.uint8)
    weakref.finalize(array, _libc().munmap, at, size).atexit = False
    return array


def address_of(array: Array) -> int:
    """Return the address of the first byte of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


@cache
def can_exchange() -> bool:
    """Say whether mappings can change places here: Linux from 5.13 on."""
    fd = create_file(mmap.PAGESIZE)
    try:
        one, two = (map_movable(fd, mmap.PAGESIZE) for _ in range(2))
        return exchange(address_of(one), address_of(two), mmap.PAGESIZE)
    except (OSError, AttributeError):
        return False
    finally:
        os.close(fd)


def exchange(one: int, two: int, size: int) -> bool:
    """Let two mappings of `map_movable` show what the other one shows.

    Parameters
    ----------
    one, two
        Their addresses.
    size
        Of each, in bytes.

    Returns
    -------
    both
        Whether `two` shows now what `one` did; if not, it shows what it did, as `one` does, too.

    Raises
    ------
    OSError
        Nothing has changed.

    Notes
    -----
    At no moment is there nothing at either address: a thread that reads meanwhile sees the old
    pages or the new ones.
    """
    aside = _reserve(size)
    try:
        _move(one, aside, size, _MREMAP_DONTUNMAP)  # `one` still shows the same file
        _move(two, one, size, _MREMAP_DONTUNMAP)
    except OSError:
        _libc().munmap(aside, size)
        raise
    try:
        _move(aside, two, size, 0)
    except OSError:  # another thread has taken the last mapping that the system allows
        _libc().munmap(aside, size)
        return False
    return True


def _move(source: int, target: int, size: int, more: int) -> None:
    flags = _MREMAP_MAYMOVE | _MREMAP_FIXED | more
    if _libc().mremap(source, size, size, flags, target) == _FAILED:
        raise _last_error()


def _reserve(size: int) -> int:
    """Return aligned addresses that nothing else of this process gets, with nothing behind them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    whole = _libc().mmap(None, size + _HUGE_PAGE_BYTES, _PROT_NONE, flags, -1, 0)
    if whole == _FAILED:
        raise _last_error()
    at: int = -(-whole // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    if at > whole:
        _libc().munmap(whole, at - whole)
    if at < whole + _HUGE_PAGE_BYTES:
        _libc().munmap(at + size, whole + _HUGE_PAGE_BYTES - at)
    return at


def _advise(at: int, size: int) -> None:
    """Ask for huge pages; a kernel without them is slower, nothing else."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _libc().madvise(at, size, mmap.MADV_HUGEPAGE)


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
