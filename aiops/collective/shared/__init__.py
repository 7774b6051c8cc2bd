"""Collectives through memory that the workers of one host share; no payload goes through sockets.

`pages.py` has the memory, `board.py` the small page on which members tell each other how far they
are, `links.py` the sockets over which memory is handed over and sleepers are woken, `neighbours.py`
how a member waits for the others, `group.py` the collective operations of one host, and
`host_part.py` what the members of one host do in those of several. Linux only: `supported` says
whether it can be done here.
"""

from aiops.collective.shared.group import SharedGroup
from aiops.collective.shared.host_part import HostPart, LoneMember, lanes_of
from aiops.collective.shared.links import Doorbell, ShareLink, host_identity, supported
from aiops.collective.shared.neighbours import Neighbours
from aiops.collective.shared.pages import Arena

__all__ = [
    "Arena",
    "Doorbell",
    "HostPart",
    "LoneMember",
    "Neighbours",
    "ShareLink",
    "SharedGroup",
    "host_identity",
    "lanes_of",
    "supported",
]
