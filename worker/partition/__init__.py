"""Arrays cut over the ranks of a replica, and what the ranks exchange."""

from .build import partitioned
from .distributed_array import DistributedArray
from .halo_exchange import Exchange

__all__ = ["DistributedArray", "Exchange", "partitioned"]
