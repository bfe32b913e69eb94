"""Reduction of a run's last group: bytes sent between its workers, and how long each one waits.

All numbers are per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import plural, short_time, size
from dbelief.rundir.folder import REDUCTION

from .pictures import read_fields


class Edge(NamedTuple):
    """Traffic per step that rank `to` receives from rank `source`."""

    source: int
    to: int
    messages: float
    bytes: float
    seconds: float


class ReductionReport:
    """The content of `reduction.json`.

    Attributes
    ----------
    replicas
        Replica of each rank.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        workers = fields["workers"]
        self.way, self.arity = str(fields["way"]), fields.get("arity")
        self.chunk, self.wire = fields.get("chunk"), fields.get("wire")
        self.generation = int(fields["generation"])
        self.steps = max(int(worker["steps"]) for worker in workers)
        self.replicas = [int(worker["replica"]) for worker in workers]
        self.edges = [
            Edge(row["source"], row["to"], *(row[name] / workers[row["to"]]["steps"] for name in Edge._fields[2:]))
            for row in fields["edges"]
        ]

    def described(self) -> str:
        """Description in words."""
        kind = (
            f"a {self.way}"
            if self.way != "tree"
            else f"a tree of arity {self.arity}"
            if self.arity
            else "a binomial tree"
        )
        sent = f", in {self.wire}" if self.wire else ""
        chunks = f", in chunks of {self.chunk:,}" if self.chunk else ""
        who = plural(len(self.replicas), "worker")
        return f"{kind} of {who}{sent}{chunks}; {plural(self.steps, 'step')} of generation {self.generation}"

    def table(self) -> RenderableType:
        """A row for each used connection, ordered by receiver."""
        table = Table(box=None, header_style="dim")
        for name in ("from rank", "to rank"):
            table.add_column(name, no_wrap=True)
        for name in ("messages", "bytes", "wait"):
            table.add_column(name, justify="right", no_wrap=True)
        for edge in sorted(self.edges, key=lambda edge: (edge.to, edge.source)):
            ends = (f"{rank} (replica {self.replicas[rank]})" for rank in (edge.source, edge.to))
            table.add_row(*ends, f"{edge.messages:,.4g}", size(round(edge.bytes)), short_time(edge.seconds))
        return Group(Text(f"\nsums: {self.described()}; each step"), table)


def read_reduction(run: Path) -> ReductionReport | None:
    """The reduction that a run's workers use; None where they use none, or have not run one yet.

    Raises
    ------
    DataError
        The file cannot be read.
    """
    path = run / REDUCTION
    return ReductionReport(read_fields(path, "edges", "reduction")) if path.exists() else None
