"""What aiops gives to tests: those of its users and its own.

`plugin` is the pytest plugin with the fixture `local_cluster`; pytest finds it by itself.
`FaultProxy` puts faults between real sockets and `ChaosCluster` a whole cluster behind such
proxies; `simulation` has whole clusters on virtual time.
"""

from __future__ import annotations

from aiops.testing.chaos_cluster import ChaosCluster
from aiops.testing.faults import Counters, Faults, Line
from aiops.testing.proxy import FaultProxy
from aiops.testing.weather import Weather

__all__ = ["ChaosCluster", "Counters", "FaultProxy", "Faults", "Line", "Weather"]
