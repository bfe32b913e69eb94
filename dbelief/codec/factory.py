"""Codecs by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .bfloat16 import BFloat16
from .codec import Codec
from .float16 import Float16
from .one_bit import OneBit
from .threshold import Threshold
from .top_k import TopK
from .whole_numbers import Int4, Int8

CODECS: Mapping[str, type[Float16 | BFloat16 | Int8 | OneBit | Threshold | TopK]] = {
    made.name: made for made in (Float16, BFloat16, Int8, Int4, OneBit, Threshold, TopK)
}
"""By their names in job files. A payload needs nothing but its codec's `decode` to be read."""


def make_codec(name: str, options: Mapping[str, Any]) -> Codec | None:
    """Make a codec from plain words; None for "fp32", numbers as they are.

    Raises
    ------
    ValueError
        There is no such codec, or an option is out of its range.
    """
    if name == "fp32":
        return None
    if name not in CODECS:
        raise ValueError(f"no codec {name!r}; there is: fp32, {', '.join(CODECS)}")
    made: Codec = CODECS[name](**options)
    return made


def warm_up(codec: Codec | None) -> None:
    """Compile a codec's loops, or load them from the cache, so that no message waits for it."""
    if codec is not None:
        number = np.ones(1, np.float32)
        codec.decode(codec.encode(number, number.copy()).data, number)
