"""A membership, changed by what differs in a later one, is that later one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiops.roles.member_changes import changed, difference
from aiops.roles.membership import Membership, NodeState
from aiops_protocol.control import ClusterState, Join

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["server", "worker"]),
        st.sampled_from(["", "a", "b", "worker-5", "worker-2"]),
        st.sampled_from([NodeState.ALIVE, NodeState.FINISHED, NodeState.LEFT, NodeState.LOST]),
    ),
    max_size=20,
)


@given(steps=STEPS, marks=st.lists(st.integers(0, 20), max_size=5))
def test_a_change_gives_the_later_membership(
    steps: list[tuple[str, str, NodeState]], marks: list[int]
) -> None:
    """Names come back, ranks of automatic names are given out again, and nobody is missed."""
    members = Membership(servers=3, workers=2)
    states: list[ClusterState] = [members.state()]
    for peer, (role, name, then) in enumerate(steps):
        known = members.find(role, name) if name else None
        if (known is not None and known.connected) or not members.has_room(role):
            continue
        node = members.take_in(peer, Join(role=role, name=name, host="127.0.0.1", port=peer))
        states.append(members.state())
        if then in (NodeState.LEFT, NodeState.LOST):
            members.leave(node, then, "")
        node.state = then
        states.append(members.state())
    told = states[0]
    for mark in [*sorted(marks), len(states) - 1]:
        newest = states[min(mark, len(states) - 1)]
        told = changed(told, difference(told, newest))
        assert told == newest


def test_a_change_names_only_whom_it_is_about() -> None:
    members = Membership(servers=1, workers=3)
    for peer in range(3):
        members.take_in(peer, Join(role="worker", name=f"worker-{peer}"))
    before = members.state()
    members.take_in(3, Join(role="server", name="server-0"))
    change = difference(before, members.state())
    assert [(member.role, member.rank) for member in change.members] == [("server", 0)]
    assert (change.since, change.epoch, change.ready) == (before.epoch, before.epoch + 1, True)
