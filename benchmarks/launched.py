"""A run of `dbelief` seen from outside: what it has trained, which processes it is made of, and whether all ended.

Its processes are those that were started here, their descendants, and whoever has the run's mark in the environment,
which each of them inherits. Those once seen are known by their start time after their parent's death; so nothing of
another run on the same machine is ever touched.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dbelief.data import load
from dbelief.errors import DataError
from dbelief.job import load_job
from dbelief.rundir.events import read_events

T = TypeVar("T")

MARK = "DBELIEF_BENCHMARK_RUN"
COMMAND = [sys.executable, "-P", "-m", "dbelief"]
NUMBERS = '''
import numpy as np

class Numbers:
    """So many numbers, all 0 at first; what is pushed is the business of loops of their own."""

    def parameters(self, rng):
        return {"w": np.zeros(SIZE, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        raise AssertionError("nobody trains it")
'''
END_S = 10.0
"""How long the last of a run's processes may take to end."""


def wait_for(look: Callable[[], T | None], what: str, deadline_s: float) -> T:
    """Look until there is something.

    Raises
    ------
    TimeoutError
        Naming what was waited for.
    """
    until_s = time.monotonic() + deadline_s
    while (found := look()) is None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.05)
    return found


def total_samples(job: Path, fields: dict[str, str]) -> int:
    """How many samples the job trains on, over all epochs."""
    loaded = load_job(job, fields)
    train = load(loaded.data, loaded.folder).train
    if train is None or loaded.limits.epochs is None:
        raise SystemExit(f"{job}: wanted a job with training data and limits.epochs")
    return int(len(train) * loaded.limits.epochs)


class Rows(list[dict[str, Any]]):
    """What came of each run, as JSON lines: those of earlier parts first; what is added is in the file at once."""

    def __init__(self, path: Path | None) -> None:
        earlier = path.read_text().splitlines() if path is not None and path.exists() else []
        super().__init__(json.loads(line) for line in earlier)
        self._path = path

    def append(self, row: dict[str, Any]) -> None:
        """Add one."""
        super().append(row)
        if self._path is not None:
            with open(self._path, "a") as file:
                file.write(json.dumps(row) + "\n")


class Run:
    """One run in a folder of its own, whose processes are started by `start`.

    Attributes
    ----------
    folder
        Where it runs; the job's run folder is `run`.
    temporary
        Its processes' temporary folder.
    """

    def __init__(self, folder: Path, job: str) -> None:
        self.folder = folder
        self.run = folder / job
        self.temporary = folder / "t"
        self.temporary.mkdir()
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[bytes]] = []
        self._seen: dict[int, str] = {}

    def start(self, name: str, arguments: Sequence[str], prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one `dbelief` command; its output goes to a file of this name."""
        environment = {**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary)}
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                [*prefix, *COMMAND, *arguments],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.started.append(process)
        return process

    def own_loops(self, parameters: int, rule: dict[str, Any]) -> dict[str, Any]:
        """A job of so many parameters for clients with loops of their own, which goes on until it is ended."""
        (self.folder / "model.py").write_text(NUMBERS.replace("SIZE", str(parameters)))
        return {
            "name": self.run.name,
            "model": {"python": "model.py:Numbers"},
            "data": {"source": "none"},
            "strategy": {"name": "downpour", "batch": 1, "rule": rule, "warm_start": None},
            "limits": {"wall_s": 36_000},
            "replicas": 0,
        }

    def coordinator(self, job: dict[str, Any], deadline_s: float) -> tuple[subprocess.Popen[bytes], list[str]]:
        """Write a job file and start its coordinator alone; what its members are to be told, once it listens."""
        ready = self.folder / "address"
        (self.folder / "job.yaml").write_text(json.dumps(job))
        listen = ["--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        process = self.start("coordinator", ["coordinator", "job.yaml", "--set", f"output={self.folder}", *listen])
        wait_for(lambda: True if ready.exists() else process.poll(), "the coordinator", deadline_s)
        if not ready.exists():
            raise SystemExit("\n".join(self.output("coordinator")))
        return process, ["--coordinator", ready.read_text()]

    def finish(self, look: Callable[[], int | None], deadline_s: float) -> list[dict[str, Any]]:
        """Wait until the coordinator's exit code is there, which is to be 0; the run's events."""
        if wait_for(look, "the end of the job", deadline_s):
            raise SystemExit("\n".join(self.output("coordinator")))
        return list(read_events(self.run / "events.jsonl"))

    def samples(self) -> int:
        """Samples trained so far."""
        try:
            events = read_events(self.run / "events.jsonl")
            return int(max(event["samples"] for event in events if event["event"] == "progress"))
        except (DataError, OSError, ValueError):
            return 0  # not there yet

    def summary(self) -> dict[str, Any]:
        """What the run says of itself at its end; empty where it says nothing."""
        try:
            summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        except (OSError, ValueError):
            return {}
        return summary

    def processes(self) -> dict[int, list[str]]:
        """Command lines of its processes that live, by pid."""
        table = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, parent, *_, born = (folder / "stat").read_text().rpartition(")")[2].split()[:20]
                words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended while we looked, or belongs to another user
            if state != "Z":
                table[int(folder.name)] = int(parent), born, words, marked
        roots = {process.pid for process in self.started}
        ours: set[int] = set()
        for pid, (_, born, _, marked) in table.items():
            one = pid
            while one in table and one not in roots:
                one = table[one][0]
            if marked or one in roots or self._seen.get(pid) == born:
                ours.add(pid)
        self._seen.update({pid: table[pid][1] for pid in ours})
        return {pid: table[pid][2] for pid in sorted(ours)}

    def members(self) -> dict[str, list[tuple[int, str]]]:
        """Pid and name of the processes that live, by role."""
        roles: dict[str, list[tuple[int, str]]] = {"worker": [], "shard": [], "coordinator": [], "registry": []}
        for pid, words in self.processes().items():
            if "valkey-server" in words[0]:  # which writes its address behind its name
                roles["registry"].append((pid, "registry"))
            elif "dbelief" in words:
                word = words[words.index("dbelief") + 1]
                number = words[words.index("--number") + 1] if "--number" in words else ""
                role = {"ps": "shard", "worker": "worker", "coordinator": "coordinator"}.get(word)
                if role is not None:
                    roles[role].append((pid, f"{word}-{number}" if number else word))
        return roles

    def output(self, name: str) -> list[str]:
        """Lines that a command has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace").splitlines()

    def end(self) -> list[str]:
        """Whatever is still there after a while is named, and killed."""
        until_s = time.monotonic() + END_S
        while (left := self.processes()) and time.monotonic() < until_s:
            for process in self.started:
                process.poll()
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait()
        return [" ".join(words) for words in left.values()]
