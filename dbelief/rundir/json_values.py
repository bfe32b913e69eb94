"""Conversion of values to JSON types."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Convert `value` to JSON's own types.

    JSON has neither NaN nor infinity: None (null) replaces both. NumPy scalars and zero-dimensional arrays become
    Python numbers, sequences lists, paths strings.

    Raises
    ------
    ValueError
        A value is of another type.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return plain(value.item())
    raise ValueError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")
