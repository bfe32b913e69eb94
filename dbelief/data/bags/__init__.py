"""Sparse rows by key for scripts with tables: streams of mini-batches from text and Parquet, without torch.

`for batch in read_libsvm("clicks.svm")` gives labels, weights, and in `batch.bags["features"]` keys, offsets and values
as `torch.nn.EmbeddingBag` takes them.
"""

from .batch import Bag, SparseBatch
from .csv import read_csv
from .libsvm import read_libffm, read_libsvm
from .line_stream import LineStream
from .parquet import RowGroupStream, read_parquet
from .vw import read_vw

__all__ = [
    "Bag",
    "LineStream",
    "RowGroupStream",
    "SparseBatch",
    "read_csv",
    "read_libffm",
    "read_libsvm",
    "read_parquet",
    "read_vw",
]
