"""Tables of the results of `dbelief bench wire`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_NUMBERS = (("p50_ms", 1), ("p99_ms", 1), ("gb_per_s", 2), ("x", 2))
TURNS = ("pull", "push", "put", "round trip", "exchange", "copy")


def show(found: dict[str, Any]) -> None:
    """Print the results as tables."""
    console = Console()
    for mib in dict.fromkeys(row["mib"] for row in found["ways"]):
        console.print(ways_table([row for row in found["ways"] if row["mib"] == mib]))
    console.print(_crowds(found["crowds"]))
    for one in found["small"]:
        console.print(
            f"{one['parameters']:,} parameters in {one['segments']} segments on {one['shards']} shards, "
            f"{one['transport']}: {one['cpu_ms_per_step']:.2f} ms of processor time per step, "
            f"{one['worker_cpu_ms']:.2f} in the worker, {one['shards_cpu_ms']:.2f} in the shards; "
            f"{one['wall_ms']:.2f} ms by the clock"
        )


def ways_table(rows: list[dict[str, Any]]) -> Table:
    """A table of one size, with a section for each way and a line for each of its operations."""
    first = rows[0]
    table = Table("", "", "p50 ms", "p99 ms", "GB/s", "x")
    table.title = f"{first['mib']} MiB, {first['rounds']} rounds; x: the socket's time over this one's"
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = sorted((row for row in rows if row["way"] == way), key=lambda row: TURNS.index(row["what"]))
        for row in mine:
            numbers = (f"{row[name]:.{places}f}" for name, places in _NUMBERS)
            table.add_row(way if row is mine[0] else "", row["what"], *numbers, end_section=row is mine[-1])
    return table


def _crowds(rows: list[dict[str, Any]]) -> Table:
    table = Table("workers", "shards", "", "", "turns", "p50 ms", "p99 ms", "GB/s of all")
    if rows:
        table.title = f"workers at the same time, {rows[0]['mib']} MiB each turn"
    for row in rows:
        numbers = (f"{row[name]:.{places}f}" for name, places in (("p50_ms", 1), ("p99_ms", 1), ("gb_per_s", 2)))
        table.add_row(
            str(row["workers"]), str(row["shards"]), row["transport"], row["what"], str(row["turns"]), *numbers
        )
    return table
