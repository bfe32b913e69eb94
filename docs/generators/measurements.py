"""Measurement files: what a command printed, its origin, and the tables that are made of it.

`docs/measurements/NAME.json` has the keys

* `measured`: command, day, processor, cores, commit. `benchmarks.measure` runs the command and writes the file anew.
* `settings`: what the command does not say, in one sentence; `needs`: environment variables that it needs.
* `minutes`: how long it takes.
* `figures`: the line of JSON that the command printed. Where it prints none, `patterns` are regular expressions with
  named groups, and each place of the output that fits one is a row of `figures.rows`.
* `tables`: by name, "" for the only one, the recipe of a table (`Recipe`).

Pictures (`plots`) and tables come from the same figures, so that none disagrees with another.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tables import code, table

FOLDER = Path(__file__).parents[1] / "measurements"
USUAL_CORES = 2
"""Cores of the machine, which tables do not repeat."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    head
        Its title, with the unit.
    text
        A cell, as `str.format` makes it of a row. A field that is a list gives its items with commas between; one that
        is missing or null makes the cell empty. Conversions: `Scaled`.
    spread
        By how much a number may differ when it is measured again: `"30 %"` of it, or `"0.2"` in the unit of the
        figures. "": not at all.
    """

    head: str
    text: str
    spread: str = ""

    def used(self, old: float, new: float) -> float:
        """How far a number measured again is from what was measured, as a share of the spread: at most 1 is within."""
        if old == new:
            return 0.0
        share = self.spread.endswith("%")
        bound = abs(old) * float(self.spread[:-1]) / 100 if share else float(self.spread or 0)
        return abs(new - old) / bound if bound else math.inf

    def fields(self) -> list[str]:
        """Names of the row's fields that the cell shows, as `str.format` writes them."""
        return [field for _, field, _, _ in string.Formatter().parse(self.text) if field is not None]


@dataclass(frozen=True)
class Recipe:
    """How a table is made of a file's figures.

    Attributes
    ----------
    rows
        Where the figures have a list of rows, or one row: keys with dots between; "": the figures are the row.
    where
        Only rows with these values are shown.
    pivot
        Three keys of the rows found, the row, the column and the value of a number: a row of the table has the first
        key, and a field for each column.
    words
        Texts of rows, and what the table shows in their place.
    """

    columns: tuple[Column, ...]
    rows: str = "rows"
    where: Row | None = None
    pivot: tuple[str, str, str] | None = None
    words: Mapping[str, str] | None = None

    def rows_of(self, figures: Any) -> list[Row]:
        """The rows that the table shows."""
        found = figures
        for key in filter(None, self.rows.split(".")):
            found = found[key]
        rows = [found] if isinstance(found, dict) else list(found)
        rows = [row for row in rows if all(row.get(key) == value for key, value in (self.where or {}).items())]
        return _pivoted(rows, *self.pivot) if self.pivot else rows


@dataclass(frozen=True)
class Measurement:
    """A measurement file; the module describes its keys."""

    name: str
    measured: Mapping[str, Any]
    figures: Mapping[str, Any]
    tables: Mapping[str, Recipe]
    settings: str = ""
    needs: tuple[str, ...] = ()
    minutes: float = 1.0
    patterns: tuple[str, ...] = ()

    def origin(self) -> str:
        """Command, machine and settings, as a paragraph."""
        found = self.measured
        cores = "" if found["cores"] == USUAL_CORES else f", {found['cores']} cores"
        place = f"{found['day']}, {found['processor']}{cores}, {found['commit']}."
        return f"{code(found['command'])}; {place}{' ' if self.settings else ''}{self.settings}\n"

    def table(self, name: str = "") -> str:
        """A table in Markdown.

        Raises
        ------
        ValueError
            A column's field is in none of the rows, or there is no row.
        """
        recipe, cells = self.tables[name], self.cells(name)
        if not cells:
            raise ValueError(f"{self.name}: no row for the table {name!r}")
        for number, column in enumerate(recipe.columns):
            if not any(line[number] for line in cells):
                raise ValueError(f"{self.name}: {column.text!r} fits none of the rows")
        return table([column.head for column in recipe.columns], cells)

    def cells(self, name: str = "") -> list[list[str]]:
        """The texts of a table, row by row; a row must have more than its name."""
        recipe = self.tables[name]
        scaled = Scaled(recipe.words or {})
        rows = [[scaled.cell(one.text, row) for one in recipe.columns] for row in recipe.rows_of(self.figures)]
        return [row for row in rows if any(row[1:])]


class Scaled(string.Formatter):
    """Formats cells: lists, missing values, and conversions that scale a number.

    `{x!m}`: times 1,000, `u` times 10^6, `c` times 100, `k` over 1,000, `M` over 10^6, `G` over 10^9, `i` over 2^20
    (MiB); `t`: the sum of a list.
    """

    SCALES: Mapping[str, float] = {"m": 1e3, "u": 1e6, "c": 1e2, "k": 1e-3, "M": 1e-6, "G": 1e-9, "i": 2.0**-20}

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words

    def cell(self, text: str, row: Row) -> str:
        """A cell; "" where the row has no such field, or null in it."""
        try:
            return self.vformat(text, (), row)
        except (KeyError, IndexError, _Missing):
            return ""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """See `string.Formatter`."""
        if conversion == "t":
            return sum(value) if value else None
        if conversion not in self.SCALES:
            return super().convert_field(value, conversion)
        scale = self.SCALES[conversion]
        return [scale * one for one in value] if isinstance(value, list) else value if value is None else scale * value

    def format_field(self, value: Any, format_spec: str) -> Any:
        """See `string.Formatter`."""
        if value is None:
            raise _Missing
        if isinstance(value, list):
            return ", ".join(format(one, format_spec) for one in value)
        if isinstance(value, str) and not format_spec:
            return self.words.get(value, value)
        return super().format_field(value, format_spec)


