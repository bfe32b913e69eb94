"""Grid of settings: fields with several values each, and all their combinations."""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dbelief.errors import UserError

LONGEST_NAME = 64
"""Characters allowed in a job's name."""
SEED = "seed"
_OPEN, _CLOSE, _QUOTES = "[{", "]}", "'\""


@dataclass(frozen=True)
class GridPoint:
    """One combination of values.

    Attributes
    ----------
    settings
        Value of each field, as text that a job file could hold.
    name
        Name of its run: the same in every grid that contains these settings.
    """

    settings: Mapping[str, str]
    name: str

    @property
    def words(self) -> str:
        """The settings on one line."""
        return " ".join(f"{field}={value}" for field, value in self.settings.items())


def points(sets: Mapping[str, str]) -> list[GridPoint]:
    """Every combination of the values of some fields.

    Parameters
    ----------
    sets : mapping of field to values
        Comma-separated values, as in {"lr": "0.02,0.04"}; a comma in brackets, braces or quotes is part of a value.

    Returns
    -------
    list of GridPoint
        The first field's values change slowest, except for the seed's: all settings for one seed, then for the next.

    Raises
    ------
    UserError
        There is no field, a field that is set separately for each run, or a value is missing; names the field.
    """
    if not sets:
        raise UserError("nothing to sweep: give values of a field, as --set lr=0.02,0.04,0.08")
    for field in ("name", "output"):
        if field in sets:
            raise UserError(
                f"--set {field}={sets[field]}: runs are named by their settings, below the folder of --output"
            )
    axes = {field: _values(field, text) for field, text in sets.items()}
    slowest_first = sorted(axes, key=lambda field: field != SEED)
    found = [
        dict(zip(slowest_first, values, strict=True))
        for values in itertools.product(*(axes[field] for field in slowest_first))
    ]
    settings = [{field: one[field] for field in axes} for one in found]
    names = _names(settings)
    return [GridPoint(one, name) for one, name in zip(settings, names, strict=True)]


def short_names(fields: Iterable[str]) -> dict[str, str]:
    """Short name of each field: the last part of its path, where that is unique among them."""
    ends = {field: field.rpartition(".")[2] for field in fields}
    taken = Counter(ends.values())
    return {field: end if taken[end] == 1 else field for field, end in ends.items()}


def _values(field: str, text: str) -> list[str]:
    """The comma-separated values, without duplicates."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES and not values[-1].strip():
            quote = character  # elsewhere the character is an apostrophe
        depth += (character in _OPEN) - (character in _CLOSE) if not quote else 0
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    values = [value.strip() for value in values]
    if "" in values:
        raise UserError(f"--set {field}={text}: a value is missing; none is written null")
    return list(dict.fromkeys(values))


def _names(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Name of each combination: lr-0.02_batch-32; a name that is too long or not unique ends with a digest."""
    short = short_names(settings[0])
    plain = ["_".join(f"{short[field]}-{_plain(value)}" for field, value in one.items()) for one in settings]
    taken = Counter(plain)
    return [
        name if len(name) <= LONGEST_NAME and taken[name] == 1 else f"{name[: LONGEST_NAME - 9]}-{_digest(one)}"
        for name, one in zip(plain, settings, strict=True)
    ]


def _plain(value: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", ".", value).strip(".") or "x"


def _digest(settings: Mapping[str, str]) -> str:
    return hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]
