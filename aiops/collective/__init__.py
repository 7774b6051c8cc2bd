"""Collectives: all-reduce and its relatives, among ranks that all make the same calls.

A collective is data, a tuple of steps for each rank: start reading at `steps.py` and `schedule.py`.
`InProcessRing` performs them within one process; `worker.ring()` gives the same calls across
workers.
"""

from aiops.collective.compressed import CompressedReducer
from aiops.collective.cost_model import Choice, Link
from aiops.collective.in_process import InProcessMember, InProcessRing
from aiops.collective.member import Member

__all__ = ["Choice", "CompressedReducer", "InProcessMember", "InProcessRing", "Link", "Member"]
