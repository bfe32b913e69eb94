"""Output of `dbelief status`: a job's status by member, or the outcome of a finished run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import duration, loss_text, number, percent, plural
from dbelief.monitor.rounds import late_word, round_rows
from dbelief.monitor.states import job_state, member_state
from dbelief.process.printable import printable
from dbelief.rundir.summary import Summary

from .live_view import Status, backups, iterations, late_columns, progress, under_way, why

_ROLES = {"ps": "shard", "worker": "replica", "client": "client"}


def overview(status: Status) -> RenderableType:
    """Tables of a running job; `status` as for `LiveView.update`, plus `name` of a member (its host and process)."""
    total, share, batch = status.get("total_samples"), progress(status), status.get("batch")
    rounds = status.get("rounds")
    done = f"{status['samples']:,}" + (f" of {total:,}" if total else "") + " samples"
    reached = "" if share is None else f", {100 * share:.0f} %"
    rows = [
        ("state", status["state"] + (f": {why(status)}" if why(status) else "")),
        ("progress", iterations(batch) + reached if batch else f"{done}{reached}, epoch {status['epoch']:.2f}"),
        ("speed", f"{status['samples_per_s']:,.0f} samples/s, for {duration(status['elapsed_s'])}"),
        ("loss", loss_text(batch["loss"] if batch else status["loss"])),
        *(_of_batch(batch) if batch else []),
        *((name, _quality_on(name, status)) for name in ("validation", "test")),
        *([] if batch else [late_row(status)]),
        *(round_rows(rounds) if rounds else []),
        ("run folder", status["run_folder"]),
    ]
    facts, members = facts_of(status["job"], rows), status["members"]
    return Group(facts, Text(), _members(members, late_columns(status))) if members else facts


def late_row(figures: Mapping[str, Any]) -> tuple[str, str]:
    """How late pushes are, a mean, from a status or the fields of a summary."""
    name, unit = late_word(figures)
    return name, f"{number(figures['staleness_mean'], '.2f')} {unit}"


def _quality_on(name: str, status: Status) -> str:
    """Of a set of samples."""
    return quality(status[f"{name}_accuracy"], status[f"{name}_loss"], status.get(f"{name}_metrics", {}))


def _of_batch(batch: Status) -> list[tuple[str, str]]:
    return [
        ("gradient norm", number(batch["gradient_norm"], ".3g")),
        ("last step", number(batch["step"], ".3g")),
        ("evaluations", f"{batch['evaluations']:,}" + (f"; {under_way(batch)}" if batch["pass"] else "")),
        ("bundles", f"{batch['bundles']:,}, backups {backups(batch['backups_launched'], batch['backups_won'])}"),
    ]


def outcome(summary: Summary) -> RenderableType:
    """Table of a finished run."""
    shares, batch = summary.samples_per_replica, batch_of(summary)
    mini_batches = "" if batch else f" in {summary.steps:,} mini-batches"
    rows = [
        ("state", f"{job_state(summary.state or 'ended')}: {summary.outcome}"),
        *(_end_of_batch(batch) if batch else []),
        ("samples", f"{summary.samples:,}{mini_batches}, {summary.epochs:.2f} epochs"),
        ("by replica", ", ".join(f"{name}: {count:,}" for name, count in shares.items()) or number(None, "")),
        ("validation", quality(summary.validation_accuracy, summary.validation_loss, summary.validation_metrics)),
        ("test", quality(summary.test_accuracy, summary.test_loss, summary.test_metrics)),
        *([] if batch else _end_of_pushes(summary)),
        (
            "members",
            f"{plural(summary.shards, 'shard')}, {plural(summary.replicas, 'replica')}, lost {summary.members_lost}",
        ),
        ("model", f"{summary.parameters:,} parameters"),
        ("wall time", taken(summary)),
    ]
    return facts_of(summary.job, rows)


def taken(summary: Summary) -> str:
    """The wall time of a run, and of the part since its last resume, where it was resumed."""
    resumed = "" if summary.last_leg_s is None else f" ({summary.last_leg_s:.1f} s since it was resumed)"
    return f"{summary.wall_s:.1f} s{resumed}"


def batch_of(summary: Summary) -> dict[str, Any]:
    """Fields of the summary that only a batch method has; none for other jobs."""
    more = summary.model_extra or {}
    return dict(more) if "iterations" in more else {}


def _end_of_batch(batch: Mapping[str, Any]) -> list[tuple[str, str]]:
    loss, norm = number(batch["loss"], ".6g"), number(batch["gradient_norm"], ".3g")
    return [
        ("iterations", f"{batch['iterations']:,}, in {plural(batch['evaluations'], 'evaluation')}"),
        ("loss", f"{loss}, gradient norm {norm}"),
        ("backups", backups(batch["backups_launched"], batch["backups_won"])),
    ]


def _end_of_pushes(summary: Summary) -> list[tuple[str, str]]:
    return [
        late_row({"staleness_mean": summary.staleness_mean, "rounds": summary.rounds}),
        *end_of_rounds(summary),
        ("pushes", f"{summary.pushes:,}, of them trained twice {summary.pushes_trained_twice:,}"),
    ]


def end_of_rounds(summary: Summary) -> list[tuple[str, str]]:
    """Figures of a job in lockstep; none of other jobs."""
    return [] if summary.rounds is None else round_rows(summary.rounds.model_dump())


def quality(accuracy: float | None, loss: float | None, metrics: Mapping[str, float]) -> str:
    """Share of correct answers, loss and metrics, as far as they are known."""
    known = [] if accuracy is None else [percent(accuracy)]
    known += [] if loss is None else [f"loss {loss_text(loss)}"]
    known += [f"{printable(name)} {value:.4g}" for name, value in metrics.items()]
    return ", ".join(known) or number(None, "")


def facts_of(name: str, rows: Iterable[tuple[str, str]], kind: str = "job") -> RenderableType:
    """Names and values, one pair per line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(kind, Text(printable(name), "bold"))
    for title, value in rows:
        table.add_row(title, Text(printable(value, lines=True)))
    return table


def _members(members: Iterable[Mapping[str, Any]], late: Sequence[str]) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("member", "state", "process"):
        table.add_column(title)
    for title in ("samples", *late, "last seen"):
        table.add_column(title, justify="right")
    for member in members:
        table.add_row(
            f"{_ROLES[member['role']]} {member['id']}",
            Text(member_state(member)),
            Text(printable(member["name"])),
            number(member["samples"], ",d"),
            *[number(member["staleness"], ".2f")] * len(late),
            f"{member['last_seen_s']:.1f} s",
        )
    return table
