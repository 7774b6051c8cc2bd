"""SimNetwork: streams between simulated processes, with the faults of real networks.

Bytes of a stream arrive in order, cut at random places, after a random delay. A fault is a
property of a link (one direction between two processes): blocked (a partition; TCP repeats
and delivers after the repair, or the sender gives up), slow, corrupting. Streams can be cut
at any moment, as a middlebox or a reset does; what was on the way is then lost.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Final

import msgspec

from aiops.errors import ConfigError, DialFailed
from aiops.testing.simulation.loop import SimLoop
from aiops.testing.simulation.process import CURRENT, SimProcess
from aiops.testing.simulation.stream import SimStream
from aiops.van.base import Accept, Address, Listener, Stream

__all__ = ["Fault", "SimNetwork", "SimVan"]

CONNECT_TIMEOUT_S: Final = 3.0
"""How long an opening handshake through a blocked link is repeated by the kernel."""

STALL_TIMEOUT_S: Final = 8.0
"""When the kernel of a sender gives up on a blocked link. Only the sender learns of it."""

FIRST_PORT: Final = 40_000


class Fault(msgspec.Struct):
    """What is wrong with one direction of a link."""

    blocked: bool = False
    slow: float = 1.0
    rate_bytes_per_s: float | None = None
    """Width of the link, for each of its streams; if not given, a gigabyte per second."""
    corrupt: float = 0.0
    """Chance per delivered piece that one byte of it is changed."""
    cut: float = 0.0
    """Chance per piece that the stream is cut when it should be delivered: it is lost, and
    with it whatever else is on the way."""


class SimNetwork:
    """The network of one run; the host name of a process is its name.

    Parameters
    ----------
    delay_s, jitter_s
        Of every delivery: a base, and the mean of an exponential part. Random if not given.

    Attributes
    ----------
    stall_timeout_s
        See `STALL_TIMEOUT_S`; real kernels take minutes.
    """

    def __init__(
        self, loop: SimLoop, *, delay_s: float | None = None, jitter_s: float | None = None
    ) -> None:
        self.loop = loop
        self.delay_s = loop.rng.uniform(1e-4, 5e-3) if delay_s is None else delay_s
        self.jitter_s = loop.rng.uniform(1e-4, 1e-2) if jitter_s is None else jitter_s
        self.streams: dict[SimStream, None] = {}
        self.lost_bytes = 0
        self.stall_timeout_s = STALL_TIMEOUT_S
        self._processes: dict[str, SimProcess] = {}
        self._faults: dict[tuple[str, str], Fault] = {}
        self._listeners: dict[Address, SimListener] = {}
        self._ports = count(FIRST_PORT)

    def process(self, name: str) -> SimProcess:
        """Start a process; one of the same name must be dead."""
        former = self._processes.get(name)
        assert former is None or not former.alive, f"{name} is running"
        process = self._processes[name] = SimProcess(self.loop, name)
        return process

    def fault(self, sender: str, receiver: str) -> Fault:
        """Return the faults of the link from one process to another, to be changed."""
        return self._faults.setdefault((sender, receiver), Fault())

    # --- the four verbs, and the cut --------------------------------------------------------------

    def partition(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """Let nothing pass from `one` to `other`, nor back unless told otherwise."""
        self.loop.note("partition", one, other, both_ways)
        self.fault(one, other).blocked = True
        if both_ways:
            self.fault(other, one).blocked = True

    def repair(self, one: str, other: str) -> None:
        """Let everything pass again, both ways, at full speed and unharmed."""
        self.loop.note("repair", one, other)
        for pair in ((one, other), (other, one)):
            self._faults.pop(pair, None)
        for stream in list(self.streams):
            if {stream.host, stream.peer_host} == {one, other}:
                stream.repaired()

    def repair_all(self) -> None:
        """Repair every link."""
        for one, other in list(self._faults):
            if (one, other) in self._faults:
                self.repair(one, other)

    def cut(self, stream: SimStream) -> None:
        """Reset a stream: both ends lose it, and what is on the way."""
        self.loop.note("cut", stream.host, stream.peer_host)
        stream.cut()

    def swallow(self, stream: SimStream) -> None:
        """Make a black hole of a stream: a middlebox has forgotten it. New ones are well."""
        self.loop.note("swallow", stream.host, stream.peer_host)
        stream.swallow()

    # --- for vans and streams ---------------------------------------------------------------------

    def blocked(self, sender: str, receiver: str) -> bool:
        """Whether nothing passes in this direction."""
        fault = self._faults.get((sender, receiver))
        return fault is not None and fault.blocked

    def rate(self, sender: str, receiver: str) -> float | None:
        """Return the width of a narrow link, in bytes per second."""
        fault = self._faults.get((sender, receiver))
        return None if fault is None else fault.rate_bytes_per_s

    def delay(self, sender: str, receiver: str, size: int) -> float:
        """Draw how long `size` bytes take in this direction."""
        slow = self.fault(sender, receiver).slow if (sender, receiver) in self._faults else 1.0
        chance = self.loop.rng.expovariate(1 / self.jitter_s) if self.jitter_s else 0.0
        return (self.delay_s + chance) * slow + size * slow / 1e9

    def cuts(self, sender: str, receiver: str) -> bool:
        """Draw whether a piece is lost, and its stream with it."""
        fault = self._faults.get((sender, receiver))
        return fault is not None and fault.cut > 0 and self.loop.rng.random() < fault.cut

    def harm(self, sender: str, receiver: str, data: bytes) -> bytes:
        """Return the bytes as they arrive."""
        fault = self._faults.get((sender, receiver))
        if fault is None or not data or self.loop.rng.random() >= fault.corrupt:
            return data
        harmed = bytearray(data)
        harmed[self.loop.rng.randrange(len(harmed))] ^= 1 << self.loop.rng.randrange(8)
        self.loop.note("corrupt", sender, receiver)
        return bytes(harmed)

    def listen(self, process: SimProcess, address: Address, accept: Accept) -> SimListener:
        """Open a door."""
        if not address.port:
            address = Address(process.name, next(self._ports))
        address = Address(process.name, address.port)
        if address in self._listeners:
            raise ConfigError(f"cannot listen on {address}: the address is in use (EADDRINUSE)")
        listener = SimListener(self, process, address, accept)
        self._listeners[address] = listener
        process.own(listener)
        return listener

    def forget(self, listener: SimListener) -> None:
        """Close a door."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    async def dial(self, process: SimProcess, address: Address, accept: Accept) -> SimStream:
        """Open a stream from a process."""
        here, there = process.name, address.host
        give_up = self.loop.time() + CONNECT_TIMEOUT_S
        await asyncio.sleep(self.delay(here, there, 0))
        while self.blocked(here, there) or self.blocked(there, here):
            if self.loop.time() >= give_up:
                raise _dial_failed(address, "no answer (ETIMEDOUT)")
            await asyncio.sleep(0.2)
        listener = self._listeners.get(address)
        if listener is None:
            raise _dial_failed(address, "nobody listens there (ECONNREFUSED)", refused=True)
        near = SimStream(self, process, f"{here}:{next(self._ports)}", address)
        far = SimStream(self, listener.process, str(address), Address(*_split(near.local)))
        near.join(far)
        listener.process.call_at(self.loop.time() + self.delay(here, there, 0), listener.knock, far)
        try:
            await asyncio.sleep(self.delay(there, here, 0))
        except BaseException:
            near.abort()
            raise
        near.begin(accept)
        return near


