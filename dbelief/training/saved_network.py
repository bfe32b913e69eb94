"""A network whose layers read tables, with parameters and rows of one snapshot set."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dbelief.core.layout import Layout
from dbelief.errors import ModelError
from dbelief.nn.network import Network
from dbelief.sparse.saved.loaded_tables import tables_of_set
from dbelief.sparse.saved.set_rows import SavedRows


def read_set(run: Path, network: Network, layout: Layout, out: np.ndarray) -> None:
    """Read the newest valid set of a run: parameters into (N,) float32 `out`, and rows, which the network reads then.

    Of a key without a row it reads the initial row, as during training.

    Raises
    ------
    ModelError
        The set's tensors are not those of the layout.
    UserError, RuntimeFailure
        The run has no valid set, or its rows have another form than the job's tables.

    Notes
    -----
    Memory: all rows, without the state of their rules, and a bucket.
    """
    saved = SavedRows.newest(run)
    if (held := saved.source.layout) != layout:
        what = held.difference(layout)
        raise ModelError(f"{saved.source.folder}: holds another model than that of job {saved.job.name}: {what}")
    for span, numbers in saved.source.segments(saved.job):
        out[span.start : span.start + span.length] = numbers
    tables = tables_of_set(saved)
    network.attach(lambda wanted: {name: tables[name].read(keys) for name, keys in wanted.items()})
