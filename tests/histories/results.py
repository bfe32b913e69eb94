"""What is kept of each history that was checked: one JSON line; and the table of all of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from .plan import Plan

PER_OPERATIONS = 10_000
"""Operations that the seconds of a check are stated for."""


@dataclass(frozen=True)
class Result:
    """One history that was recorded and checked.

    Attributes
    ----------
    number, kind, transport, exchanges
        Of its plan.
    calls, operations
        Calls of clients; operations on segments, of which each call makes one for each segment.
    faults
        How often each kind of fault has really happened.
    run_s, check_s
        Seconds from the start of the first process to the end of the last, and of the checks.
    anomalies
        What was found, one text for each segment without an order and each violation of a weaker guarantee.
    """

    number: int
    kind: str
    transport: str
    exchanges: bool
    calls: int
    operations: int
    faults: dict[str, int]
    run_s: float
    check_s: float
    anomalies: list[str]

    @property
    def check_s_per(self) -> float:
        """Seconds of the check for 10,000 operations."""
        return self.check_s * PER_OPERATIONS / max(1, self.operations)


def append(file: Path, result: Result) -> None:
    """Add a line."""
    with file.open("a") as lines:
        lines.write(json.dumps(asdict(result)) + "\n")


def read(file: Path) -> list[Result]:
    """All results so far; a last line that is incomplete does not count, and is cut off."""
    if not file.exists():
        return []
    text = file.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [Result(**json.loads(line)) for line in whole.splitlines()]


def table(results: Sequence[Result]) -> str:
    """Histories, operations, faults, anomalies and seconds, by kind, transport and calls."""
    rows = ["| histories of | histories | calls | operations | anomalies |", "|---|---|---|---|---|"]
    groups = [
        *sorted({(result.kind, "kind") for result in results}),
        *sorted({(result.transport, "transport") for result in results}),
    ]
    for value, name in groups:
        rows.append(_row(value, [result for result in results if getattr(result, name) == value]))
    for exchanges, name in ((False, "push and pull"), (True, "exchange and pull")):
        rows.append(_row(name, [result for result in results if result.exchanges is exchanges]))
    rows.append(_row("with rows of tables", [result for result in results if Plan.of(result.number).tables]))
    rows.append(_row("all", results))
    faults = sum((Counter(result.faults) for result in results), Counter[str]())
    seconds = [result.check_s_per for result in results] or [0.0]
    rows += [
        "",
        "An operation is a call on one segment as an object; calls are of clients, on all segments at once.",
        "Faults: " + ", ".join(f"{name} {times:,}" for name, times in sorted(faults.items())) + ".",
        f"Check of {PER_OPERATIONS:,} operations: {median(seconds):.2f} s (median), {max(seconds):.2f} s (worst).",
        f"Recorded in {sum(result.run_s for result in results) / 60:.0f} min.",
    ]
    return "\n".join(rows)


def _row(name: str, results: Sequence[Result]) -> str:
    calls, operations = sum(result.calls for result in results), sum(result.operations for result in results)
    return f"| {name} | {len(results)} | {calls:,} | {operations:,} | {sum(len(r.anomalies) for r in results)} |"
