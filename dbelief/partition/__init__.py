"""How a model is cut over the ranks of a replica: boxes alone, no message. Known to all programs."""

from .grid import Grid
from .models import layout_of
from .window import Window, split

__all__ = ["Grid", "Window", "layout_of", "split"]
