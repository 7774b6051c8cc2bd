"""What differs between two memberships of a job, which is told in place of the whole list.

Nobody ever goes from the list: a member that has left is in it as such, and a rank that is given
out again has another name or incarnation. Pure; who has been told what is `aiops.runtime.news`.
"""

from __future__ import annotations

from aiops_protocol.control import ClusterChange, ClusterState

__all__ = ["changed", "difference"]


def difference(old: ClusterState, new: ClusterState) -> ClusterChange:
    """Return what turns a membership into a later one of the same job; see `changed`."""
    known = {(member.role, member.rank): member for member in old.members}
    return ClusterChange(
        since=old.epoch,
        epoch=new.epoch,
        members=[
            member for member in new.members if known.get((member.role, member.rank)) != member
        ],
        expected_servers=new.expected_servers,
        expected_workers=new.expected_workers,
        ready=new.ready,
    )


def changed(old: ClusterState, change: ClusterChange) -> ClusterState:
    """Return the membership after a change, in order of role and rank."""
    members = {(member.role, member.rank): member for member in old.members}
    count = len(members)
    members |= {(member.role, member.rank): member for member in change.members}
    order = sorted(members) if len(members) > count else members
    return ClusterState(
        epoch=change.epoch,
        members=[members[place] for place in order],
        expected_servers=change.expected_servers,
        expected_workers=change.expected_workers,
        ready=change.ready,
    )
