"""Curves of published papers beside those of `dbelief simulate`, from the parts that the papers state.

    python -m benchmarks.simulate.papers [--only NAME,...] [--plot FOLDER] [--json FILE]

Names: distbelief, firecaffe, firecaffe-sums, easgd, easgd-overlap, decoupled-diloco, decoupled-diloco-quorum.

A table for each: place on the axis, the paper's value and where it has it, the simulated one, and their ratio. `fit`
marks a value that an assumption was fitted to. Below it are the paper's statements in words, whether they hold, what
had to be assumed, and what is left out. `--plot` draws a picture for each, `--json` writes all figures to a file too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.simulate.published import decoupled_diloco, distbelief, elastic, firecaffe
from benchmarks.simulate.published.comparison import Comparison

COMPARISONS: Mapping[str, Callable[[], Comparison]] = {
    "distbelief": distbelief.compare,
    "firecaffe": firecaffe.compare_speedups,
    "firecaffe-sums": firecaffe.compare_sums,
    "easgd": elastic.compare_weak_scaling,
    "easgd-overlap": elastic.compare_overlap,
    "decoupled-diloco": decoupled_diloco.compare,
    "decoupled-diloco-quorum": decoupled_diloco.compare_quorums,
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#3C3C3C", "#E69F00")
"""Colour-blind safe (Okabe and Ito)."""
WIDTH = 140


def table_of(one: Comparison) -> Table:
    """The points of a comparison."""
    table = Table(title=f"{one.paper}: {one.value}", title_justify="left")
    for column in ("method", one.x, "paper", "simulated", "ratio", "source"):
        table.add_column(column, justify="left" if column in ("method", "source") else "right")
    for point in one.points:
        ratio = "" if point.ratio is None else "fit" if point.fitted else f"{point.ratio:.2f}"
        stated = "" if point.paper is None else f"{point.paper:.3g}"
        table.add_row(point.method, f"{point.x:,.0f}", stated, f"{point.simulated:.3g}", ratio, point.source)
    return table


def show(one: Comparison) -> None:
    """Print a comparison."""
    console = Console(stderr=True, width=WIDTH)
    console.print(table_of(one))
    for claim in one.claims:
        found = ("holds by an assumption" if claim.assumed else "holds") if claim.holds else "FAILS"
        note = f": {claim.note}" if claim.note else ""
        console.print(f"  {found}: {claim.text} ({claim.source}){note}", markup=False)
    for title, lines in (("assumed", one.assumed), ("left out", one.left_out)):
        for line in lines:
            console.print(f"  {title}: {line}", markup=False)
    console.print(f"  summary: {one.summary()}\n", markup=False)


def draw(one: Comparison, folder: Path) -> Path:
    """Draw a comparison: lines are simulated, rings the paper's values."""
    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.set_title(one.paper, loc="left", fontsize=10)
    for number, method in enumerate(dict.fromkeys(point.method for point in one.points)):
        mine = [point for point in one.points if point.method == method]
        stated = [(point.x, point.paper) for point in mine if point.paper is not None]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot([p.x for p in mine], [p.simulated for p in mine], color=colour, marker=".", label=method)
        axes.plot(*zip(*stated, strict=True) if stated else ([], []), "o", markersize=8, color=colour, fillstyle="none")
    axes.set_xlabel(one.x)
    axes.set_ylabel(one.value)
    if max(point.x for point in one.points) > 4 * min(point.x for point in one.points):
        axes.set_xscale("log")
    axes.set_yscale("log" if one.log else "linear")
    if any(point.paper is not None for point in one.points):
        axes.plot([], [], "o", markersize=8, color="#8C8C8C", fillstyle="none", label="the paper's values")
    axes.legend(frameon=False, fontsize=8)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{one.name}.png"
    figure.savefig(path)
    return path


def main() -> None:
    """Compare, print, draw."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--only", type=options.words, default=list(COMPARISONS), help="names of comparisons")
    parser.add_argument("--plot", type=Path, metavar="FOLDER")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.only if name not in COMPARISONS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: comparisons are {', '.join(COMPARISONS)}")
    results: list[dict[str, Any]] = []
    for name in chosen.only:
        began_s = time.monotonic()
        one = COMPARISONS[name]()
        show(one)
        drawn = {} if chosen.plot is None else {"picture": str(draw(one, chosen.plot))}
        results.append({**one.described(), **drawn, "took_s": round(time.monotonic() - began_s, 1)})
    if chosen.json is not None:
        figures = {"measured": report.origin(report.own_command()), "results": results}
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")
    report.print_figures({"results": results})


if __name__ == "__main__":
    main()
