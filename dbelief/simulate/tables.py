"""Output of `dbelief simulate`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from rich.console import Group as Blocks
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import duration, plural, si
from dbelief.monitor.status_table import facts_of

from .calibrate import MEASURES, MeasuredJob
from .costs import Costs
from .description import Scenario
from .outcome import QUANTILES, SATURATED, SimulatedOutcome


def simulated(scenario: Scenario, outcome: SimulatedOutcome) -> RenderableType:
    """The complete output."""
    use = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    use.add_column("resource")
    use.add_column("in use", justify="right")
    for name, share in sorted(outcome.use.items(), key=lambda item: -item[1]):
        use.add_row(name, f"{100 * share:.1f} %", style="bold" if name == outcome.saturates else None)
    return Blocks(facts_of(scenario.job.name, list(_facts(scenario, outcome))), Text(), use)


def _facts(scenario: Scenario, outcome: SimulatedOutcome) -> Iterable[tuple[str, str]]:
    fleet = scenario.fleet
    members = f"{plural(outcome.workers, 'worker')}, {plural(fleet.shards, 'shard')}"
    ended = ", to its end" if outcome.over else ""
    yield "simulated", f"{duration(outcome.seconds)}{ended}, {members}, {outcome.events:,} events"
    yield "samples/s", f"{outcome.samples_per_s:,.1f}{_gain(scenario, outcome)}"
    yield "computing", f"{100 * outcome.computing:.1f} % of the workers' time"
    quantiles = ", ".join(f"{100 * q:g} % {v:,}" for q, v in zip(QUANTILES, outcome.staleness, strict=True))
    unit = "rounds" if scenario.schedule.quorum else "versions"
    yield "staleness", f"{outcome.staleness_mean:.1f} {unit}, a mean over {outcome.pushes:,} pushes; {quantiles}"
    yield "bytes a second", f"{si(outcome.sent_per_s, 'B')} sent by workers, {si(outcome.received_per_s, 'B')} received"
    if any(outcome.failures.values()):
        listed = ", ".join(f"{count:,} of {role}s" for role, count in outcome.failures.items() if count)
        yield "failures", f"{listed}; {outcome.lost_samples:,.0f} samples lost, goodput {100 * outcome.goodput:.1f} %"
    yield "used most", f"{outcome.saturates}{_saturated(outcome)}"
    beat_s = scenario.job.deadlines.beat_s
    yield (
        "coordinator",
        f"full at {outcome.coordinator_at:,} workers; a longer deadlines.beat_s ({beat_s:g} s) allows more",
    )
    if outcome.time_s is not None and math.isfinite(outcome.time_s):
        yield "time", f"{duration(outcome.time_s)} to {scenario.total_samples:,} samples"
    if outcome.price_per_h:
        yield "price", f"{outcome.price_per_h:,.2f} an hour, {outcome.price:,.2f} in all"


def _gain(scenario: Scenario, outcome: SimulatedOutcome) -> str:
    """The rate as a multiple of that of the fastest machine's one worker alone."""
    steps = [group.step for group in scenario.fleet.groups if group.workers and group.step is not None]
    alone = scenario.job.samples_at_once / min(steps)
    return f", {outcome.samples_per_s / alone:.2f} times one worker alone"


def _saturated(outcome: SimulatedOutcome) -> str:
    if outcome.saturates == "computing of workers":
        return ": more workers bring more"
    share = outcome.use[outcome.saturates]
    return ": more workers bring nothing" if share > SATURATED else f", {100 * share:.0f} %"


def calibration(costs: Costs, runs: Sequence[MeasuredJob], others: Sequence[MeasuredJob]) -> RenderableType:
    """Errors on the runs that the costs were fitted to, and on others."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("run", *MEASURES):
        table.add_column(column, justify="left" if column == "run" else "right")
    for name, some in (("fitted", runs), ("not seen", others)):
        errors: list[float] = []
        for one in some:
            found = one.errors(costs)
            errors += [abs(value) for value in found.values()]
            cells = (f"{100 * found[measure]:+.1f} %" if measure in found else "" for measure in MEASURES)
            table.add_row(one.name, *cells)
        if errors:
            table.add_row(f"median, {name}", f"{100 * median(errors):.1f} %", style="bold")
    return table
