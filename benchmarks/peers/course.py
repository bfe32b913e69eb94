"""One run of one system: undisturbed, with a kill, with a slow worker, or on slow links."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import hosts, runs
from benchmarks.peers import reports
from benchmarks.peers.evaluation import Evaluator, Point
from benchmarks.peers.ours import Watch
from benchmarks.peers.place import Place, own_loopback
from benchmarks.peers.reports import Follower, Line
from benchmarks.peers.systems import System

SETTLE_S, LOOK_S = 1.0, 0.1
SHARE, WINDOW_S = 0.9, 2.0
"""The speed is back where it is such a share of that before, in a window of so many seconds or a round."""
RECENT = 20_000
"""Reports that a window has at most."""
PERCENT = 97.0
END_S = 20.0
ERROR = re.compile(r"\w(Error|Exception)\b|\b(ERROR|error):|unavailable|rror ")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
PROCESSOR_S = 0.5
"""Between two looks at the processor time, in s."""
SLOWER = 9
"""Step times that the slow worker sleeps before each step."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What all runs have in common.

    Attributes
    ----------
    seconds
        Of a measured phase.
    away_s
        From the end of a process until the supervisor starts it again.
    start_s, longest_s
        Bounds: until all workers have trained; of the time to the accuracy, and to the speed after a kill.
    """

    data: Path
    workers: int
    batch: int
    rate: float
    seed: int
    seconds: float
    away_s: float
    start_s: float
    longest_s: float
    hostnet: Path | None
    mbit: float
    delay_ms: float


class ProcessorTime:
    """Processor time of all processes of a run from now on, also of those that end before they are waited for."""

    def __init__(self, run: runs.Run) -> None:
        self._run = run
        self._before, self._last = self._now(), dict[int, float]()

    def look(self) -> None:
        """Read the times; of a process that ends, what it has used since the last look is not seen."""
        self._last |= self._now()

    def used_s(self) -> float:
        """Seconds up to the last look."""
        return sum(last - self._before.get(pid, 0.0) for pid, last in self._last.items())

    def _now(self) -> dict[int, float]:
        found = {}
        for pid in self._run.processes():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                found[pid] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return found


class Course:
    """A system that runs, and what it has reported so far."""

    def __init__(self, system: System, place: Place, setting: Setting) -> None:
        self.system, self.place, self.setting = system, place, setting
        self.follower = Follower(place.folder / "reports")
        self.starts: list[float] = []
        self._started = 0

    def look(self) -> None:
        """Supervise, and read new reports."""
        self.place.supervisor.look()
        started = sum(unit.starts for unit in self.place.supervisor.units.values())
        self.starts += [time.monotonic()] * (started - self._started)
        self._started = started
        self.follower.look()

    def wait(self, seconds: float, over: Callable[[], bool] = lambda: False) -> bool:
        """Look for so many seconds, or until it is over; whether it is."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self.look()
            if over():
                return True
            time.sleep(LOOK_S)
        return False

    def begin(self) -> None:
        """Wait until every worker has trained, and for a little longer."""
        wanted = self.system.trainers or self.setting.workers

        def all_trained() -> bool:
            return len({source.rpartition(".")[0] for source in reports.sources(self.follower.lines)}) >= wanted

        if not self.wait(self.setting.start_s, all_trained):
            raise TimeoutError(f"not all workers trained after {self.setting.start_s:g} s: {self.trouble()}")
        self.wait(SETTLE_S)

    def trouble(self) -> str:
        """The last line of the logs that names an error."""
        found = ""
        for path in sorted(self.place.folder.glob("*.log")):
            for line in COLOUR.sub("", path.read_text(errors="replace")).splitlines():
                if ERROR.search(line):
                    found = f"{path.stem}: {line.strip()[:300]}"
        return found or "no error is logged"

    def speed(self, from_s: float, to_s: float) -> float:
        """Samples/s that were trained between two times."""
        return reports.trained_in(self.follower.lines, from_s, to_s) / (to_s - from_s)

    def running(self) -> set[str]:
        """Sources that run."""
        pids = {str(pid) for pid in self.place.run.processes()}
        return {source for source in reports.sources(self.follower.lines) if source.rpartition(".")[2] in pids}

    def first_s(self) -> float:
        """When the first sample was trained."""
        return min(line.at_s for line in self.follower.lines if line.kind == "trained")


