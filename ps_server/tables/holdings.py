"""What a shard holds of each table, for heartbeats and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class TableHoldings:
    """Sums over the buckets of one table.

    Attributes
    ----------
    rows, nbytes
        Its rows, and the bytes that they take with their state and index.
    evicted
        Rows removed since this incarnation of the shard began.
    refused
        Keys that got no row because the table was full, counted at each push.
    """

    rows: int = 0
    nbytes: int = 0
    evicted: int = 0
    refused: int = 0


def total(parts: Iterable[TableHoldings]) -> TableHoldings:
    """Sum of some parts of one table."""
    made = TableHoldings()
    for one in parts:
        made.rows += one.rows
        made.nbytes += one.nbytes
        made.evicted += one.evicted
        made.refused += one.refused
    return made
