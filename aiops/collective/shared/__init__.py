"""Collectives through memory that the workers of one host share; no payload goes through sockets.

`pages.py` has the memory, `board.py` the small page on which members tell each other how far they
are, `links.py` the sockets over which memory is handed over and sleepers are woken, `group.py` the
collective operations themselves. Linux only: `supported` says whether it can be done here.
"""

from aiops.collective.shared.group import SharedGroup
from aiops.collective.shared.links import Doorbell, ShareLink, host_identity, supported
from aiops.collective.shared.pages import Arena

__all__ = ["Arena", "Doorbell", "ShareLink", "SharedGroup", "host_identity", "supported"]