@contextmanager
def started(
    system: System, python: Path, setting: Setting, slow_s: float = 0.0, linked: bool = False
) -> Iterator[Course]:
    """The system, all its workers training; its end is that of all its processes."""
    given: dict[str, Any] = {"data": str(setting.data), "workers": setting.workers, "batch": setting.batch}
    given |= {"rate": setting.rate, "seed": setting.seed, "slow": 1 if slow_s else -1, "slow_s": slow_s}
    with contextlib.ExitStack() as stack:
        prefix = namespace = ""
        if linked:
            assert setting.hostnet is not None
            prefix, bound_s = f"dbp{os.getpid() % 10_000}", setting.start_s + 4 * setting.longest_s + 60
            delay = ("--delay-ms", f"{setting.delay_ms:g}")
            stack.enter_context(
                hosts.network(setting.hostnet, prefix, setting.workers + 1, setting.mbit, bound_s, *delay)
            )
        else:
            namespace = stack.enter_context(own_loopback())
        run = stack.enter_context(runs.temporary_run("peers"))
        place = Place(run, python, given, namespace, prefix)
        stack.callback(kill_all, run)
        system.start(place)
        if system.ours:
            stack.enter_context(Watch(place))
        course = Course(system, place, setting)
        course.begin()
        yield course


def kill_all(run: runs.Run) -> None:
    """SIGKILL to all processes of a run, and to those that they start meanwhile."""
    for _ in range(5):
        for pid in run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def undisturbed(system: System, python: Path, setting: Setting, evaluator: Evaluator) -> Row:
    """Speed, processor time and bytes in a phase; then training goes on to the accuracy."""
    began_s = time.monotonic()
    with started(system, python, setting) as course:
        place = course.place
        processor, carried, from_s = ProcessorTime(place.run), place.carried(), time.monotonic()
        while (left_s := from_s + max(setting.seconds, system.round_s) - time.monotonic()) > 0:
            course.wait(min(PROCESSOR_S, left_s))
            processor.look()
        to_s, after = time.monotonic(), place.carried()
        used_s = processor.used_s()
        course.look()
        trained = reports.trained_in(course.follower.lines, from_s, to_s)
        step_s = reports.step_s(course.follower.ordered())
        if system.ours:  # reports have many steps
            step_s = setting.workers * setting.batch * (to_s - from_s) / trained if trained else None
        first_s, models = course.first_s(), place.folder / "models"
        last_s = first_s + setting.longest_s

        def good() -> bool:
            time.sleep(1 - LOOK_S)
            newest = evaluator.last(models)
            return bool(newest) and newest[-1].percent >= PERCENT

        course.wait(last_s - to_s, good)
        ended_s = time.monotonic()
        kill_all(place.run)
        points = evaluator.course(models, PERCENT)
    row: Row = {
        "start_s": round(first_s - began_s, 1),
        "step_s": step_s,
        "samples_per_s": round(trained / (to_s - from_s), 1),
    }
    row["cpu_s"] = round(1e3 * used_s / trained, 4) if trained else None
    row["bytes"] = None if carried is None or after is None or not trained else round((after - carried) / trained, 1)
    row["to_accuracy_s"] = reached_s(points, first_s)
    row |= {"accuracy": points[-1].percent if points else None, "trained_s": round(ended_s - first_s, 1)}
    return row


def reached_s(points: list[Point], first_s: float) -> float | None:
    """Seconds from the first sample to the first copy of the model that is good enough."""
    return next((round(point.at_s - first_s, 1) for point in points if point.percent >= PERCENT), None)


