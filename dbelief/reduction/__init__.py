"""Sums over many ranks on paper: who sums for whom, and how long that takes on links of a given speed."""

from .cost import Link, ring_seconds, shards_seconds, tree_seconds
from .shapes import Shape, binomial, named, server, with_arity

__all__ = [
    "Link",
    "Shape",
    "binomial",
    "named",
    "ring_seconds",
    "server",
    "shards_seconds",
    "tree_seconds",
    "with_arity",
]
