"""Live view of `dbelief train`: a picture on a terminal, plain lines elsewhere."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from dbelief.monitor.format import NONE, duration, loss_text, number, percent, plural
from dbelief.monitor.rounds import late_word, round_line
from dbelief.monitor.states import ENDED, member_state
from dbelief.monitor.tables import table_line
from dbelief.process.clock import Clock, SystemClock
from dbelief.process.log import as_json
from dbelief.process.printable import printable

log = logging.getLogger(__name__)

Status = Mapping[str, Any]

_OTHER_LINES = 5  # of the picture, besides those of the job and the rows of members
FEWEST_ROWS = 3


class LiveView:
    """A view of a running job, updated by `update`; to be used in a `with` block.

    Parameters
    ----------
    console
        Output console. If it is not a terminal, one plain line is printed periodically instead.
    every_s
        The shortest time between two such lines.
    clock
        Clock for that interval.
    draw
        Makes the picture of a status on a terminal with the given number of lines.
    """

    def __init__(
        self,
        console: Console,
        *,
        every_s: float = 5.0,
        clock: Clock | None = None,
        draw: Callable[[Status, int], RenderableType] | None = None,
    ) -> None:
        self._console = console
        self._draw = draw or picture
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._live: Live | None = None
        self._printed_s = -math.inf
        self._waiting: Status | None = None
        self._ended = False
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False)

    def update(self, status: Status) -> None:
        """Show the job's state.

        Parameters
        ----------
        status
            job, state, reason, waiting_for, samples, total_samples (None where only time ends the job), epoch, loss,
            validation_accuracy, validation_loss, samples_per_s, staleness_mean, elapsed_s, shards, and
            members: a list of {id, role, state, samples, staleness}. Optional: wall_limit_s of the job, and
            last_seen_s of a member (seconds since its last message), and of a batch method `batch`: {iteration,
            iterations, loss, gradient_norm, step, pass, portions_done, portions, backups_launched, backups_won}; and
            eta_s, seconds until its end; and `rounds` of a job in lockstep, as `RoundFigures`. Values that are missing
            or None are not shown.
        """
        with suppress(OSError):  # the terminal is closed: the job goes on without a view
            self._update(status)

    def _update(self, status: Status) -> None:
        if self._live is not None:
            self._live.update(self._draw(status, self._console.height), refresh=True)
            return
        if self._ended:  # its line is printed; what follows has the same figures
            return
        self._ended = status.get("state") in ENDED
        if self._ended or self._clock.now() - self._printed_s >= self._every_s:
            self._print(status)
        else:
            self._waiting = status

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop drawing; the last picture remains, and a plain view prints the line that it withheld."""
        with suppress(OSError):
            if self._live is not None:
                self._live.stop()
            elif self._waiting is not None:
                self._print(self._waiting)

    def _print(self, status: Status) -> None:
        if as_json():
            log.info(line(status))
        else:
            self._console.print(line(status), soft_wrap=True, markup=False, highlight=False)
        self._printed_s = self._clock.now()
        self._waiting = None


def line(status: Status) -> str:
    """The status as one plain line."""
    share, batch = progress(status), status.get("batch")
    total = status.get("total_samples")
    samples = f"{status.get('samples') or 0:,}" + (f" of {total:,}" if total else "") + " samples"
    parts = [
        _headline(status),
        (iterations(batch) if batch else samples) + ("" if share is None else f" ({100 * share:.0f} %)"),
        *_detail(status),
        *(f"{name} {value}" for name, value in _numbers(status) if value != NONE),
        *_members_lines(status),
    ]
    return " | ".join(parts)


def progress(status: Status) -> float | None:
    """Completed share of the job, 0 to 1: of its samples, else of its time; None where neither is known.

    For a batch method, of its iterations: its sample limit only prevents an endless run.
    """
    if status.get("batch"):
        status = {**status, **status["batch"], "total_samples": None}
    for done, whole in (("iteration", "iterations"), ("samples", "total_samples"), ("elapsed_s", "wall_limit_s")):
        if status.get(whole):
            return float(min(1.0, max(0.0, (status.get(done) or 0) / status[whole])))
    return None


def picture(status: Status, height: int = 40) -> RenderableType:
    """The picture of a status on a terminal of `height` lines."""
    workers, parts = _workers(status), job_parts(status)
    if workers:
        rows = max(FEWEST_ROWS, height - _OTHER_LINES - len(parts))
        parts += [Text(), _replicas(workers, rows, late_columns(status))]
    return Group(*parts)


def job_parts(status: Status) -> list[RenderableType]:
    """The upper part of a picture, which shows the job: one line each, and two of the numbers."""
    detail = [Text(one, "dim", no_wrap=True, overflow="ellipsis") for one in _detail(status)]
    return [head(status), bar(status), Text(), number_table(status), *detail]


def _detail(status: Status) -> list[str]:
    """Lines on the pass or the rounds of a job that has them, from the first one on, and one for each table."""
    batch, rounds = status.get("batch"), status.get("rounds")
    if batch and batch.get("pass"):
        return [under_way(batch)]
    lines = [round_line(rounds)] if rounds and rounds["rounds"] else []
    return lines + [table_line(one) for one in status.get("tables") or []]


def late_columns(status: Status) -> list[str]:
    """Title of the column on how late each replica's pushes are; none for a batch method."""
    return [] if status.get("batch") else [late_word(status)[0]]


def _headline(status: Status) -> str:
    reason = why(status)
    state = str(status.get("state", ""))
    if state and reason.startswith(state):  # for example "waiting for shards"
        return f"{printable(status.get('job', ''))}: {reason}"
    return f"{printable(status.get('job', ''))}: {state}" + (f" ({reason})" if reason else "")


