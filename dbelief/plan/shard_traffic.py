"""Bytes of parameters transferred between a rank and the shards, as encoded by the job's codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dbelief.codec import one_bit, top_k, whole_numbers
from dbelief.job import Wire
from dbelief.sparse.row_form import KEY_BYTES

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
        Pulls of rows: one for each table.
    """

    pushed: int = 0
    asked: int = 0
    fetched: int = 0
    pulls: int = 0

    @classmethod
    def of(cls, wire: Wire, width: int, keys: int) -> RowTraffic:
        """Of one table, with so many distinct keys of rows of this width; gradients of rows are not encoded."""
        asked = KEY_BYTES * keys
        return cls(asked + 4 * width * keys, asked, fetched_bytes(wire, width * keys), 1)

    def __add__(self, other: RowTraffic) -> RowTraffic:
        """Of both."""
        pushed, asked = self.pushed + other.pushed, self.asked + other.asked
        return RowTraffic(pushed, asked, self.fetched + other.fetched, self.pulls + other.pulls)


NO_ROWS = RowTraffic()
"""Of a job without tables, or whose keys are not known."""