def slow(system: System, python: Path, setting: Setting, step_s: float) -> Row:
    """Speed with one worker ten times slower than in the undisturbed run, where a step took so many seconds."""
    with started(system, python, setting, slow_s=SLOWER * step_s) as course:
        return _phase(course, max(setting.seconds, system.round_s))


def linked(system: System, python: Path, setting: Setting) -> Row:
    """Speed on slow links, in a phase twice as long."""
    with started(system, python, setting, linked=True) as course:
        return _phase(course, max(2 * setting.seconds, system.round_s))


def _phase(course: Course, seconds: float) -> Row:
    from_s = time.monotonic()
    course.wait(seconds)
    return {"samples_per_s": round(course.speed(from_s, time.monotonic()), 1)}


def killed(system: System, python: Path, setting: Setting, evaluator: Evaluator, role: str) -> Row:
    """One process killed after a phase, and the run until the speed is back."""
    window_s = max(WINDOW_S, system.round_s)
    with started(system, python, setting) as course:
        from_s = time.monotonic()
        course.wait(max(setting.seconds, system.round_s))
        killed_s = time.monotonic()
        usual = course.speed(from_s, killed_s)
        course.place.kill(system.kills[role], setting.away_s)
        course.look()
        course.wait(max(setting.away_s + system.grace_s, window_s))

        def back() -> bool:
            now_s, recent = time.monotonic(), course.follower.lines[-RECENT:]
            if reports.trained_in(recent, now_s - window_s, now_s) < SHARE * usual * window_s:
                return False
            course.wait(SETTLE_S)  # samples count evenly over the time since the report before
            looks, now_s = reports.looks(course.follower.lines), time.monotonic()
            return reports.back_s(looks, killed_s, now_s, SHARE * usual, window_s) is not None

        course.wait(max(setting.longest_s, 3 * system.round_s), back)
        ended_s, running = time.monotonic(), course.running()
        if system.ours:
            _finish(course)
        kill_all(course.place.run)
        points = evaluator.last(course.place.folder / "models")
        lines = course.follower.ordered()
        starts_s = [at_s for at_s in course.starts if at_s > killed_s]
        row: Row = {"goes_on": goes_on(lines, killed_s, starts_s, ended_s, system.grace_s)}
        row["back_s"] = reports.back_s(reports.looks(lines), killed_s, ended_s, SHARE * usual, window_s)
        row |= _own_count(course) if course.place.run.summary() else _counted(lines, running)
        row |= {"accuracy": points[-1].percent if points else None, "usual": round(usual, 1)}
        row["trained_s"] = round(ended_s - course.first_s(), 1)
        if row["goes_on"] == "no" or row["back_s"] is None:
            row["trouble"] = course.trouble()
        return row


def _finish(course: Course) -> None:
    """End a job of dbelief, so that it writes its summary; kept as it is where it does not end."""
    unit = course.place.supervisor.units["coordinator"]
    unit.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        runs.wait_for(lambda: course.place.run.summary() or None, "the summary", END_S)


def _own_count(course: Course) -> Row:
    """Samples as dbelief's summary counts them, by the mean samples of a push; what is not pushed is not counted."""
    summary = course.place.run.summary()
    each = summary["samples"] / summary["pushes"] if summary["pushes"] else 0.0
    lost, doubled = (round(each * summary[name]) for name in ("pushes_lost", "pushes_trained_twice"))
    return {"trained": summary["samples"], "lost": lost, "doubled": doubled}


def _counted(lines: list[Line], running: set[str]) -> Row:
    counted = reports.count(lines, running)
    return {"trained": counted.trained, "lost": counted.lost, "doubled": counted.doubled}


def goes_on(lines: list[Line], killed_s: float, starts_s: list[float], ended_s: float, grace_s: float) -> str:
    """Whether training goes on: "yes", before any process is started again; "started again", after that; or "no".

    Steps of the first `grace_s` seconds were begun before the kill.
    """
    first_s = min(starts_s, default=ended_s)
    if reports.trained_in(lines, killed_s + grace_s, first_s):
        return "yes"
    return "started again" if reports.trained_in(lines, max(first_s, killed_s + grace_s), ended_s) else "no"
