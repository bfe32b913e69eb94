"""A picture of the figures: speed, seconds until the speed is back after each kill, samples lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.systems import ROLES

COLOURS = {"worker": "tab:blue", "server": "tab:orange", "coordinator": "tab:green"}
BARS = 0.26


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Write the picture.

    Parameters
    ----------
    figures
        As `benchmarks.peers` writes them with --json.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [row["system"] for row in figures["rows"]]
    rows = {row["system"]: row for row in figures["rows"]}
    panel, axes = pyplot.subplots(1, 4, figsize=(16, 0.45 * len(names) + 1.5), sharey=True)
    for axis, key, title in (
        (axes[0], "samples_per_s", "samples/s"),
        (axes[1], "link_samples_per_s", "samples/s on slow links"),
    ):
        axis.barh(range(len(names)), [rows[name].get(key) or 0 for name in names], color="tab:gray")
        axis.set_title(title)
    for axis, key, title in ((axes[2], "back_s", "s until 90 % of the speed"), (axes[3], "lost", "samples lost")):
        for number, role in enumerate(ROLES):
            killed = {row["system"]: row for row in figures["kills"] if row["role"] == role}
            at = [place + BARS * (number - 1) for place in range(len(names))]
            axis.barh(at, [killed.get(name, {}).get(key) or 0 for name in names], BARS, color=COLOURS[role], label=role)
            for y, name in zip(at, names, strict=True):
                if killed.get(name, {}).get("goes_on") == "no":
                    axis.text(0, y, " does not go on", va="center", fontsize=6)
        axis.set_title(title)
        axis.legend(title="killed", fontsize=7)
    axes[3].set_xscale("symlog", linthresh=100)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    panel.tight_layout()
    panel.savefig(path, dpi=120)
    pyplot.close(panel)
