"""Faults of one direction of a link, and what they decide about the bytes that pass. Pure.

`Faults` is what a user sets, a value. `Line` holds the settings in force and the state that they
need (when the link is free again, how far the next cut is). `Counters` says what came of it.
Sockets are `proxy_pipe`'s.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiops.checks import TIMEOUT_S_MAX, check_flag, is_number
from aiops.errors import ConfigError
from aiops.wording import shown

__all__ = ["Counters", "Cut", "Faults", "Line"]

PIECE_BYTES: Final = 64 * 1024
"""What is read at a time: the unit of delay and of `cut_probability`."""

PIECES_PER_S_MIN: Final = 20
"""On a slow link pieces are so small that this many pass in a second: it trickles, not bursts."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to the bytes of one direction; the defaults are a healthy link.

    Parameters
    ----------
    delay_s, jitter_s
        Each piece arrives `delay_s` later, and up to `jitter_s` more at random. The order of the
        bytes is kept, as TCP keeps it.
    rate_bytes_per_s
        Width of the link, shared by all its connections.
    cut_probability
        Chance of each piece (what one read returned, 64 KiB at most) that its connection is cut
        within it.
    cut_every_bytes
        Whenever this many bytes have passed, the connection that carried the last of them is cut
        right behind it.
    corrupt_every_bytes
        Of this many bytes one, at a random place, gets another value.
    reset
        Whether cuts are sudden (RST), or look like an orderly end of stream (FIN).

    Raises
    ------
    ConfigError
        A value makes no sense.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate_bytes_per_s: float | None = None
    cut_probability: float = 0.0
    cut_every_bytes: int | None = None
    corrupt_every_bytes: int | None = None
    reset: bool = True

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value <= TIMEOUT_S_MAX:
                raise ConfigError(f"faults: {name} is {shown(value)}; it must be 0 or more")
        chance: object = self.cut_probability
        if not is_number(chance) or not 0 <= chance <= 1:
            raise ConfigError(f"faults: cut_probability is {shown(chance)}; it must be from 0 to 1")
        check_flag(self.reset, "faults: reset")
        for name in ("rate_bytes_per_s", "cut_every_bytes", "corrupt_every_bytes"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or not 1 <= value < 2**63):
                raise ConfigError(
                    f"faults: {name} is {shown(value)}; it must be 1 or more, or None"
                )


class Cut(NamedTuple):
    """Pass `after` bytes of the piece on, then cut; `exact` if they must really arrive."""

    after: int
    reset: bool
    exact: bool


class Line:
    """One direction of a link.

    Parameters
    ----------
    chance
        Seeded; shared by both directions of a proxy.
    """

    def __init__(self, faults: Faults, chance: random.Random) -> None:
        given: object = faults
        if not isinstance(given, Faults) or not isinstance(chance, random.Random):
            raise ConfigError(f"Line: {shown(faults)}, {shown(chance)}; pass Faults and Random")
        self._chance = chance
        self._free_at = 0.0
        self._faults = faults
        self._cut_in: int | None = None  # bytes until the next exact cut
        self._cut_reset = True
        self._corrupt_in = 0  # bytes until the next byte that gets another value
        self._corrupt_rest = 0  # bytes behind it that stay whole
        self.faults = faults

    def __repr__(self) -> str:
        return f"<Line {self._faults}>"

    @property
    def faults(self) -> Faults:
        """The settings in force; setting them starts the counts of bytes again."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults = faults
        self._cut_in = faults.cut_every_bytes
        self._cut_reset = faults.reset
        if faults.rate_bytes_per_s is None:
            self._free_at = 0.0
        if faults.corrupt_every_bytes is not None:
            self._corrupt_rest = 0
            self._place_corruption(faults.corrupt_every_bytes)

    def cut_after(self, count: int, *, reset: bool) -> None:
        """Cut once when `count` more bytes have passed; in place of the next `cut_every_bytes`."""
        self._cut_in, self._cut_reset = count, reset

    @property
    def piece_bytes(self) -> int:
        """How much to read at a time."""
        rate = self._faults.rate_bytes_per_s
        return (
            PIECE_BYTES if rate is None else max(1, min(PIECE_BYTES, int(rate / PIECES_PER_S_MIN)))
        )

    def due(self, size: int, now: float) -> float:
        """Return when a piece that was read now arrives at the other end.

        A later piece of the same connection may get an earlier time; it has to wait its turn.
        """
        faults = self._faults
        leaves = now
        if faults.rate_bytes_per_s is not None:
            leaves = self._free_at = max(now, self._free_at) + size / faults.rate_bytes_per_s
        jitter = self._chance.uniform(0, faults.jitter_s) if faults.jitter_s else 0.0
        return leaves + faults.delay_s + jitter

    def spoil(self, piece: bytearray) -> int:
        """Change bytes of a piece in place, as the faults say; return how many."""
        every = self._faults.corrupt_every_bytes
        if every is None:
            return 0
        changed, at = 0, 0
        while at + self._corrupt_in < len(piece):
            at += self._corrupt_in
            piece[at] ^= self._chance.randrange(1, 256)
            changed += 1
            at += 1
            self._place_corruption(every)
        self._corrupt_in -= len(piece) - at
        return changed

    def _place_corruption(self, every: int) -> None:
        place = self._chance.randrange(every)
        self._corrupt_in = self._corrupt_rest + place
        self._corrupt_rest = every - place - 1

    def cut(self, size: int) -> Cut | None:
        """Decide whether a cut falls into the next `size` bytes; call it once for each piece.

        Bytes behind a cut are not counted as passed.
        """
        if self._cut_in is not None and self._cut_in <= size:
            cut = Cut(self._cut_in, self._cut_reset, exact=True)
            self._cut_in = self._faults.cut_every_bytes
            self._cut_reset = self._faults.reset
            return cut
        probability = self._faults.cut_probability
        if probability and self._chance.random() < probability:
            cut = Cut(self._chance.randint(0, size), self._faults.reset, exact=False)
            self._count(cut.after)
            return cut
        self._count(size)
        return None

    def _count(self, size: int) -> None:
        if self._cut_in is not None:
            self._cut_in -= size


@dataclass(slots=True)
class Counters:
    """What a proxy has seen, over all its connections. `up` is from client to target.

    Attributes
    ----------
    connections
        Connections accepted.
    unreachable
        Connections ended because the target took none.
    cuts
        Connections cut by a fault.
    forwarded_up, forwarded_down
        Bytes that the receiving end's kernel has taken.
    lost_up, lost_down
        Bytes that an end had sent and that a cut or a half-close kept from the other.
    corrupted
        Bytes that got another value.
    """

    connections: int = 0
    unreachable: int = 0
    cuts: int = 0
    forwarded_up: int = 0
    forwarded_down: int = 0
    lost_up: int = 0
    lost_down: int = 0
    corrupted: int = 0

    @property
    def forwarded(self) -> int:
        """Bytes forwarded in both directions."""
        return self.forwarded_up + self.forwarded_down

    @property
    def lost(self) -> int:
        """Bytes lost in both directions."""
        return self.lost_up + self.lost_down
