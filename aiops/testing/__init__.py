"""What aiops gives to tests: those of its users and its own.

`plugin` is the pytest plugin with the fixture `local_cluster`; pytest finds it by itself.
`FaultProxy` puts faults between real sockets; `simulation` has whole clusters on virtual time.
"""

from __future__ import annotations

from aiops.testing.faults import Counters, Faults
from aiops.testing.proxy import FaultProxy

__all__ = ["Counters", "FaultProxy", "Faults"]
