"""SimStream: one end of a simulated TCP stream."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from aiops.testing.simulation.process import SimProcess
from aiops.van.base import (
    CLOSE_TIMEOUT_S,
    WRITE_LOW_WATER_BYTES,
    Accept,
    Address,
    Stream,
    StreamHandler,
)
from aiops_protocol.payload import Buffer

if TYPE_CHECKING:
    from aiops.testing.simulation.network import SimNetwork

__all__ = ["SimStream"]

WINDOW_BYTES: Final = 256 * 1024
"""Bytes on the way: about what the buffers of a socket hold."""

TRICKLE_PER_S: Final = 20
"""On a narrow link pieces are so small that this many pass in a second: it trickles, not bursts."""

_END: Final = b""


class SimStream(Stream):
    """One end; made in pairs by `SimNetwork.dial`."""

    def __init__(
        self, network: SimNetwork, process: SimProcess, local: str, remote: Address
    ) -> None:
        self.local = local
        self.remote = str(remote)
        self.host = process.name
        self.peer_host = remote.host
        self._network = network
        self._process = process
        self._loop = network.loop
        self._peer = self
        self._handler: StreamHandler | None = None
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._flying = 0  # bytes sent and not yet taken by the other end
        self._last_arrival = 0.0
        self._free_at = 0.0  # when a narrow link has taken what was sent
        self._swallowed = False
        self._coming: deque[bytes] = deque()  # on the way to this end, in order
        self._held_up = 0  # of these, how many a blocked link has kept from arriving
        self._stall_since: float | None = None
        self._inbox: deque[bytes] = deque()
        self._closing = False
        self._finished = False  # the end of the stream is on its way
        self._over = False
        self._was_full = False
        network.streams[self] = None
        process.own(self)

    def join(self, peer: SimStream) -> None:
        """Make two ends one stream."""
        self._peer = peer
        peer._peer = self

    def begin(self, accept: Accept) -> None:
        """Give this end its handler, and what has arrived already."""
        self._handler = accept(self)
        if self._over:
            self._process.call_soon(self._tell_lost, ConnectionResetError("reset as it began"))
        elif self._inbox:
            self._process.call_soon(self._drain)

    @property
    def pending_bytes(self) -> int:
        """Bytes accepted by `write` that do not fit on the way yet."""
        return self._unsent_bytes

    @property
    def unacknowledged_bytes(self) -> int:
        """With what is on the way."""
        return self._unsent_bytes + self._flying

    def write(self, *buffers: Buffer, borrowed: bool = False) -> None:
        """Send the buffers, in order, after everything written before."""
        if self._closing or self._over:
            return
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            # Borrowed bytes are read when they leave, so that a lender that cheats is caught.
            self._unsent.append(view if borrowed else memoryview(bytes(view)))
            self._unsent_bytes += len(view)
        self._move()
        if self.full:
            self._was_full = True

    def flush(self) -> None:
        """Do nothing: what fits is on its way at once."""

    def own(self) -> None:
        """Copy all borrowed bytes that are still unsent."""
        self._unsent = deque(memoryview(bytes(view)) for view in self._unsent)

    def close(self) -> None:
        """Send what is pending, then end the stream."""
        if self._closing or self._over:
            return
        self._closing = True
        self._process.call_at(self._loop.time() + CLOSE_TIMEOUT_S, self._close_expired)
        self._move()

    def abort(self) -> None:
        """End the stream at once."""
        self._reset(None)

    def cut(self) -> None:
        """Reset both ends, as something on the way between them may do."""
        error = ConnectionResetError("cut by the simulation")
        self._network.lost_bytes += self._flying + self._peer._flying
        peer = self._peer
        for end in (self, peer):
            end._end(error)

    def swallow(self) -> None:
        """Let nothing pass any more, either way and without a word, whatever is repaired."""
        self._swallowed = self._peer._swallowed = True

    def process_died(self) -> None:
        """Reset the other end; this one has nobody to tell."""
        self._handler = None
        if not self._over:
            self._send_reset()
            self._forget()

    # --- sending ---

    def _move(self) -> None:
        rng = self._loop.rng
        rate = self._network.rate(self.host, self.peer_host)
        while self._unsent and self._flying < WINDOW_BYTES:
            view = self._unsent[0]
            size = min(len(view), WINDOW_BYTES - self._flying)
            if rate is not None:
                size = min(size, max(1, int(rate / TRICKLE_PER_S)))
            elif size > 1 and rng.random() < 0.3:
                size = rng.randint(1, min(size, rng.choice((3, 64, 65_536))))
            self._unsent_bytes -= size
            if size == len(view):
                self._unsent.popleft()
            else:
                self._unsent[0] = view[size:]
            self._flying += size
            if size:
                self._ship(bytes(view[:size]))
        if self._closing and not self._unsent and not self._finished:
            self._finished = True
            self._ship(_END)

    def _ship(self, data: bytes) -> None:
        delay = self._network.delay(self.host, self.peer_host, len(data))
        leaves = self._loop.time()
        if (rate := self._network.rate(self.host, self.peer_host)) is not None:
            leaves = self._free_at = max(leaves, self._free_at) + len(data) / rate
        # Strictly later than the piece before: equal times would not keep their order.
        self._last_arrival = max(leaves + delay, self._last_arrival + 1e-6)
        self._peer._coming.append(data)
        self._peer._process.call_at(self._last_arrival, self._peer._arrive)

    def _send_reset(self) -> None:
        at = self._loop.time() + self._network.delay(self.host, self.peer_host, 0)
        if self._loop.rng.random() < 0.5:  # a reset may overtake what is on the way
            at = max(at, self._last_arrival + 1e-6)
        self._peer._process.call_at(at, self._peer._arrive_reset, self._finished)

    # --- receiving ---

    def _arrive(self) -> None:
        """Take the first piece that is on the way; whichever arrival this is, order is kept."""
        sender = self._peer
        if self._over:
            return
        if self._swallowed or self._network.blocked(sender.host, self.host):
            self._held_up += 1
            sender._stall()
            return
        if self._network.cuts(sender.host, self.host):
            self._network.cut(self)
            return
        data = self._coming.popleft()
        self._inbox.append(self._network.harm(sender.host, self.host, data))
        self._drain()

    def _drain(self) -> None:
        if self._process.gate(self._drain) or self._handler is None or self._over:
            return
        while self._inbox and not self._over:
            data = self._inbox.popleft()
            self._peer._landed(len(data))
            if data == _END:
                self._end(None)
            elif not self._closing:
                self._loop.note(self.peer_host, self.host, data=data)
                self._hand_over(data)

    def _hand_over(self, data: bytes) -> None:
        while data and self._handler is not None and not self._closing:
            try:
                buffer = self._handler.get_buffer()
                count = min(len(buffer), len(data))
                buffer[:count] = data[:count]
                self._handler.received(count)
            except Exception as error:
                self._reset(error)
                return
            data = data[count:]

    def _landed(self, size: int) -> None:
        self._flying -= size
        if not self._over and self._process.alive:
            self._process.call_soon(self._resume)

    def _resume(self) -> None:
        if self._process.gate(self._resume) or self._over:
            return
        self._move()
        if self._was_full and self._unsent_bytes <= WRITE_LOW_WATER_BYTES:
            self._was_full = False
            if self._handler is not None and not self._closing:
                self._handler.drained()

    def _arrive_reset(self, after_end: bool) -> None:
        if self._over:
            return
        if self._swallowed or self._network.blocked(self._peer.host, self.host):
            return  # a reset is not repeated: this end stays half open
        self._network.lost_bytes += self._flying
        self._end(None if after_end else ConnectionResetError(f"reset by {self.peer_host}"))

    # --- partitions ---

    def _stall(self) -> None:
        """Give up after a while, if a blocked link goes on keeping back what was sent."""
        if self._stall_since is None and not self._over:
            self._stall_since = self._loop.time()
            limit_s = self._network.stall_timeout_s
            self._process.call_at(self._stall_since + limit_s, self._give_up)

    def _give_up(self) -> None:
        if self._over or self._stall_since is None or self._process.gate(self._give_up):
            return
        if self._loop.time() >= self._stall_since + self._network.stall_timeout_s - 1e-6:
            self._network.lost_bytes += self._flying
            self._end(TimeoutError("no acknowledgement (ETIMEDOUT)"))

    def repaired(self) -> None:
        """Let what was held up on the way to this end arrive; TCP has repeated it all along."""
        if self._swallowed:
            return
        held_up, self._held_up = self._held_up, 0
        self._stall_since = None
        at = self._loop.time() + self._network.delay(self.peer_host, self.host, 0)
        for index in range(held_up):
            self._process.call_at(at + index * 1e-6, self._arrive)

    # --- ending ---

    def _close_expired(self) -> None:
        if not self._over:
            self._reset(
                TimeoutError("the last bytes were not taken in time") if self._unsent else None
            )

    def _reset(self, error: Exception | None) -> None:
        if not self._over:
            self._send_reset()
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._over:
            return
        if error is None and not self._closing and not self._finished:
            # The other end is through: a close from this side follows by itself.
            self._finished = True
            self._ship(_END)
        self._forget()
        if self._process.alive:
            self._process.call_soon(self._tell_lost, error)

    def _forget(self) -> None:
        self._over = True
        self.unsent_bytes += self._unsent_bytes
        self._unsent.clear()
        self._unsent_bytes = 0
        self._coming.clear()
        self._stall_since = None
        self._network.streams.pop(self, None)
        self._process.disown(self)

    def _tell_lost(self, error: Exception | None) -> None:
        if self._process.gate(self._tell_lost, error):
            return
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.lost(error)
