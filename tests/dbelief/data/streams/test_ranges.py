"""Units of samples that are found by index."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dbelief.data.streams.ranges import Ranges


def test_a_unit_is_called_by_its_first_and_last_sample() -> None:
    samples: Any = SimpleNamespace(where="rows.py:data", features=(1,), dtype=np.dtype(np.float32), width=None)
    units = Ranges(samples, np.arange(7), 3)
    assert units.sizes == [3, 3, 1]
    assert [units.called(unit) for unit in range(3)] == [
        "rows.py:data, samples 0 to 2 of the set",
        "rows.py:data, samples 3 to 5 of the set",
        "rows.py:data, samples 6 to 6 of the set",
    ]
