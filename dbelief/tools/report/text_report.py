"""Output of `dbelief report`: a summary of a run from its events, finished or in progress."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import RenderableType

from dbelief.errors import UserError
from dbelief.monitor.format import duration, number, plural, short_time, size
from dbelief.monitor.live_view import backups
from dbelief.monitor.states import ENDED, job_state
from dbelief.monitor.status_table import end_of_rounds, facts_of, late_row, quality
from dbelief.rundir.events import read_events
from dbelief.rundir.summary import Summary, read_summary

SHARES = ("compute", "data", "communicate", "wait")
"""`communicate` is exposed communication: fetches and pushes that the computing thread waited for, including waits of
shards or other replicas. `wait` is time without work: before a lease, in a warm start, while evaluating."""

_SHARE_OF = {"fetch": "communicate", "push": "communicate"}


class Account:
    """Summary of a run's events.

    Attributes
    ----------
    last
        The last event of each kind; of evaluations, by their set.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self.last: dict[str, Mapping[str, Any]] = {}
        self.elapsed_s = 0.0
        self.died: list[str] = []
        self.seconds: list[float] = []  # of each pass
        self.launched = self.won = self.rolled_back = 0
        for event in events:
            self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = str(event["event"])
        self.last[str(event.get("set")) if kind == "evaluation" else kind] = event
        self.elapsed_s = event.get("elapsed_s", self.elapsed_s)
        if kind == "member" and event.get("what") == "died":
            self.died.append(f"{event['role']} {event['id']} ({event['reason']})")
        elif kind == "takeover":
            self.died.append("coordinator")
        elif kind == "rolled_back":
            self.rolled_back += event["iterations"]
        elif kind == "pass":
            self.seconds.append(event["seconds"])
            self.launched += event["launched"]
            self.won += event["won"]

    @property
    def state(self) -> str:
        """The job's displayed state."""
        return job_state(str(self.last.get("state", {}).get("state", "not begun")))

    @property
    def reason(self) -> str:
        """The reason for that state; may be empty."""
        return str(self.last.get("state", {}).get("reason", ""))


def account(run: Path) -> tuple[str, RenderableType]:
    """The job's name, and the report of its run.

    Raises
    ------
    UserError
        This is not a run folder, or it has no events.
    DataError
        Its files cannot be read.
    """
    if not (run / "job.yaml").is_file():
        raise UserError(f"{run}: is no run folder: it holds no job.yaml")
    if not (run / "events.jsonl").is_file():
        raise UserError(f"{run}: holds no events.jsonl: the run has not begun")
    history = Account(read_events(run / "events.jsonl"))
    ended = history.state in ENDED and (run / "summary.json").is_file()  # a resumed run may still have its old summary
    summary = read_summary(run / "summary.json") if ended else None
    job = summary.job if summary is not None else run.resolve().name
    return job, facts_of(job, _rows(history, summary))


def _rows(history: Account, summary: Summary | None) -> list[tuple[str, str]]:
    rows = [
        ("state", _state(history) if summary is None else f"{summary.state or history.state}: {summary.outcome}"),
        ("time", duration(history.elapsed_s if summary is None else summary.wall_s)),
        *(
            _of_batch(history, summary)
            if history.seconds or "iteration" in history.last
            else _of_pushes(history, summary)
        ),
        *_evaluated(history, summary),
        *_spent(summary),
        *_over_the_wire(summary),
        ("failed", ", ".join(history.died) or "none"),
    ]
    if summary is not None and summary.pushes_lost + summary.pushes_trained_twice:
        rows.append(("pushes", f"{summary.pushes_lost:,} lost, {summary.pushes_trained_twice:,} trained twice"))
    if summary is not None and summary.residual_lost:
        rows.append(("residual", f"{summary.residual_lost:.4g} in sum of magnitudes, left out and never sent"))
    if history.rolled_back:
        rows.append(("rolled back", f"{plural(history.rolled_back, 'iteration')}, done again"))
    return rows


def _state(history: Account) -> str:
    if history.state not in ENDED and "state" in history.last:
        return f"{history.state}: no end is recorded, so it runs or was killed"
    return history.state + (f": {history.reason}" if history.reason else "")


