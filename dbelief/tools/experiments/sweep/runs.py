"""Runs of `dbelief train`, in sequence or a few concurrently, until every point of a grid has its row."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dbelief.errors import DataError, Interrupted, JobError, UserError, WriteFailed
from dbelief.job import Job, load_job
from dbelief.launch.child_process import ChildProcess, terminate_all
from dbelief.process.terminal.console import cause_of, interrupt_event
from dbelief.rundir.claim import claimed
from dbelief.rundir.summary import Summary, read_summary
from dbelief.tools.report.pictures import import_matplotlib
from dbelief.url import Url

from .grid import GridPoint, points
from .rows import DONE, FAILED, STOPPED, Criteria, RunRow, criteria_of, table, write_rows

log = logging.getLogger(__name__)

LOOK_S = 0.1


def run_sweep(
    job_file: Path, sets: Mapping[str, str], at_once: int = 1, output: Path | None = None, by: str | None = None
) -> int:
    """Train a job file once for each combination of values, and print the table; returns the exit code.

    Parameters
    ----------
    sets : mapping of field to values between commas
        See `points`.
    at_once : int
        Number of concurrent runs.
    output : Path, optional
        Folder of the runs' folders and of the table; None: the job's name with -sweep, beside the job's own runs.
    by : str, optional
        What decides which settings are the best; None: see `criteria_of`.

    Returns
    -------
    int
        0; 1 where no run completed; 130 where a signal ended the sweep.

    Raises
    ------
    UserError
        Raised before any run: the job, or one combination, is invalid; another sweep has the folder.
    """
    grid = points(sets)
    first = load_job(job_file, grid[0].settings)
    criteria = criteria_of(first, by)
    if output is None and isinstance(first.output, Url):
        raise UserError(f"output: {first.output}: a sweep needs a folder for its table: name one by --output")
    folder = (output or Path(first.output) / f"{first.name}-sweep").absolute()
    todo = [_Planned.make(job_file, point, folder) for point in grid]
    with claimed(folder):
        return _run(first.name, folder, todo, at_once, criteria)


def _run(name: str, folder: Path, todo: Sequence[_Planned], at_once: int, criteria: Criteria) -> int:
    """Train what is left to do in the folder, and print the table; returns the exit code."""
    rows, interrupted = _Sweep(name, folder, todo, at_once, criteria).run()
    left = len(todo) - len(rows)
    if rows:
        Console().print(table(rows, criteria))
    files = "sweep.json, sweep.csv and sweep.png" if _draw(rows, folder, name, criteria) else "sweep.json and sweep.csv"
    log.info(f"{folder}/{files}" + (f"; {left} of {len(todo)} runs were not begun" if left else ""))
    if interrupted:
        return Interrupted.exit_code
    return 0 if any(row.state == DONE for row in rows) else 1


def _draw(rows: Sequence[RunRow], folder: Path, name: str, criteria: Criteria) -> bool:
    """Draw the grid; whether there was anything to draw. matplotlib is imported only now, after the runs."""
    import_matplotlib()
    from .plots import draw_grid

    try:
        return draw_grid(rows, folder / "sweep.png", name, criteria)
    except OSError as error:
        raise WriteFailed(f"{folder}/sweep.png: cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class _Planned:
    """A point, its job, and the arguments of its `dbelief train`."""

    point: GridPoint
    job: Job
    folder: Path
    arguments: list[str]

    @classmethod
    def make(cls, job_file: Path, point: GridPoint, folder: Path) -> _Planned:
        fields = {**point.settings, "name": point.name, "output": str(folder)}
        try:
            job = load_job(job_file, fields)
        except JobError as error:
            raise JobError(f"{point.words}: {error}") from None
        sets = [part for field, value in fields.items() for part in ("--set", f"{field}={value}")]
        return cls(point, job, folder / point.name, ["train", "--quiet", str(job_file), *sets])

    def earlier(self) -> RunRow | None:
        """The row of exactly this job, where an earlier run of it completed."""
        summary = self._summary()
        if summary is None or summary.state != DONE or summary.evaluation_failed:
            return None
        return RunRow.of(self.point, DONE, summary.reason, summary)

    @property
    def continues(self) -> bool:
        """Whether an earlier run of exactly this job lacks only its evaluations, which `--resume` makes."""
        summary = self._summary()
        return summary is not None and summary.unevaluated

    def _summary(self) -> Summary | None:
        """The summary of an earlier run of exactly this job; None without one."""
        try:
            summary = read_summary(self.folder / "summary.json")
            same = load_job(self.folder / "job.yaml").digest() == self.job.anchored().digest()
        except (DataError, JobError):
            return None
        return summary if same else None

    def ended(self, child: ChildProcess, began_s: float, asked: str) -> RunRow:
        """The row of a run that has just ended; `asked`: the signal because of which it was asked to end, or ""."""
        path = self.folder / "summary.json"
        try:
            # A run that failed early leaves the summary of an earlier run in place.
            summary = read_summary(path) if child.code == 0 or path.stat().st_mtime >= began_s else None
        except (DataError, OSError):
            summary = None
        if child.code == 0:
            return RunRow.of(self.point, DONE, "" if summary is None else summary.reason, summary)
        if asked:
            return RunRow.of(self.point, STOPPED, f"by {asked}", summary)
        reason = child.last_words().removeprefix("Error: ") if summary is None else summary.outcome
        return RunRow.of(self.point, FAILED, reason or child.fate(), summary)


class _Sweep:
    """The active runs, and the rows so far.

    Each run is a separate `dbelief train` process, so a failure or a memory leak does not affect the next run.
    """

    def __init__(self, job: str, folder: Path, todo: Sequence[_Planned], at_once: int, criteria: Criteria) -> None:
        self._job, self._folder, self._todo, self._at_once = job, folder, todo, at_once
        self._criteria = criteria
        self._rows: dict[str, RunRow] = {}
        self._running: list[tuple[_Planned, ChildProcess, float]] = []
        self._asked: set[str] = set()

    def run(self) -> tuple[list[RunRow], bool]:
        """All rows in the order of the grid, and whether a signal ended the sweep."""
        with ExitStack() as stack:
            interrupted = stack.enter_context(interrupt_event())
            stack.callback(lambda: terminate_all([child for _, child, _ in self._running]))
            waiting = self._not_done()
            while (waiting and not interrupted.is_set()) or self._running:
                while waiting and len(self._running) < self._at_once and not interrupted.is_set():
                    self._start(waiting.pop(0))
                self._see_to(cause_of(interrupted) if interrupted.is_set() else "")
                time.sleep(LOOK_S)
            self._write()
            return self._in_order(), interrupted.is_set()

    def _not_done(self) -> list[_Planned]:
        """The points that must be run; completed ones get their rows immediately."""
        for planned in self._todo:
            row = planned.earlier()
            if row is not None:
                self._rows[planned.point.name] = row
        if self._rows:
            log.info(f"{len(self._rows)} of {len(self._todo)} runs are done already, and not run again")
        return [planned for planned in self._todo if planned.point.name not in self._rows]

    def _start(self, planned: _Planned) -> None:
        place = self._todo.index(planned) + 1
        log.info(f"run {place} of {len(self._todo)}: {planned.point.words}")
        arguments = [*planned.arguments, *["--resume"] * planned.continues]
        child = ChildProcess(planned.point.name, arguments, self._folder / f"{planned.point.name}.log")
        began_s = time.time()
        child.start()
        self._running.append((planned, child, began_s))

    def _see_to(self, interrupted: str) -> None:
        """Collect the rows of runs that have ended, and ask the others to end after this signal, if there was one."""
        for one in list(self._running):
            planned, child, began_s = one
            if child.code is not None:
                self._running.remove(one)
                row = planned.ended(child, began_s, interrupted if child.name in self._asked else "")
                self._rows[planned.point.name] = row
                self._write()
                log.info(f"{planned.point.words}: {row.words}")
            elif interrupted and child.name not in self._asked:
                self._asked.add(child.name)
                child.ask_to_end()

    def _in_order(self) -> list[RunRow]:
        names = [planned.point.name for planned in self._todo]
        return [self._rows[name] for name in names if name in self._rows]

    def _write(self) -> None:
        write_rows(self._folder, self._job, self._in_order(), self._criteria)
