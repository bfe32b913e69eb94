"""A picture of loss against replicas: a line for each way, unchanged (dashed) and with the best setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.accuracy.delay_settings import WAYS

COLOURS = {"downpour": "tab:blue", "easgd": "tab:orange", "diloco": "tab:green"}


def draw(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the picture.

    Parameters
    ----------
    found
        The `means` of `benchmarks.accuracy.delays`; without any there is an empty picture.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in found)) or [""]
    panel, axes = pyplot.subplots(1, len(models), figsize=(5.5 * len(models), 4), squeeze=False)
    for axis, model in zip(axes[0], models, strict=True):
        for way, colour in COLOURS.items():
            mine = [row for row in found if (row["model"], row["way"]) == (model, way)]
            for key, style, word in (("unchanged_loss", "--", "unchanged"), ("best_loss", "-", "best setting")):
                points = [(row["count"], row[key]) for row in mine if row[key] is not None]
                if points:
                    label = f"{WAYS[way]}, {word}"
                    axis.plot(*zip(*points, strict=True), style, marker="o", color=colour, label=label)
        axis.set(xscale="log", yscale="log", xlabel="replicas", ylabel="test loss", title=model)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, handlelength=4)
    panel.tight_layout()
    panel.savefig(path, dpi=120)
    pyplot.close(panel)
