"""Arrays partitioned over the ranks of a replica, and the exchanges between the ranks."""

from .build import build_partitioned
from .distributed_array import DistributedArray
from .halo_exchange import HaloExchange

__all__ = ["DistributedArray", "HaloExchange", "build_partitioned"]
