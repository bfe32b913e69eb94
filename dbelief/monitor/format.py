"""Numbers and times as plain text for display, so that formatting them imports no drawing library."""

NONE = "–"
"""Placeholder for a number that is not available yet."""


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 shard, 2,000 shards."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def number(value: float | None, form: str) -> str:
    """A number in a format, or a dash where it is None."""
    return NONE if value is None else format(value, form)


def duration(seconds: float) -> str:
    """Seconds for display: 8 s, 2:05, 1:02:05."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
