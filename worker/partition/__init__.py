"""Arrays cut over the ranks of a replica, and what the ranks exchange."""

from .array import DistributedArray
from .exchange import Exchange
from .models import partitioned

__all__ = ["DistributedArray", "Exchange", "partitioned"]