def why(status: Status) -> str:
    """The reason for the job's state, or what it waits for in that state; may be empty."""
    waiting_for = status.get("waiting_for")
    return printable(str(status.get("reason") or (f"waiting for {waiting_for}" if waiting_for else "")))


def head(status: Status) -> RenderableType:
    """Job, state, reason, and the number of members."""
    left = Text.assemble((printable(str(status.get("job", ""))), "bold"), "  ", (str(status.get("state", "")), "cyan"))
    if reason := why(status):
        left.append(f"  {reason}", "dim")
    row = Table.grid(expand=True)
    row.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    row.add_column(justify="right", no_wrap=True, style="dim")
    row.add_row(left, ", ".join(_members_lines(status)))
    return row


def bar(status: Status) -> RenderableType:
    """Progress bar of the job."""
    share, total, limit = progress(status), status.get("total_samples"), status.get("wall_limit_s")
    if batch := status.get("batch"):
        label = iterations(batch)
    elif total:
        label = f"{_count(status.get('samples') or 0)} of {_count(total)} samples"
    elif limit:
        label = f"{duration(status.get('elapsed_s') or 0)} of {duration(limit)}"
    else:
        label = f"{_count(status.get('samples') or 0)} samples"
    row = Table.grid(expand=True, padding=(0, 2, 0, 0))
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    # A job without a limit of samples or time has no known progress: its bar stays empty.
    done = 0.0 if share is None else share
    bar = ProgressBar(total=1.0, completed=done, complete_style="cyan", finished_style="green")
    reached = "" if share is None else f"{100 * share:3.0f} %  "
    row.add_row(bar, Text.assemble((reached, "bold"), (label, "dim")))
    return row


def _numbers(status: Status) -> list[tuple[str, str]]:
    accuracy, batch = status.get("validation_accuracy"), status.get("batch")
    validation = ("validation", percent(accuracy))
    speed = ("samples/s", number(status.get("samples_per_s"), ",.0f"))
    eta_s = status.get("eta_s")
    times = [("elapsed", duration(status.get("elapsed_s") or 0))]
    times += [] if eta_s is None else [("left", duration(eta_s))]
    if batch:
        return [
            ("loss", loss_text(batch.get("loss"))),
            ("gradient norm", number(batch.get("gradient_norm"), ".3g")),
            ("step", number(batch.get("step"), ".3g")),
            validation,
            speed,
            ("backups", backups(batch.get("backups_launched") or 0, batch.get("backups_won") or 0)),
            *times,
        ]
    return [
        ("loss", loss_text(status.get("loss"))),
        validation,
        speed,
        (late_word(status)[0], number(status.get("staleness_mean"), ".2f")),
        ("epoch", number(status.get("epoch"), ".2f")),
        *times,
    ]


def iterations(batch: Status) -> str:
    """Progress of a batch method: 12 of 200 iterations."""
    whole = batch.get("iterations")
    return f"{_count(batch.get('iteration') or 0)}" + (f" of {_count(whole)}" if whole else "") + " iterations"


def under_way(batch: Status) -> str:
    """Progress of the current pass: pass 23: 14 of 60 portions."""
    return f"pass {batch['pass']}: {batch.get('portions_done') or 0} of {batch.get('portions') or 0} portions"


def backups(launched: int, won: int) -> str:
    """Number of backup tasks, and how many of them completed first: 3 (2 won)."""
    return f"{_count(launched)} ({_count(won)} won)"


def number_table(status: Status) -> RenderableType:
    """The job's numbers in a row, below their names."""
    table = Table.grid(expand=True)
    numbers = _numbers(status)
    for name, value in numbers:
        table.add_column(ratio=2 + max(len(name), len(value), 6), no_wrap=True)
    table.add_row(*(Text(name, "dim") for name, _ in numbers))
    table.add_row(*(Text(value, "bold") for _, value in numbers))
    return table


def _members_lines(status: Status) -> list[str]:
    shards = status.get("shards") or 0
    return [plural(shards, "shard"), plural(len(_workers(status)), "replica")]


def _workers(status: Status) -> list[Status]:
    """Members that push gradients: replicas and custom training loops."""
    return [member for member in status.get("members") or () if member.get("role") != "ps"]


def _replicas(workers: Sequence[Status], rows: int, late: Sequence[str]) -> Table:
    def cells(member: Status) -> list[RenderableType]:
        seen = member.get("last_seen_s")
        return [
            Text(str(member.get("id", ""))),
            Text(member_state(member)),
            number(member.get("samples"), ",d"),
            *[number(member.get("staleness"), ".2f")] * len(late),
            NONE if seen is None else f"{seen:.1f} s",
        ]

    return member_table("replica", ["samples", *late, "last seen"], workers, rows, cells, ratio=1)


def member_table(
    title: str,
    columns: Sequence[str],
    members: Sequence[Status],
    rows: int,
    cells: Callable[[Status], Sequence[RenderableType]],
    ratio: int = 2,
) -> Table:
    """A table with a row for each member; beyond `rows`, the others are only counted.

    Parameters
    ----------
    title, columns
        Titles of the first column and of those after the second, which is the state.
    cells
        A member's row.
    ratio
        Width of `columns`, where the first two have 2.
    """
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    for name in (title, "state"):
        table.add_column(name, ratio=2, no_wrap=True)
    for name in columns:
        table.add_column(name, ratio=ratio, justify="right", no_wrap=True)
    shown = members if len(members) <= rows else members[: rows - 1]
    for member in shown:
        table.add_row(*cells(member))
    if len(shown) < len(members):
        table.add_row(Text(f"and {len(members) - len(shown)} more", "dim"))
    return table


def _count(value: float) -> str:
    return f"{value:,.0f}"