def _spent(summary: Summary | None) -> list[tuple[str, str]]:
    """Shares of the replicas' time by phase; known at the end."""
    parts = shares(summary.phase_seconds) if summary is not None else {}
    return [("replicas' time", in_words(parts))] if parts else []


def _over_the_wire(summary: Summary | None) -> list[tuple[str, str]]:
    """Traffic between replicas and shards; known at the end."""
    rows = summary.bytes_per_replica.items() if summary is not None else ()
    each = [f"{replica}: {_bytes(row)}" for replica, row in rows]
    return [("replicas' bytes", "\n".join(each))] if each else []


def _bytes(row: Mapping[str, int]) -> str:
    """Bytes that one replica has sent and received; a transport without traffic is omitted if the other has some."""
    sent, received = row.get("shared_sent", 0), row.get("shared_received", 0)
    shared = [f"{size(sent)} sent, {size(received)} received through shared memory"] if sent + received else []
    messages = f"{size(row['sent'])} sent, {size(row['received'])} received"
    return "; ".join([messages, *shared] if row["sent"] + row["received"] or not shared else shared)


def _evaluated(history: Account, summary: Summary | None) -> list[tuple[str, str]]:
    """The last evaluations; of a finished run, those of the parameters that are its result."""
    if summary is not None:
        validation = summary.validation_accuracy, summary.validation_loss, summary.validation_metrics
        test = summary.test_accuracy, summary.test_loss, summary.test_metrics
        return [("validation", quality(*validation)), ("test", quality(*test))]
    return [(name, _quality_of(history.last.get(name, {}))) for name in ("validation", "test")]


def _quality_of(event: Mapping[str, Any]) -> str:
    return quality(event.get("accuracy"), event.get("loss"), event.get("metrics", {}))


def _of_pushes(history: Account, summary: Summary | None) -> list[tuple[str, str]]:
    now = history.last.get("progress", {})
    samples, epochs = now.get("samples", 0), now.get("epoch", 0.0)
    if summary is not None:
        samples, epochs = summary.samples, summary.epochs
    known = {"staleness_mean": now.get("staleness"), "rounds": now.get("rounds")}
    if summary is not None:
        known = {"staleness_mean": summary.staleness_mean, "rounds": summary.rounds}
    rounds = [("rounds", f"{now['rounds']:,}")] if summary is None and now.get("rounds") else []
    return [
        ("samples", f"{samples:,}, {epochs:.2f} epochs"),
        ("loss", number(now.get("loss"), ".4f")),
        late_row(known),
        *(rounds if summary is None else end_of_rounds(summary)),
    ]


def _of_batch(history: Account, summary: Summary | None) -> list[tuple[str, str]]:
    now = history.last.get("iteration", {})
    known = {"iterations": now.get("iteration", 0), "evaluations": now.get("evaluations", 0), **now}
    known |= {"backups_launched": history.launched, "backups_won": history.won}
    if summary is not None:
        known |= summary.model_extra or {}
    seconds = f"{len(history.seconds):,}"
    if history.seconds:
        seconds += f", median {short_time(median(history.seconds))}, longest {short_time(max(history.seconds))}"
    return [
        ("iterations", f"{known['iterations']:,}, in {plural(known['evaluations'], 'evaluation')}"),
        ("loss", number(known.get("loss"), ".6g")),
        ("gradient norm", number(known.get("gradient_norm"), ".3g")),
        ("passes", seconds),
        ("backups", backups(known["backups_launched"], known["backups_won"])),
    ]


def shares(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Shares of all replicas' time by phase, each from 0 to 1, as in Table 3 of You et al. 2017; empty without reports.

    Parameters
    ----------
    seconds
        By replica and phase, as `Summary.phase_seconds`.
    """
    sums = dict.fromkeys(SHARES, 0.0)
    for phases in seconds.values():
        for phase, spent in phases.items():
            sums[_SHARE_OF.get(phase, phase)] += spent
    total = sum(sums.values())
    return {name: spent / total for name, spent in sums.items()} if total else {}


def in_words(parts: Mapping[str, float]) -> str:
    """Shares in percent, in one line."""
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in parts.items())
