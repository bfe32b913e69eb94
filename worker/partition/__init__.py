"""Arrays cut over the ranks of a replica, and what the ranks exchange."""

from .array import DistributedArray
from .exchange import Exchange

__all__ = ["DistributedArray", "Exchange"]
