"""Arrays cut over the ranks of a replica, and what the ranks exchange."""

from .array import DistributedArray
from .exchange import Exchange
from .grid import Grid
from .window import Window, split

__all__ = ["DistributedArray", "Exchange", "Grid", "Window", "split"]
