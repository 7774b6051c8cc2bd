"""Which members go through shared memory, and that all of them decide the same."""

from __future__ import annotations

import asyncio

import pytest

from aiops.collective.shared import host_identity, supported
from aiops.errors import UsageError
from aiops.runtime.host_memory import HostMemory, hosts_of
from aiops_protocol.ring_control import RingMember

pytestmark = pytest.mark.skipif(not supported(), reason="shared memory needs Linux")


def members(*offers: str) -> list[RingMember]:
    return [
        RingMember(rank=i, incarnation=1, name=f"w{i}", host="h", port=1, shared=offer)
        for i, offer in enumerate(offers)
    ]


@pytest.mark.parametrize(
    ("offers", "shared"),
    [
        (["here/aiops-1-a", "here/aiops-2-b"], True),
        (["here/aiops-1-a", "here/aiops-2-b!"], True),  # one insists, the other has it anyway
        (["here/aiops-1-a", "there/aiops-2-b"], False),
        (["here/aiops-1-a", ""], False),  # TCP is asked for, or there is no shared memory
        (["", ""], False),
        (["here/aiops-1-a"], False),
        (["here/aiops-1-a", "here/aiops-1-b"], False),  # tasks of one process
        (["here/aiops-1-a!", "here/aiops-1-b"], False),
        (["here/aiops-1-a!", "here/aiops-1-b!"], True),  # they insist
    ],
)
def test_who_shares_memory(offers: list[str], shared: bool) -> None:
    places = tuple(range(len(offers)))
    alone = tuple((place,) for place in places)
    assert hosts_of(members(*offers), "auto") == ((places,) if shared else alone)


def test_several_hosts() -> None:
    offers = ["a/aiops-1-x", "b/aiops-1-x", "a/aiops-2-x", "", "b/aiops-2-x", "c/aiops-1-x", ""]
    assert hosts_of(members(*offers), "auto") == ((0, 2), (1, 4), (3,), (5,), (6,))
    # Tasks of one process do without on their host, others share on theirs.
    offers = ["a/aiops-1-x", "a/aiops-1-y", "b/aiops-1-x", "b/aiops-2-x", "a/aiops-2-x"]
    assert hosts_of(members(*offers), "auto") == ((0,), (1,), (4,), (2, 3))


@pytest.mark.parametrize("other", ["there/aiops-2-b", ""])
def test_who_insists_in_vain_is_told_who_cannot(other: str) -> None:
    with pytest.raises(UsageError, match=r"worker 1 \(w1\) cannot share memory"):
        hosts_of(members("here/aiops-1-a!", other), "shared-memory")


async def test_what_is_offered() -> None:
    offers = {}
    for transport in ("auto", "tcp", "shared-memory"):
        memory = HostMemory(transport)
        offers[transport] = memory.offer()
        assert memory.offer() == offers[transport]
        memory.close()
        memory.close()
    assert offers["tcp"] == ""
    assert offers["auto"].startswith(f"{host_identity()}/aiops-")
    assert offers["shared-memory"].endswith("!")
    await asyncio.sleep(0)