class _Missing(Exception):
    """A field is null."""


def _pivoted(rows: Sequence[Row], of_row: str, of_column: str, of_value: str) -> list[Row]:
    """See `Recipe.pivot`; of two values of one place the first counts."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row[of_row], {of_row: row[of_row]}).setdefault(str(row[of_column]), row[of_value])
    return list(found.values())


def names() -> list[str]:
    """All measurement files."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> Measurement:
    """A measurement file.

    Raises
    ------
    ValueError
        It is no measurement file; the message names the file and the key.
    """
    path = FOLDER / f"{name}.json"
    try:
        return parse(name, json.loads(path.read_text()))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a measurement file: {error!r}") from None


def command(name: str) -> str:
    """The command of a measurement file, as a paragraph."""
    return f"Measured by {code(load(name).measured['command'])}.\n"


def parse(name: str, found: Mapping[str, Any]) -> Measurement:
    """A measurement of what a file holds."""
    return Measurement(
        name,
        {key: found["measured"][key] for key in ("command", "day", "processor", "cores", "commit")},
        found["figures"],
        {key: _recipe(**recipe) for key, recipe in found["tables"].items()},
        found.get("settings", ""),
        tuple(found.get("needs", ())),
        found.get("minutes", 1.0),
        tuple(found.get("patterns", ())),
    )


def _recipe(columns: Sequence[Sequence[str]], **more: Any) -> Recipe:
    return Recipe(tuple(Column(*column) for column in columns), **more)


def figures_in(output: str, patterns: Sequence[str]) -> dict[str, Any]:
    """Figures that a command printed: its last line that is a JSON object, or rows of all that fits the patterns.

    Raises
    ------
    ValueError
        There is neither.
    """
    if patterns:
        places = [found for pattern in patterns for found in re.finditer(pattern, output, re.MULTILINE)]
        if not places:
            raise ValueError(f"the output has nothing like {' or '.join(patterns)}")
        return {"rows": [{key: _number(text) for key, text in found.groupdict().items()} for found in places]}
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            figures: dict[str, Any] = json.loads(line)
            figures.pop("measured", None)
            return figures
    raise ValueError("the output has no line of JSON")


def _number(text: str | None) -> Any:
    bare = (text or "").replace(",", "")
    if re.fullmatch(r"[-+]?\d+", bare):
        return int(bare)
    return float(bare) if re.fullmatch(r"[-+]?\d*\.\d+(e[-+]?\d+)?", bare) else text


@dataclass(frozen=True)
class Again:
    """A cell that was measured again.

    Attributes
    ----------
    row, column
        The row's first cell, and the column's title.
    names
        Whether it is the row's name, and no figure: it is the first, and states no spread.
    before, now
        Its texts in the file, and now.
    used
        The share of the spread that the largest difference of its numbers takes: above 1 where it is beyond, and where
        the cell is missing now.
    """

    row: str
    column: str
    names: bool
    before: str
    now: str
    used: float


def compared(old: Measurement, new: Measurement) -> Iterator[Again]:
    """What was measured again, cell by cell.

    Raises
    ------
    ValueError
        A table has another number of rows.
    """
    for recipe in old.tables.values():
        rows = zip(*_same_number(recipe.rows_of(old.figures), recipe.rows_of(new.figures)), strict=True)
        texts = Scaled(recipe.words or {})
        for before, now in rows:
            for column in recipe.columns:
                used = max((_used(column, field, before, now) for field in column.fields()), default=0.0)
                name, old_text, new_text = (
                    texts.cell(text, row)
                    for text, row in ((recipe.columns[0].text, before), (column.text, before), (column.text, now))
                )
                names = column is recipe.columns[0] and not column.spread
                yield Again(name, column.head, names, old_text, new_text, used)


def _same_number(old: list[Row], new: list[Row]) -> tuple[list[Row], list[Row]]:
    if len(old) != len(new):
        raise ValueError(f"{len(new)} rows, and the file has {len(old)}")
    return old, new


def _used(column: Column, field: str, before: Row, now: Row) -> float:
    old, new = (_field(field, row) for row in (before, now))
    if isinstance(old, list) and isinstance(new, list):
        return 0.0  # all runs; the row has their median too
    if isinstance(old, int | float) and isinstance(new, int | float):
        return column.used(old, new)
    return 0.0 if old == new else math.inf


def _field(field: str, row: Row) -> Any:
    """A field of a row; None where the cell is empty."""
    try:
        return string.Formatter().get_field(field, (), row)[0]
    except (KeyError, IndexError, TypeError):
        return None


def text_of(found: Mapping[str, Any]) -> str:
    """The text of a measurement file: a key a line, and each item of a list of figures on a line of its own."""
    keys = [
        f" {json.dumps(key)}: {_laid_out(value, {'figures': 2, 'tables': 3}.get(key, 0))}"
        for key, value in found.items()
    ]
    return "{\n" + ",\n".join(keys) + "\n}\n"


def _laid_out(value: Any, depth: int, indent: str = "  ") -> str:
    if not depth or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(indent + json.dumps(one, ensure_ascii=False) for one in value) + f"\n{indent[1:]}]"
    items = [f"{indent}{json.dumps(key)}: {_laid_out(one, depth - 1, indent + ' ')}" for key, one in value.items()]
    return "{\n" + ",\n".join(items) + f"\n{indent[1:]}}}"
