"""Output of `dbelief advise`: what bounds the job, where its time goes, and what changes would bring."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import plural
from dbelief.monitor.status_table import facts_of

from .findings import Advice, Findings


def advised(findings: Findings, where: str) -> RenderableType:
    """The complete output; `where`: the job, as the user named it."""
    found, shares = findings.measurements, findings.shares
    state = "the whole run" if found.over else f"{found.window_s:.0f} s of training"
    members = f"{plural(len(found.workers), 'worker')}, {plural(len(found.shards), 'shard')}"
    times = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items() if share >= 0.005)
    machines = "; ".join(
        f"{one.used:.1f} of {one.cores:g} processors in use, {one.others:.1f} by others" for one in found.machines
    )
    rows = [
        ("measured", f"{state}: {found.samples_per_s:,.0f} samples/s by {members}"),
        ("time of workers", times),
        *([("machines", machines)] if machines else []),
        ("bound by", f"{findings.bound}: {findings.reason}"),
    ]
    blocks: list[RenderableType] = [facts_of(found.job.name, rows), Text()]
    if findings.advice:
        blocks.append(_table(findings.advice))
        blocks += [Text(), *_commands(findings, where)]
    else:
        blocks.append(Text("No change that is known here would bring anything."))
    if findings.nothing:
        blocks += [Text(), Text("would bring next to nothing:", "dim"), _table(findings.nothing, shown=False)]
    return Group(*blocks)


def _table(rows: Iterable[Advice], shown: bool = True) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=shown)
    table.add_column("change")
    table.add_column("samples/s", justify="right", no_wrap=True)
    table.add_column("because")
    for one in rows:
        text = one.because + (f" ({one.caution})" if one.caution and shown else "")
        table.add_row(one.what, f"x {one.gain:.2f}", text)
    return table


def _commands(findings: Findings, where: str) -> Iterable[Text]:
    """Commands that carry out what is recommended, the first of each kind."""
    for one in findings.advice:
        if command := command_of(one, where, findings.measurements.over):
            yield Text(f"x {one.gain:.2f}  {command}")


def command_of(advice: Advice, where: str, over: bool) -> str:
    """The command that carries it out; "" where there is none."""
    if advice.workers is not None:
        return f"--set replicas={advice.workers}" if over else f"dbelief scale workers {advice.workers} {where}"
    if advice.shards is not None:
        return f"--set shards={advice.shards}" if over else f"dbelief scale ps {advice.shards} {where}"
    return " ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in advice.settings.items())
