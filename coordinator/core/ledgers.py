"""What the shards' ledgers count of one incarnation's pushes into the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dbelief.core.push import NO_PUSH, LedgerRow


class Applied(NamedTuple):
    """Pushes of one incarnation.

    Attributes
    ----------
    lowest
        The last push that every segment has applied, or counts as lost.
    highest
        Number of the last push that some segment has applied, or counts as lost.
    lost
        Pushes among them that were acknowledged, and lost with an earlier incarnation of a shard: the most over the
        shards.
    """

    lowest: LedgerRow = NO_PUSH
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
            min(row.lowest for row in rows) if len(rows) == len(shards) else NO_PUSH,
            max(row.highest for row in rows),
            max(row.lost for row in rows),
        )
        for incarnation, rows in found.items()
    }
