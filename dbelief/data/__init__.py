"""Data of a job's `data` section, as arrays in memory, split and ordered by seeds."""

from .dataset import BatchBuffer, Dataset, Split
from .load import load, sizes
from .samples import Order, Samples
from .sparse import SparseSplit
from .splits import Parts, cut, permutation

__all__ = [
    "BatchBuffer",
    "Dataset",
    "Order",
    "Parts",
    "Samples",
    "SparseSplit",
    "Split",
    "cut",
    "load",
    "permutation",
    "sizes",
]
