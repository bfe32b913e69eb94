"""Arrays cut over the ranks of a replica, and what the ranks exchange."""

from .build import build_partitioned
from .distributed_array import DistributedArray
from .halo_exchange import HaloExchange

__all__ = ["DistributedArray", "HaloExchange", "build_partitioned"]
