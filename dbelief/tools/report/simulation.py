"""A picture of a simulation: its rate over time, staleness, and what is in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dbelief.errors import UserError
from dbelief.monitor.format import plural
from dbelief.simulate.description import Scenario
from dbelief.simulate.events.parts import BINS, World
from dbelief.simulate.outcome import SATURATED, SimulatedOutcome, rates

from .pictures import import_matplotlib

HEIGHT, TITLE = 6.0, 0.35
"""Inches: of the picture, and of its title."""
FORMATS = (".png", ".svg", ".pdf")


def draw(path: Path, scenario: Scenario, outcome: SimulatedOutcome, world: World) -> None:
    """Draw to a file.

    Raises
    ------
    UserError
        Its name ends with no known format, or it cannot be written.
    """
    if path.suffix not in FORMATS:
        raise UserError(f"--plot {path}: the name of a picture ends with {', '.join(FORMATS)}")
    import_matplotlib()
    from .plot_style import new_figure

    figure = new_figure(_title(scenario), height=HEIGHT)
    figure.set_layout_engine("constrained", rect=(0.0, 0.0, 1.0, 1 - TITLE / HEIGHT))
    over_time, stale, use = figure.subplots(3, 1)
    _rate(over_time, scenario, outcome, world)
    _staleness(stale, outcome, world)
    _use(use, outcome)
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror}") from None


def _title(scenario: Scenario) -> str:
    fleet = scenario.fleet
    return f"{scenario.job.name}, simulated: {plural(fleet.workers, 'worker')}, {plural(fleet.shards, 'shard')}"


def _rate(axes: Any, scenario: Scenario, outcome: SimulatedOutcome, world: World) -> None:
    middles = (np.arange(BINS) + 0.5) * scenario.seconds / BINS
    axes.plot(middles, rates(world))
    axes.set(xlabel="seconds", ylabel="samples/s", xlim=(0, _end_s(scenario, outcome)), ylim=(0, None))
    for role, at_s in scenario.kills.items():
        axes.axvline(at_s, linestyle=":", label=f"{role} fails")
    if scenario.kills:
        axes.legend()


def _end_s(scenario: Scenario, outcome: SimulatedOutcome) -> float:
    """When the job ends, else the simulated time."""
    return scenario.warm_s + outcome.seconds if outcome.over else scenario.seconds


def _staleness(axes: Any, outcome: SimulatedOutcome, world: World) -> None:
    histogram = world.world[0]["staleness"]
    last = max(1, int(np.flatnonzero(histogram)[-1])) if histogram.any() else 1
    width = -(-(last + 1) // 100)
    counts = np.add.reduceat(histogram[: last + 1], np.arange(0, last + 1, width))
    axes.bar(width * (np.arange(len(counts)) + 0.5), counts / max(1, counts.sum()), width=width)
    axes.set(xlabel=f"staleness of a push, mean {outcome.staleness_mean:.1f}", ylabel="share")


def _use(axes: Any, outcome: SimulatedOutcome) -> None:
    names = sorted(outcome.use, key=lambda name: outcome.use[name])
    axes.barh(names, [100 * outcome.use[name] for name in names])
    axes.axvline(100 * SATURATED, linestyle=":")
    axes.set(xlabel="% of its time in use", xlim=(0, 100))
