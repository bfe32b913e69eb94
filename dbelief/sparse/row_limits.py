"""When a key of a table gets a row, and when a row is removed."""

from __future__ import annotations

from dataclasses import dataclass, replace

_FEWEST_COUNTERS = 1024


@dataclass(frozen=True)
class RowLimits:
    """Limits of a table's rows, or of a bucket's; by default there are none.

    Attributes
    ----------
    after
        Pushes with a key until it gets a row: 1 to 255, as a counter has 8 bits.
    counters
        Bytes in which pushes with keys that have no row are counted. Used with `after` above 1.
    most
        Rows, beyond which no key gets one.
    recent
        Rows, beyond which those are removed whose last push is the longest ago.
    ttl_s
        Whole seconds since its last push after which a row is removed.
    """

    after: int = 1
    counters: int = 0
    most: int | None = None
    recent: int | None = None
    ttl_s: int | None = None

    def of_bucket(self, buckets: int) -> RowLimits:
        """Limits of one of so many buckets: an equal share, rounded up; of counters to a power of two."""

        def share(rows: int | None) -> int | None:
            return None if rows is None else -(-rows // buckets)

        counters = max(_FEWEST_COUNTERS, 1 << (-(-self.counters // buckets) - 1).bit_length())
        return replace(self, counters=counters, most=share(self.most), recent=share(self.recent))


NO_LIMITS = RowLimits()
"""A key gets a row at its first push, and no row is removed."""
