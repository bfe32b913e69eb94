"""What `dbelief status` prints: how a job goes, member by member, or how it ended."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .live import Status, duration, number, progress, why
from .summary import Summary

_ROLES = {"ps": "shard", "worker": "replica", "client": "client"}


def overview(status: Status) -> RenderableType:
    """A job that runs; `status` as `LiveView.update` takes it, and `name` of a member (its host and process)."""
    total, share = status.get("total_samples"), progress(status)
    done = f"{status['samples']:,}" + (f" of {total:,}" if total else "") + " samples"
    rows = [
        ("state", status["state"] + (f": {why(status)}" if why(status) else "")),
        ("progress", done + ("" if share is None else f", {100 * share:.0f} %") + f", epoch {status['epoch']:.2f}"),
        ("speed", f"{status['samples_per_s']:,.0f} samples/s, for {duration(status['elapsed_s'])}"),
        ("loss", number(status["loss"], ".4f")),
        ("validation", _quality(status["validation_accuracy"], status["validation_loss"])),
        ("test", _quality(status["test_accuracy"], status["test_loss"])),
        ("staleness", number(status["staleness_mean"], ".2f") + " versions"),
        ("run folder", status["run_folder"]),
    ]
    members = status["members"]
    return Group(_facts(status["job"], rows), Text(), _members(members)) if members else _facts(status["job"], rows)


def outcome(summary: Summary) -> RenderableType:
    """A run that has ended."""
    shares = summary.samples_per_replica
    rows = [
        ("ended", summary.reason),
        ("samples", f"{summary.samples:,} in {summary.steps:,} mini-batches, {summary.epochs:.2f} epochs"),
        ("by replica", ", ".join(f"{name}: {count:,}" for name, count in shares.items()) or number(None, "")),
        ("validation", _quality(summary.validation_accuracy, summary.validation_loss)),
        ("test", _quality(summary.test_accuracy, summary.test_loss)),
        ("staleness", number(summary.staleness_mean, ".2f") + " versions"),
        ("pushes", f"{summary.pushes:,}, of them trained twice {summary.pushes_trained_twice:,}"),
        ("members", f"{summary.shards} shards, {summary.replicas} replicas, lost {summary.members_lost}"),
        ("model", f"{summary.parameters:,} parameters"),
        ("wall time", f"{summary.wall_s:.1f} s"),
    ]
    return _facts(summary.job, rows)


def _quality(accuracy: float | None, loss: float | None) -> str:
    known = [] if accuracy is None else [f"{100 * accuracy:.2f} %"]
    return ", ".join(known + ([] if loss is None else [f"loss {loss:.4f}"])) or number(None, "")


def _facts(job: str, rows: Iterable[tuple[str, str]]) -> RenderableType:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("job", Text(job, "bold"))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _members(members: Iterable[Mapping[str, Any]]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("member", "state", "process"):
        table.add_column(title)
    for title in ("samples", "staleness", "silent for"):
        table.add_column(title, justify="right")
    for member in members:
        table.add_row(
            f"{_ROLES[member['role']]} {member['id']}",
            Text(member["state"]),
            Text(member["name"]),
            number(member["samples"], ",d"),
            number(member["staleness"], ".2f"),
            f"{member['last_seen_s']:.1f} s",
        )
    return table
