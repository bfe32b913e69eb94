"""Which texts, numbers and dates of a table stand for a missing value."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from .dates import day_of


@dataclass(frozen=True, eq=False)
class MissingValues:
    """Texts that stand for a missing value; where one is a number or a date, every form of that does.

    An empty text, None and NaN always do.

    Attributes
    ----------
    texts
        Without blanks around them.
    numbers : float64, shape (n,)
        Those of the texts that are numbers.
    nan
        Whether every text that is a NaN does.
    days : float64, shape (n,)
        Those of the texts that are dates, as days since 1970.
    """

    texts: frozenset[str]
    numbers: np.ndarray
    nan: bool
    days: np.ndarray

    @classmethod
    def of(cls, markers: Collection[str]) -> Self:
        """Those of a job's markers."""
        texts = frozenset(marker.strip() for marker in markers)
        found = [number for text in texts if (number := number_of(text)) is not None]
        numbers = np.array([number for number in found if not math.isnan(number)], np.float64)
        return cls(texts, numbers, len(numbers) < len(found), np.array([*_days_of(texts)], np.float64))

    def has_text(self, text: str) -> bool:
        """Whether a text stands for a missing value."""
        text = text.strip()
        if not text or text in self.texts:
            return True
        number = number_of(text) if self.nan or len(self.numbers) else None
        return number is not None and (self.nan if math.isnan(number) else bool((self.numbers == number).any()))

    def has_date(self, text: str) -> bool:
        """Whether a text of a column of dates does."""
        return self.has_text(text) or (len(self.days) > 0 and any(day in self.days for day in _days_of([text.strip()])))

    def has(self, value: Any) -> bool:
        """Whether a value of any type does."""
        if isinstance(value, str):
            return self.has_text(value)
        if isinstance(value, int | float | np.number | np.bool_):
            return bool(self.among(np.asarray(value)).any())
        return value is None or self.has_text(str(value)) or str(value) in ("NaT", "<NA>")  # of NumPy and pandas

    def present_days(self, days: np.ndarray) -> np.ndarray:
        """Days since 1970 with NaN for those that stand for a missing value."""
        return np.where(np.isin(days, self.days), np.nan, days) if len(self.days) else days

    def among(self, numbers: np.ndarray) -> np.ndarray:
        """Where numbers stand for a missing value: bool. Floats are compared in their own type."""
        if numbers.dtype.kind != "f":
            return np.asarray(np.isin(numbers, self.numbers))
        with np.errstate(over="ignore"):
            return np.asarray(np.isnan(numbers) | np.isin(numbers, self.numbers.astype(numbers.dtype)))


def _days_of(texts: Collection[str]) -> Iterator[float]:
    for text in texts:
        if number_of(text) is None:  # 19000101 is a number
            with suppress(ValueError):
                yield day_of(text)


def number_of(text: str) -> float | None:
    """The number that a text is, infinity and NaN among them, or None."""
    try:
        return None if "_" in text else float(text)  # Python parses 1_0 as 10
    except ValueError:
        return None
