"""Data of a job's `data` section, split and ordered by seeds: in memory, or read unit by unit."""

from .dataset import BatchBuffer, Dataset, Split
from .load import load, sizes, sizes_and_units
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
    "sizes_and_units",
]
