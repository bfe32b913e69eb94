"""Dates of tables as days since 1970."""

from __future__ import annotations

from datetime import UTC, datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_S = 86_400.0


def day_of(text: str) -> float:
    """A date of ISO 8601 as days since 1970-01-01, UTC where it names no zone; ValueError for another text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is {text[:40]!r}, no date such as 2026-02-28 or 2026-02-28T13:30") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - _EPOCH).total_seconds() / _DAY_S
