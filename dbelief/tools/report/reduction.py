"""Reduction of a run's last group: bytes sent between its workers, and how long each one waits.

As a table, and as `reduction.png`: the tree, the server or the ring, with an arrow for each connection that was used.
All numbers are per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import plural, short_time, size

from .plot_style import BLUE, DARK, ORANGE, QUIET, new_panel

_LOW, _HIGH = 22, 46  # points from a node's centre to beyond its box, with two lines of text and with six


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


def draw_reduction(reduction: ReductionReport, path: Path, title: str) -> None:
    """Draw a node for each worker and an arrow for each used connection; the one with the longest wait is orange.

    Parameters
    ----------
    path
        The PNG file.
    title
        Title above; a description of the reduction is below it.
    """
    ring = reduction.way == "ring" and len(reduction.replicas) > 2
    places = _around(len(reduction.replicas)) if ring else _below_each_other(reduction)
    height = max(y for _, y in places) - min(y for _, y in places)
    caption = f"{reduction.described()}\n{_LEGEND}"
    figure, axes = new_panel(title, 1.6 + (5.0 if ring else 1.9 * (height + 0.6)), caption)
    longest = max((edge.seconds for edge in reduction.edges), default=0.0)
    names = [f"rank {rank}\nreplica {replica}" for rank, replica in enumerate(reduction.replicas)]
    for edge in reduction.edges:
        colour = ORANGE if edge.seconds == longest else BLUE
        words, space = (_words(edge), (_LOW, _LOW)) if ring else ("", (_space(edge.source), _space(edge.to)))
        _draw_arrow(axes, places[edge.source], places[edge.to], colour, words, space)
        if not ring:  # in a tree the rank's box has room for the labels of both directions
            up = places[edge.source][1] < places[edge.to][1]
            names[edge.source if up else edge.to] += f"\n{'↑' if up else '↓'} {_words(edge)}"
    for (x, y), name in zip(places, names, strict=True):
        box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": DARK}
        axes.text(x, y, name, ha="center", va="center", fontsize=8, zorder=3, bbox=box)
    if not reduction.edges:
        axes.text(places[0][0], -0.35, "one worker alone: nothing is sent", ha="center", color=QUIET)
    axes.set_xlim(min(x for x, _ in places) - 0.7, max(x for x, _ in places) + 0.7)
    axes.set_ylim(min(y for _, y in places) - 0.4, max(y for _, y in places) + 0.25)
    axes.set_axis_off()
    figure.savefig(path, format="png")


_LEGEND = "bytes a step, and how long the one that takes them waits for them; orange: the longest"


def _around(ranks: int) -> list[tuple[float, float]]:
    """Positions on a circle, clockwise, rank 0 on top."""
    angles = [2 * math.pi * rank / ranks for rank in range(ranks)]
    return [(1.6 * math.sin(angle), math.cos(angle)) for angle in angles]


def _below_each_other(reduction: ReductionReport) -> list[tuple[float, float]]:
    """Positions in a tree: rank 0 on top, and each rank below the rank nearest to rank 0 that it sends its sum to."""
    ranks = len(reduction.replicas)
    near: dict[int, set[int]] = {rank: set() for rank in range(ranks)}
    for edge in reduction.edges:
        near[edge.source].add(edge.to)
        near[edge.to].add(edge.source)
    places: dict[int, tuple[float, float]] = {}
    columns = 0

    def place(rank: int, depth: int) -> float:
        nonlocal columns
        places[rank] = (0.0, -float(depth))
        below = [place(child, depth + 1) for child in sorted(near[rank]) if child not in places]
        columns += not below
        x = sum(below) / len(below) if below else float(columns)
        places[rank] = (x, -float(depth))
        return x

    for rank in range(ranks):  # all are connected, unless nothing was ever sent
        if rank not in places:
            place(rank, 0)
    return [places[rank] for rank in range(ranks)]


def _draw_arrow(
    axes: Axes, source: tuple[float, float], to: tuple[float, float], colour: str, words: str, space: tuple[int, int]
) -> None:
    """Draw an arrow to the left of the line between two nodes, as seen along it, with its label on the outer side.

    Parameters
    ----------
    space
        Points at its two ends that the nodes occupy.
    """
    bend = 0.14 if words else 0.09
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 12, "linewidth": 1.4, "color": colour, "zorder": 1}
    shrink: dict[str, Any] = {"shrinkA": space[0], "shrinkB": space[1]}
    axes.add_patch(FancyArrowPatch(source, to, connectionstyle=f"arc3,rad=-{bend}", **look, **shrink))
    (x0, y0), (x1, y1) = source, to
    aside, up = -bend * (y1 - y0), bend * (x1 - x0)  # twice the distance between the line's middle and the curve's
    side = "left" if aside > 0.05 else "right" if aside < -0.05 else "center"
    axes.text((x0 + x1) / 2 + aside, (y0 + y1) / 2 + up, words, ha=side, va="center", fontsize=8, color=colour)


def _space(rank: int) -> int:
    """Points around a rank of a tree; every rank but the first has two lines of text per direction."""
    return _HIGH if rank else _LOW


def _words(edge: Edge) -> str:
    return f"{size(round(edge.bytes))}\n{short_time(edge.seconds)}"
