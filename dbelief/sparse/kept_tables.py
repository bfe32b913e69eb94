"""What a snapshot set says of the job's tables, and in what the tables of a job that resumes from it differ.

Rows lie in a set by bucket, in the order of the tables: with other tables they would be read as another's, or not at
all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .row_hash import table_salt

if TYPE_CHECKING:
    from dbelief.job.tables import TableSection


def kept_tables(sections: Mapping[str, TableSection], seed: int) -> list[list[Any]]:
    """The tables of a job with this seed, in their order: name, width, rule, buckets and salt of each."""
    return [[name, one.width, one.rule.name, one.buckets, table_salt(seed, name)] for name, one in sections.items()]


def tables_difference(kept: Iterable[Sequence[Any]], sections: Mapping[str, TableSection], seed: int) -> str:
    """In what a job's tables differ from those of a set; "" where they do not."""
    before, now = ({row[0]: tuple(row[1:]) for row in rows} for rows in (kept, kept_tables(sections, seed)))
    listed = ", ".join(now) or "none"
    for name in [*before, *now]:
        if name not in now:
            return f"table {name!r} is in it, and not in the job file, whose tables are: {listed}"
        if name not in before:
            return f"table {name!r} of the job file is not in it; its tables are: {', '.join(before) or 'none'}"
        (width, rule, buckets, salt), (own_width, own_rule, own_buckets, own_salt) = before[name], now[name]
        if width != own_width:
            return f"table {name!r} has rows of {width} numbers in it, and width {own_width} in the job file"
        if rule != own_rule:
            return f"table {name!r} has rows by {rule} in it, and rule {own_rule} in the job file"
        if buckets != own_buckets:
            return f"table {name!r} has {buckets} buckets in it, and {own_buckets} in the job file"
        if salt != own_salt:
            return f"table {name!r} has keys hashed by another seed in it than that of the job file"
    return "" if [*before] == [*now] else f"its tables are in another order: {', '.join(before)}, and not {listed}"
