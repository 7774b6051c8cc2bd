"""A pair of TCP ends with a fault proxy between them; for tests of the proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiops.runtime.addresses import parse_address
from aiops.testing.faults import Faults
from aiops.testing.proxy import FaultProxy
from aiops.van import TcpVan
from aiops.van.base import Stream
from van_bodies import ANYWHERE, GUARD_S, Ends, Pair, leaving_nothing


class ProxiedPairs:
    """Dials through the proxy: each `pair` is a new connection of a client to the target."""

    def __init__(self, van: TcpVan, proxy: FaultProxy, far: Ends) -> None:
        self._van = van
        self.proxy = proxy
        self.far = far
        self.near = Ends()

    async def dial(self) -> Stream:
        """Connect to the proxy, whatever becomes of it behind."""
        return await self._van.dial(parse_address(self.proxy.address, "the proxy"), self.near)

    async def pair(self) -> Pair:
        """Connect, and wait until the target has taken the connection."""
        index = len(self.near.all)
        await self.dial()
        return Pair(self.near.all[index], await self.far.number(index))


@asynccontextmanager
async def proxied(faults: Faults | None = None, **options: Any) -> AsyncIterator[ProxiedPairs]:
    """Give pairs with a proxy between; at the end every stream has ended and nothing is left."""
    async with leaving_nothing(), asyncio.timeout(GUARD_S):
        van, far = TcpVan(), Ends()
        listener = await van.listen(ANYWHERE, far)
        try:
            async with FaultProxy(str(listener.address), faults, **options) as proxy:
                pairs = ProxiedPairs(van, proxy, far)
                yield pairs
        finally:
            await listener.close()
        await pairs.near.ended()
        await far.ended()
