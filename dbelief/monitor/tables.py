"""Text of a job's tables of rows for displays, from the figures of the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dbelief.monitor.format import si


def table_line(table: Mapping[str, Any]) -> str:
    """The figures of one table in one line."""
    parts = [f"table {table['name']}: {table['rows']:,} rows, {si(table['bytes'], 'B')}"]
    reads = table["cache_reads"]
    parts += [f"{table['cache_hits'] / reads:.1%} of {reads:,} keys found in caches"] if reads else []
    parts += [f"{table['evicted']:,} evicted"] if table["evicted"] else []
    parts += [f"full, {table['refused']:,} gradients of keys without a row dropped"] if table["refused"] else []
    return ", ".join(parts)
