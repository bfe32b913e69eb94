"""One job over a grid of settings: `dbelief sweep`."""

from .grid import Point, points
from .rows import Row, best_of
from .runs import run_sweep

__all__ = ["Point", "Row", "best_of", "points", "run_sweep"]
