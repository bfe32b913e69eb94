"""A run folder's events, as they are written, given to the sinks of trackers.

The position in the event log is stored with each sink's state in `track.json`, so that another process goes on where
one ended, in the same run of the tracker. A tracker that fails is left out, and the run goes on.
"""

from __future__ import annotations

import fcntl
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dbelief.errors import DataError, RuntimeFailure, UserError
from dbelief.job import Job, load_job
from dbelief.process.atomic_file import write_whole
from dbelief.process.clock import Clock
from dbelief.process.runtime import Event
from dbelief.rundir.summary import has_ended, read_summary
from dbelief.tools.report.pictures import draw_pictures

from .sink import Sink, open_sink

log = logging.getLogger(__name__)

STATE, SUMMARY = "track.json", "summary.json"
POLL_S = 1.0


@dataclass
class Tracked:
    """A sink, and the position in the event log up to which it has the events."""

    name: str
    sink: Sink
    position: int


class Follower:
    """Gives the events of one run folder to sinks.

    Parameters
    ----------
    run
        The run folder.
    open_one
        Makes the sink of a tracker: see `open_sink`.
    """

    def __init__(self, run: Path, names: Sequence[str], open_one: Callable[..., Sink] = open_sink) -> None:
        self._run, self._events = run, run / "events.jsonl"
        self.job = load_job(run / "job.yaml", {})
        held = _read_state(run / STATE)
        self._tracked = []
        for name in names:
            row = held.get(name, {})
            tracked = Tracked(name, open_one(name, run, row.get("state", {})), row.get("position", 0))
            self._tracked.append(tracked)
            self._try(tracked, "begin", self.job.name, parameters_of(self.job))
        self._save()

    @property
    def names(self) -> list[str]:
        """Names of the trackers that have not failed."""
        return [tracked.name for tracked in self._tracked]

    def poll(self) -> bool:
        """Give the sinks the events since the last call; whether the run is over, and these were the last."""
        over = has_ended(self._run)  # its summary is written after the last event with numbers
        for tracked in list(self._tracked):
            for position, event in _events_from(self._events, tracked.position):
                if values := numbers_of(event):
                    samples, time_s = int(event["samples"]), datetime.fromisoformat(event["time"]).timestamp()
                    if not self._try(tracked, "numbers", values, samples, time_s):
                        break
                tracked.position = position
            self._try(tracked, "flush")
        self._save()
        return over

    def end(self) -> None:
        """End the run in all trackers: pictures, model, outcome."""
        summary = read_summary(self._run / SUMMARY)
        done, model = summary.state == "done", self._run / "model.safetensors"
        with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
            pictures = _pictures(self._run, Path(folder), self.job.name)
            for tracked in list(self._tracked):
                for file in pictures:
                    self._try(tracked, "picture", file.stem, file)
                if model.exists():
                    self._try(tracked, "model", model)
                self._try(tracked, "end", done, summary.outcome)
        self._save()

    def _try(self, tracked: Tracked, method: str, *arguments: Any) -> bool:
        """Call a method of a sink; one that fails is left out from then on."""
        if tracked not in self._tracked:
            return False
        try:
            getattr(tracked.sink, method)(*arguments)
        except Exception as error:
            cause = " ".join(str(error).split())[:300]
            log.warning(f"track: {tracked.name} fails and is left out: {type(error).__name__}: {cause}")
            self._tracked.remove(tracked)
            return False
        return True

    def _save(self) -> None:
        held = _read_state(self._run / STATE)
        held.update({one.name: {"position": one.position, "state": one.sink.state} for one in self._tracked})
        write_whole(self._run / STATE, json.dumps(held).encode())


def follow(run: Path, names: Sequence[str], clock: Clock, interrupted: Event) -> None:
    """Follow a run until it is over, or this process is interrupted.

    Raises
    ------
    UserError
        There is no such run, another process follows it, or a tracker cannot be used.
    """
    if not (run / "job.yaml").is_file():
        raise UserError(f"{run} is no run folder: it holds no job.yaml")
    with _alone(run):
        chosen = tuple(names) or load_job(run / "job.yaml", {}).track
        if not chosen:
            raise UserError(f"{run}: its job file has no track; name trackers by --to")
        follower = Follower(run, chosen)
        log.info(f"{run}: followed for {', '.join(chosen)}")
        while not follower.poll():
            if not follower.names:
                raise RuntimeFailure(f"{run}: no tracker is left")
            if clock.wait(interrupted, POLL_S):
                return
        follower.end()


def numbers_of(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an event by the tracker's name; {} where it has none."""
    if event["event"] == "progress":
        names = {"loss": "train/loss", "epoch": "train/epoch", "staleness": "train/staleness"}
        names |= {"samples_per_s": "speed/samples_per_s", "members": "speed/members", "rounds": "train/rounds"}
        found = {title: event.get(name) for name, title in names.items()}
    elif event["event"] == "evaluation":
        found = {name: event.get(name) for name in ("loss", "accuracy")} | dict(event.get("metrics") or {})
        found = {f"{event['set']}/{name}": value for name, value in found.items()}
    else:
        return {}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def parameters_of(job: Job) -> dict[str, str]:
    """The fields of a job file by dotted name, as text."""
    found: dict[str, str] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                walk(inner, f"{name}.{key}" if name else str(key))
        else:
            found[name] = value if isinstance(value, str) else json.dumps(value)

    walk(job.model_dump(mode="json"), "")
    return found


def _events_from(path: Path, position: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The whole lines from a position on, each with the position behind it."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(position)
        for line in file:
            if not line.endswith(b"\n"):
                return  # it is being written
            position += len(line)
            yield position, json.loads(line)


def _pictures(run: Path, folder: Path, title: str) -> list[Path]:
    try:
        return draw_pictures(run, folder, title)
    except DataError as error:  # a run that ended before anything was measured
        log.warning(f"track: no pictures: {error}")
        return []


def _read_state(path: Path) -> dict[str, Any]:
    try:
        held: dict[str, Any] = json.loads(path.read_text())
        return held
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path}: is damaged ({error}); remove it to begin the trackers' runs anew") from None


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Hold the run's lock for trackers.

    Raises
    ------
    UserError
        Another process has it.
    """
    with (run / "track.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{run}: another process follows it for trackers") from None
        yield
