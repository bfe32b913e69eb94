"""Bytes of parameters on their way between a rank and the shards, as the job's codecs write them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dbelief.codec.one_bit import BLOCK
from dbelief.job import Wire

BYTES: Mapping[str, float] = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "one-bit": 1 / 8 + 8 / BLOCK,
    "threshold": 4,  # where every number is above it; how many are, only training tells
}
"""Of a number, in long payloads."""


def fetched_bytes(wire: Wire, numbers: float) -> int:
    """Of a fetch of so many numbers, where all has changed."""
    return math.ceil(BYTES[wire.pull] * numbers)


def pushed_bytes(wire: Wire, numbers: float) -> int:
    """Of a push of so many; with a threshold at most."""
    return math.ceil(BYTES[wire.push.name] * numbers)
