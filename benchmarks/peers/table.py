"""Rows of the comparison: medians over the rounds, texts of cells, and which of them are bold.

A cell of another system is bold where it is better than that of the row "dbelief", on slow links than that of
"dbelief, diloco".
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

Row = dict[str, Any]
REFERENCE, LINKED = "dbelief", "dbelief, diloco"
GOES_ON = ("yes", "started again", "no")
"""The best first."""
NO_FIGURES = ("failed", "trouble", "round", "part")


@dataclass(frozen=True)
class Column:
    """A figure of a row.

    Attributes
    ----------
    better
        1: more is better; -1: less is.
    text
        Format of a number.
    reference
        The row that it is compared with.
    """

    key: str
    head: str
    better: int
    text: str = ",.0f"
    reference: str = REFERENCE

    def cell(self, value: Any) -> str:
        """Its text; "" where there is no value."""
        return "" if value is None else value if isinstance(value, str) else format(value, self.text)

    def beats(self, value: Any, other: Any) -> bool:
        """Whether a value is better than another; one that is missing is neither."""
        if value is None or other is None:
            return False
        if isinstance(value, str):
            return GOES_ON.index(value) < GOES_ON.index(other)
        return bool(self.better * (value - other) > 0)


COLUMNS = (
    Column("samples_per_s", "samples/s", 1),
    Column("to_accuracy_s", "s to 97 %", -1, ".1f"),
    Column("cpu_s", "processor s for 1,000 samples", -1, ".3f"),
    Column("bytes", "bytes a sample, TCP", -1),
    Column("slow_share", "speed with a slow worker, %", 1, ".0%"),
    Column("link_samples_per_s", "samples/s on slow links", 1, reference=LINKED),
    Column("lines", "lines of the user", -1, "d"),
)
KILL_COLUMNS = (
    Column("goes_on", "goes on", -1),
    Column("back_s", "s until 90 % of the speed", -1, ".1f"),
    Column("lost", "samples lost", -1),
    Column("doubled", "samples doubled", -1),
    Column("accuracy", "accuracy at the end, %", 1, ".2f"),
)


def middle(values: Sequence[Any]) -> Any:
    """The median; of words the most frequent; None where most are missing."""
    known = [value for value in values if value is not None]
    if 2 * len(known) <= len(values):
        return None
    return statistics.mode(known) if isinstance(known[0], str) else statistics.median(known)


def merged(rows: Iterable[Row], *keys: str) -> list[Row]:
    """One row for each value of these keys, with the medians of all other figures; failed ones count as missing."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for values, group in groups.items():
        names = dict.fromkeys(
            name for row in group for name in row if name not in (*keys, "failed", "trouble", "round")
        )
        one: Row = dict(zip(keys, values, strict=True))
        one |= {name: middle([row.get(name) for row in group]) for name in names}
        one["failed"] = next((row["failed"] for row in group if row.get("failed")), None)
        found.append(one)
    return found


def marked(rows: Sequence[Row], columns: Sequence[Column], *same: str) -> list[Row]:
    """The rows with `cells`, the columns' texts in Markdown; rows that agree in the keys `same` are compared."""
    found = []
    for row in rows:
        cells = {}
        for column in columns:
            alike = (other for other in rows if all(other[key] == row[key] for key in same))
            other = next((other for other in alike if other["system"] == column.reference), {})
            text = column.cell(row.get(column.key))
            peer = not row["system"].startswith(REFERENCE)
            bold = peer and column.beats(row.get(column.key), other.get(column.key))
            cells[column.key] = f"**{text}**" if bold else text
        found.append({**row, "cells": cells})
    return found


def figures(
    runs: Sequence[Row], systems: Sequence[str], missing: Mapping[str, str], lines: Mapping[str, int]
) -> dict[str, Any]:
    """All figures: `rows` of systems, `kills` of systems and roles, `missing` with reasons.

    Parameters
    ----------
    runs
        One for each run, with `system`, `part`, `role` of a kill, `round`, and `failed` where it failed.
    """
    by_part = {part: merged(_of(runs, part), "system") for part in ("speed", "slow", "link")}
    by_system = {part: {row["system"]: row for row in found} for part, found in by_part.items()}
    rows = []
    for system in systems:
        speed = by_system["speed"].get(system, {})
        slow, link = (by_system[part].get(system, {}).get("samples_per_s") for part in ("slow", "link"))
        usual = speed.get("samples_per_s")
        row = {"system": system, **speed, "lines": lines.get(system), "link_samples_per_s": link}
        row["slow_share"] = round(slow / usual, 4) if slow is not None and usual else None
        rows.append({**row, "missing": missing.get(system)})
    kills = merged(_of(runs, "kill"), "role", "system")
    failed = [{key: row.get(key) for key in ("system", "part", "role", "failed")} for row in runs if row.get("failed")]
    shown = marked(rows, COLUMNS)
    for row in shown:
        if row["missing"]:
            row["cells"] = dict.fromkeys(row["cells"], "") | {COLUMNS[0].key: f"took no part: {row['missing']}"}
    return {
        "rows": shown,
        "kills": marked(kills, KILL_COLUMNS, "role"),
        "missing": dict(missing),
        "failed": failed,
        "runs": list(runs),
    }


def _of(runs: Sequence[Row], part: str) -> list[Row]:
    return [row for row in runs if row["part"] == part]


def recipes(found: Mapping[str, Any]) -> dict[str, Any]:
    """How a file of `docs/measurements` makes the tables of these figures; columns without a value are left out."""

    def recipe(rows: str, names: Sequence[tuple[str, str]], columns: Sequence[Column]) -> dict[str, Any]:
        known = [column for column in columns if any(row["cells"][column.key] for row in found[rows])]
        cells = [[column.head, f"{{cells[{column.key}]}}"] for column in known]
        return {"rows": rows, "columns": [[head, f"{{{key}}}"] for head, key in names] + cells}

    made = {"": recipe("rows", [("system", "system")], COLUMNS)}
    if found["kills"]:
        made["kills"] = recipe("kills", [("killed", "role"), ("system", "system")], KILL_COLUMNS)
    return made


def tables(found: Mapping[str, Any]) -> list[Table]:
    """The same tables for the terminal."""
    made = []
    for recipe in recipes(found).values():
        table = Table(*(head for head, _ in recipe["columns"]))
        for row in found[recipe["rows"]]:
            table.add_row(*(_plain(text.format(**row)) for _, text in recipe["columns"]))
        made.append(table)
    return made


def _plain(cell: str) -> str:
    """A cell for the terminal, where Markdown's stars are rich's bold."""
    return f"[bold]{cell.strip('*')}[/bold]" if cell.startswith("**") else cell
