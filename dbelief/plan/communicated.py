"""Volume tables of `dbelief plan` and `dbelief zoo`: what a step transfers and computes, and how long sums take."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.plan import Communication, NetworkPlan
from dbelief.plan.communication_cost import clock, megabytes

_UNITS = ("", "k", "M", "G", "T", "P", "E")


def flop(count: float) -> str:
    """A number of operations for display."""
    unit = 0
    while count >= 1000 and unit + 1 < len(_UNITS):
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}flop"


def volume_rows(told: Communication) -> list[tuple[str, str]]:
    """Rows of names and values."""
    of, speeds = told.volumes, told.speeds
    samples = f"{of.batch:,} samples" + f", {of.samples:,} on each of {of.replicas} replicas" * (of.replicas > 1)
    times = f"{of.data_bytes / of.weight_bytes:.3g} |W|"
    computed = f"{flop(of.step_flop)} in a step, {flop(of.samples * of.flop)} on a replica"
    if told.compute_s is not None:
        computed += f": {clock(told.compute_s)} at {flop(speeds.flops or 0)} a second"
    return [
        ("|W|", f"{megabytes(of.weight_bytes)}: gradients"),
        ("|D|", f"{megabytes(of.data_bytes)}, {times}: inputs of layers with weights, of {samples}"),
        ("computed", computed),
        ("links", f"{clock(speeds.latency_s)} a message, {megabytes(speeds.bandwidth)} a second each way"),
        *[("advice", sentence) for sentence in told.advice],
    ]


def sums_table(told: Communication) -> RenderableType:
    """Ways to sum a gradient over the replicas."""
    best = min(one.seconds for one in told.sums)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("a gradient summed by", no_wrap=True)
    for title in ("chunks", "predicted", "times the fastest"):
        table.add_column(title, justify="right")
    for one in told.sums:
        table.add_row(one.way, f"{one.chunks:,}", clock(one.seconds), f"{one.seconds / best:.3g}")
    return table


def zoo_listing(plans: Iterable[NetworkPlan]) -> RenderableType:
    """All networks: the columns of FireCaffe's Table 1, and a description."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("network", no_wrap=True)
    for title in ("parameters", "|W|", "|D|", "|D| / |W|", "a step"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("in a job")
    lines: list[RenderableType] = []
    for plan in plans:
        of, name = plan.volumes, plan.network.name
        volumes = (f"{of.parameters:,}", megabytes(of.weight_bytes), megabytes(of.data_bytes))
        trained = "counted only" if plan.network.chain is None else f"model: {{zoo: {name}}}"
        table.add_row(name, *volumes, f"{of.data_bytes / of.weight_bytes:.3g}", flop(of.step_flop), trained)
        lines.append(Text(f"{name}: {plan.network.about}"))
    samples = Text(f"|D| and a step's operations of {of.batch:,} samples; |W| with biases", "dim")
    return Group(table, Text(), *lines, Text(), samples)
