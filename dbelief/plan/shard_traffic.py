"""Bytes of parameters transferred between a rank and the shards, as encoded by the job's codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dbelief.codec import one_bit, top_k, whole_numbers
from dbelief.job import Wire

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
