"""The table of a check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

COLOURS = {"ok": "green", "skipped": "yellow", "failed": "red", "timeout": "red"}


def make(measured: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], stand_in: bool) -> Table:
    """A line for each figure, below the state of its part."""
    caption = f"{measured['device']}, driver {measured['driver'] or '?'}, CuPy {measured['cupy'] or '?'}"
    seconds, processor_s = (sum(row[name] for row in rows) for name in ("seconds", "processor_s"))
    caption += f"; {seconds:.0f} s, and {processor_s:.0f} s of processor time"
    title = "THE STAND-IN FOR A DEVICE: its figures say nothing of a device" if stand_in else "Check of a device"
    table = Table("part", "state", "s, of", "what", "value", "beside", title=title, caption=caption)
    for row in rows:
        state, took = row["state"], f"{row['seconds']:.0f}, {row['bound_s']:.0f}"
        table.add_row(row["name"], f"[{COLOURS[state]}]{state}[/]", took, escape(row["reason"]), "", "")
        for figure in row["figures"]:
            beside = ", ".join(f"{name} {number:.4g}" for name, number in figure["beside"].items())
            value = f"{figure['value']:.4g} {figure['unit']}".strip()
            table.add_row("", "", "", escape(figure["what"]), escape(value), escape(beside))
        table.add_section()
    return table
