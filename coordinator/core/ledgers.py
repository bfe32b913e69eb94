"""What the shards' ledgers count of one incarnation's pushes into the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Applied(NamedTuple):
    """Pushes of one incarnation.

    Attributes
    ----------
    lowest, highest
        Numbers of the last push that every segment, and that some segment, has applied, or counts as lost.
    lost
        Pushes among them that were acknowledged, and lost with an earlier incarnation of a shard: the most over the
        shards.
    """

    lowest: int = 0
    highest: int = 0
    lost: int = 0


def merge_ledgers(shards: Sequence[Mapping[int, Applied]]) -> dict[int, Applied]:
    """Merge the ledgers of all shards that hold segments, each by incarnation."""
    found: dict[int, list[Applied]] = {}
    for ledger in shards:
        for incarnation, row in ledger.items():
            found.setdefault(incarnation, []).append(row)
    return {
        incarnation: Applied(
            min(row.lowest for row in rows) if len(rows) == len(shards) else 0,
            max(row.highest for row in rows),
            max(row.lost for row in rows),
        )
        for incarnation, rows in found.items()
    }
