"""A deterministic simulation of whole clusters: one seed, one run, bit for bit.

    loop      an event loop on virtual time: it jumps to the next timer when nothing is ready
    process   simulated processes: killed without a `finally`, stopped and continued like by signals
    network   streams between them, with latency, cuts, partitions, slow links, corruption
    seal      no clock and no entropy but the simulation's own

The roles, the runtime and the public handles run in it unchanged; only the van is another.
"""

from __future__ import annotations

from aiops.testing.simulation.loop import Deadlock, Livelock, SimLoop
from aiops.testing.simulation.network import SimNetwork, SimVan
from aiops.testing.simulation.process import SimProcess
from aiops.testing.simulation.seal import sealed

__all__ = ["Deadlock", "Livelock", "SimLoop", "SimNetwork", "SimProcess", "SimVan", "sealed"]
