"""Bytes of parameters transferred between a rank and the shards, as encoded by the job's codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dbelief.codec import one_bit, packed_rows, top_k, whole_numbers
from dbelief.codec.float16 import SCALE_BYTES
from dbelief.job import Wire
from dbelief.sparse.row_form import KEY_BYTES
from dbelief.sparse.table import SparseTable

BYTES: Mapping[str, float] = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "int8": 1 + 4 / whole_numbers.BLOCK,
    "int4": 1 / 2 + 4 / whole_numbers.BLOCK,
    "one-bit": 1 / 8 + 8 / one_bit.BLOCK,
    "threshold": 4,  # if all numbers exceed it; the actual share is only known in training
}
"""Bytes per number, in long payloads; those of top-k depend on its share."""


def fetched_bytes(wire: Wire, numbers: float) -> int:
    """Bytes of a fetch of `numbers` numbers, if all have changed."""
    return math.ceil(BYTES[wire.pull] * numbers)


def pushed_bytes(wire: Wire, numbers: float) -> int:
    """Bytes of a push of `numbers` numbers; with a threshold, the upper bound."""
    if wire.push.name == "top-k":
        return math.ceil(top_k.TopK(**wire.push.options).block_bytes / top_k.BLOCK * numbers)
    return math.ceil(BYTES[wire.push.name] * numbers)


@dataclass(frozen=True)
class RowTraffic:
    """Bytes of rows of tables that a replica exchanges in a mini-batch.

    Attributes
    ----------
    pushed
        Keys and gradients, where each mini-batch is pushed: a push of several has the distinct keys of all of them.
    asked, fetched
        Keys of the rows that are pulled, and these rows.
    pulls
        Pulls of rows: one for each table, or for several together.
    """

    pushed: int = 0
    asked: int = 0
    fetched: int = 0
    pulls: int = 0

    @classmethod
    def of(cls, wire: Wire, table: SparseTable, keys: int) -> RowTraffic:
        """Of one table, with so many distinct keys: each bucket that has some has a payload of its own."""
        buckets = table.count * (1 - (1 - 1 / table.count) ** keys)  # on average, as keys are spread by hashes
        asked, numbers = KEY_BYTES * keys, table.width * keys
        pushed: float = asked + 4 * numbers
        if table.push in packed_rows.NAMES:
            pushed = buckets * packed_rows.payload_bytes(table.push, keys / buckets, table.width)
        codec = table.pull or wire.pull
        fetched = BYTES[codec] * numbers + (SCALE_BYTES * buckets if codec == "fp16" else 0)
        return cls(math.ceil(pushed), asked, math.ceil(fetched), 1)

    def __add__(self, other: RowTraffic) -> RowTraffic:
        """Of both."""
        pushed, asked = self.pushed + other.pushed, self.asked + other.asked
        return RowTraffic(pushed, asked, self.fetched + other.fetched, self.pulls + other.pulls)


NO_ROWS = RowTraffic()
"""Of a job without tables, or whose keys are not known."""
