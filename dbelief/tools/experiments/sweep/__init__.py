"""One job over a grid of settings: `dbelief sweep`."""

from .grid import GridPoint, points
from .rows import RunRow, best_of
from .runs import run_sweep

__all__ = ["GridPoint", "RunRow", "best_of", "points", "run_sweep"]