class SimListener(Listener):
    """An open door of a simulated process."""

    def __init__(
        self, network: SimNetwork, process: SimProcess, address: Address, accept: Accept
    ) -> None:
        self.address = address
        self.process = process
        self._network = network
        self._accept = accept

    async def close(self) -> None:
        """Accept nobody any more."""
        self._network.forget(self)
        self.process.disown(self)

    def process_died(self) -> None:
        """Free the port."""
        self._network.forget(self)

    def knock(self, stream: SimStream) -> None:
        """Take the far end of a new connection; a stopped process takes it when it goes on."""
        if self.process.gate(self.knock, stream):
            return
        if not self.process.alive or self._network._listeners.get(self.address) is not self:
            stream.abort()
            return
        stream.begin(self._accept)


class SimVan:
    """The van of whatever process uses it."""

    def __init__(self, network: SimNetwork) -> None:
        self._network = network

    async def listen(self, address: Address, accept: Accept) -> Listener:
        """Open a door of the calling process."""
        return self._network.listen(_caller(), address, accept)

    async def dial(self, address: Address, accept: Accept) -> Stream:
        """Open a stream from the calling process."""
        return await self._network.dial(_caller(), address, accept)


def _caller() -> SimProcess:
    process = CURRENT.get()
    assert process is not None, "a simulated network is used from within a SimProcess"
    return process


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def _dial_failed(address: Address, why: str, *, refused: bool = False) -> DialFailed:
    text = f"cannot connect to {address}: {why}"
    return DialFailed(text, peer=str(address), retryable=True, refused=refused)
