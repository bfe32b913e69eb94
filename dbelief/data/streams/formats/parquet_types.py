"""What columns of Parquet files can be, by their pyarrow types; pyarrow is imported at the first call."""

from __future__ import annotations

from typing import Any, Literal

from dbelief.data.tables.table_encoder import Kind

_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def plain_type(own: Any) -> Any:
    """The type itself; of a dictionary, which stores each value once, that of its values."""
    import pyarrow

    return own.value_type if pyarrow.types.is_dictionary(own) else own


def own_kind(own: Any) -> Kind | Literal["vector"] | None:
    """The kind of a column of a type; None: its type does not say, or it cannot be an input."""
    import pyarrow

    types, own = pyarrow.types, plain_type(own)
    if types.is_date(own) or types.is_timestamp(own):
        return "date"
    if is_whole(own) or types.is_floating(own) or types.is_decimal(own):
        return "number"
    if is_list(own) and (types.is_integer(own.value_type) or types.is_floating(own.value_type)):
        return "vector"
    return None


def is_list(own: Any) -> bool:
    """Whether values are lists, of any length or of one."""
    import pyarrow

    types = pyarrow.types
    return bool(types.is_list(own) or types.is_large_list(own) or types.is_fixed_size_list(own))


def is_text(own: Any) -> bool:
    """Whether values are texts."""
    import pyarrow

    types, own = pyarrow.types, plain_type(own)
    return bool(types.is_string(own) or types.is_large_string(own) or types.is_string_view(own))


def is_whole(own: Any) -> bool:
    """Whether values are whole numbers, or true and false."""
    import pyarrow

    own = plain_type(own)
    return bool(pyarrow.types.is_integer(own) or pyarrow.types.is_boolean(own))


def per_day(own: Any) -> int:
    """The number that a day is in a type of dates."""
    import pyarrow

    if pyarrow.types.is_timestamp(own):
        return _PER_DAY[own.unit]
    return 1 if pyarrow.types.is_date32(own) else _PER_DAY["ms"]
