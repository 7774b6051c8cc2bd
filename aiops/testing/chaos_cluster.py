"""ChaosCluster: a local cluster in which every connection to a server goes through a proxy.

What goes wrong on the way is `weather`'s, how it does is `proxy`'s.
"""

from __future__ import annotations

import socket
from dataclasses import fields
from typing import Any

from aiops.checks import check_flag
from aiops.errors import ConfigError
from aiops.local_cluster import LocalCluster
from aiops.runtime.scheduler_node import Scheduler
from aiops.runtime.server_node import Server
from aiops.testing.faults import Counters
from aiops.testing.proxy import FaultProxy, ReservedPort
from aiops.testing.weather import Storm, Weather
from aiops.wording import shown

__all__ = ["ChaosCluster", "total"]


class ChaosCluster(LocalCluster):
    """A local cluster with faults between its workers and its servers.

    The servers listen where nobody is told, and advertise the addresses of their proxies.

    Parameters
    ----------
    servers
        Number of servers.
    weather
        What goes wrong while the cluster runs; `proxies` can be told more at any time.
    scheduler_too
        Also put a proxy in front of the scheduler. It is `scheduler_proxy`, and the weather does
        not reach it: only delays and black holes that you ask of it yourself are survived by a
        job, since losing the connection to the scheduler is the loss of a node.
    options
        As for `LocalCluster`.

    Attributes
    ----------
    proxies
        One per server, in the order of their ranks.
    storm
        Carries the weather out.

    Examples
    --------
    >>> rain = Weather(cut_every_s=0.5, seed=7)  # doctest: +SKIP
    >>> async with ChaosCluster(servers=2, weather=rain) as cluster:  # doctest: +SKIP
    ...     results = await cluster.run(train, workers=4)
    """

    def __init__(
        self,
        servers: int = 1,
        *,
        weather: Weather | None = None,
        scheduler_too: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(servers, **options)
        given: object = weather
        if not isinstance(given, Weather | None):
            raise ConfigError(f"ChaosCluster: weather is {shown(weather)}; pass Weather(...)")
        self._weather = weather or Weather()
        self._scheduler_too = check_flag(scheduler_too, "ChaosCluster: scheduler_too")
        self.proxies: list[FaultProxy] = []
        self.scheduler_proxy: FaultProxy | None = None
        self.storm = Storm(self.proxies, self._weather)

    @property
    def counters(self) -> Counters:
        """What has passed between workers and servers, and what was lost; a sum over all."""
        return total(self.proxies)

    async def __aenter__(self) -> ChaosCluster:
        """Start proxies, scheduler and servers, and then the weather."""
        await super().__aenter__()
        self.storm.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Calm the weather, then end the job and everything in it."""
        await self.storm.calm()
        await super().__aexit__()

    async def _proxied(self, seed: int) -> tuple[socket.socket, FaultProxy]:
        """Return a listening socket, and an open proxy in front of it."""
        port = ReservedPort()
        listening = port.listen()
        port.close()
        proxy = FaultProxy(str(port.address), seed=seed)
        return listening, await self._stack.enter_async_context(proxy)

    async def _make_scheduler(self, **options: Any) -> Scheduler:
        if self._scheduler_too:
            listening, self.scheduler_proxy = await self._proxied(self._weather.seed - 1)
            options |= {"sock": listening, "advertise": self.scheduler_proxy.address}
        return await super()._make_scheduler(**options)

    async def _make_server(self, index: int, **options: Any) -> Server:
        listening, proxy = await self._proxied(self._weather.seed + index)
        self.proxies.append(proxy)
        return await super()._make_server(index, sock=listening, advertise=proxy.address, **options)


def total(proxies: list[FaultProxy]) -> Counters:
    """Return the counters of several proxies as one."""
    return Counters(
        **{
            field.name: sum(getattr(proxy.counters, field.name) for proxy in proxies)
            for field in fields(Counters)
        }
    )
