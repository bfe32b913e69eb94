"""View of `dbelief top`: a job with its curves, and every member with its throughput."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import NONE, duration, number, si
from dbelief.monitor.states import GONE, member_state

from .live_view import FEWEST_ROWS, Status, job_parts, late_columns, member_table

_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 48
_CURVES = {"loss": "loss", "validation_accuracy": "validation", "validation_loss": "validation loss"}
_STYLES = {"training": "", "serving": "", "straggling": "yellow", "died": "red"}


def whole(status: Status, height: int = 40) -> RenderableType:
    """The picture of a status from `dbelief.monitor.status.to_dict`, on a terminal of `height` lines."""
    parts = job_parts(status)
    taken = 1 + len(parts)
    curves = _curves(status.get("curves") or {})
    if curves is not None:
        parts += [Text(), curves]
        taken += 1 + len(curves.rows)
    shards = [member for member in status["members"] if member["role"] == "ps"]
    workers = [member for member in status["members"] if member["role"] != "ps"]
    room = max(2 * FEWEST_ROWS, height - taken - 5)  # two empty lines, two table heads, and the cursor's line
    for_shards = min(len(shards), max(FEWEST_ROWS, room // 3, room - len(workers)))
    if workers:
        parts += [Text(), _workers(workers, max(FEWEST_ROWS, room - for_shards), late_columns(status))]
    if shards:
        parts += [Text(), _shards(shards, for_shards)]
    return Group(*parts)


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """Numbers as a row of bars, scaled from minimum to maximum; beyond `width` numbers, means of equal sections."""
    count = min(width, len(values))
    cuts = [index * len(values) // count for index in range(count + 1)] if count else [0]
    means = [math.fsum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    lowest, highest = min(means, default=0.0), max(means, default=0.0)
    apart = highest - lowest or 1.0
    return "".join(_BARS[round((mean - lowest) / apart * (len(_BARS) - 1))] for mean in means)


def bytes_per_s(rate: float | None) -> str:
    """A byte rate for display: 1.5 MB/s."""
    return NONE if rate is None else si(rate, "B/s")


def _curves(curves: Mapping[str, Any]) -> Table | None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(no_wrap=True)
    metrics = {name: name.replace("_", " ", 1) for name in curves if name not in _CURVES}
    for name, title in (_CURVES | metrics).items():
        if name not in curves or (name == "validation_loss" and "validation_accuracy" in curves):
            continue
        values = curves[name]["y"]
        form = ".2%" if name == "validation_accuracy" else ".4g"
        table.add_row(title, sparkline(values), f"{values[0]:{form}} → {values[-1]:{form}}")
    return table if table.row_count else None


def _workers(workers: Sequence[Status], rows: int, late: Sequence[str]) -> Table:
    """Table of workers, fastest first and ended ones last."""

    def cells(member: Status) -> list[RenderableType]:
        return [
            f"{'client ' if member['role'] == 'client' else ''}{member['id']}",
            _state(member),
            f"{member['samples_per_s']:,.0f}",
            number(member["samples"], ",d"),
            *[number(member["staleness"], ".2f")] * len(late),
            _ago(member),
        ]

    order = sorted(workers, key=lambda member: (member["state"] in GONE, -member["samples_per_s"]))
    return member_table("replica", ["samples/s", "samples", *late, "last seen"], order, rows, cells)


def _shards(shards: Sequence[Status], rows: int) -> Table:
    def cells(member: Status) -> list[RenderableType]:
        return [
            str(member["id"]),
            _state(member),
            f"{member['pushes_per_s']:,.1f}",
            bytes_per_s(member["bytes_per_s"]),
            f"{member['segments']:,}",
            f"{member['parameters']:,}",
            _ago(member),
        ]

    return member_table("shard", ["pushes/s", "traffic", "segments", "parameters", "last seen"], shards, rows, cells)


def _state(member: Status) -> Text:
    state = member_state(member)
    return Text(state, _STYLES.get(state, "dim"))


def _ago(member: Status) -> str:
    seen = member["last_seen_s"]
    return f"{seen:.1f} s" if seen < 60 else duration(seen)
