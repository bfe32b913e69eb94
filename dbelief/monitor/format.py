"""Numbers, sizes and times as plain text for display, so that formatting them imports no drawing library."""

NONE = "–"
"""Placeholder for a number that is not available yet."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def plural(count: int, noun: str, several: str | None = None) -> str:
    """A count with its noun: 1 shard, 2,000 shards; `several`: a plural that is not formed with -s."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def loss_text(value: float | None) -> str:
    """A loss with four digits after the point, or in powers of ten where it is large; a dash where it is None."""
    return NONE if value is None else f"{value:.4f}" if abs(value) < 10_000 else f"{value:.4g}"


def number(value: float | None, form: str) -> str:
    """A number in a format, or a dash where it is None."""
    return NONE if value is None else format(value, form)


def percent(share: float | None, form: str = ".2f") -> str:
    """A share from 0 to 1 in percent, or a dash where it is None."""
    return NONE if share is None else f"{100 * share:{form}} %"


def size(count: int) -> str:
    """Bytes for display."""
    value, unit = float(count), 0
    while value >= 1024 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.4g} {_UNITS[unit]}"


def si(value: float, unit: str) -> str:
    """A quantity of three digits for display, in powers of 1000: 1.5 MB/s."""
    power = 0
    while value >= 1000 and power + 1 < len(_PREFIXES):
        value, power = value / 1000, power + 1
    return f"{value:.3g} {_PREFIXES[power]}{unit}"


def duration(seconds: float) -> str:
    """Seconds for display: 8 s, 2:05, 1:02:05."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def short_time(seconds: float) -> str:
    """A time of three digits for display, in seconds or milliseconds: 1.25 s, 40 ms."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
