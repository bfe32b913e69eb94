"""A run of `dbelief` observed from outside: its progress, its processes, and whether all of them ended.

Its processes are those started here, their descendants, and those with the run's mark in their environment, which each
of them inherits. A process once seen is recognised by its start time after its parent's death; so no process of another
run on the same machine is ever touched.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """A vector of zeros, changed by the pushes of custom training loops."""

    def parameters(self, rng):
        return {"w": np.zeros(SIZE, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        raise AssertionError("this model is not trained")
'''
END_S = 10.0
"""How long the last of a run's processes may take to end."""


def wait_for(look: Callable[[], T | None], what: str, deadline_s: float) -> T:
    """Poll until `look` returns a value.

    Raises
    ------
    TimeoutError
        After the deadline; it names `what`.
    """
    until_s = time.monotonic() + deadline_s
    while (found := look()) is None:
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.05)
    return found


def dbelief(folder: Path | str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one command of `dbelief` in a folder to its end; where it fails, what it says ends the benchmark."""
    ended = subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return ended


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def processor_s(processes: Iterable[subprocess.Popen[bytes]]) -> float:
    """User and system time of running processes so far, in seconds."""
    stats = [Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split() for process in processes]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def status_kib(pid: int, field: str) -> int:
    """A field of /proc/PID/status, in KiB (or as a plain number); OSError where the process has ended."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"\n{field}:")[2].split()[0])


def total_samples(job: Path, fields: dict[str, str]) -> int:
    """Samples that the job trains on, over all epochs."""
    loaded = load_job(job, fields)
    train = load(loaded.data, loaded.folder).train
    if train is None or loaded.limits.epochs is None:
        raise SystemExit(f"{job}: wanted a job with training data and limits.epochs")
    return int(len(train) * loaded.limits.epochs)


class Rows(list[dict[str, Any]]):
    """Figures of each run, kept as JSON lines in a file: earlier rows first; an added row is written at once."""

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
        Working directory of its processes; the job's run folder is `run`.
    temporary
        Temporary folder of its processes.
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
        return self.start_program(name, [*prefix, *COMMAND, *arguments])

    def start_program(
        self, name: str, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start any program as a process of this run, with more variables in its environment."""
        environment = {**os.environ, **(more or {}), MARK: self.mark, "TMPDIR": str(self.temporary)}
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.started.append(process)
        return process

    def own_loops(self, parameters: int, rule: dict[str, Any]) -> dict[str, Any]:
        """A job of so many parameters for clients with custom training loops, which runs until SIGTERM."""
        (self.folder / "model.py").write_text(NUMBERS.replace("SIZE", str(parameters)))
        return {
            "name": self.run.name,
            "model": {"python": "model.py:Numbers"},
            "data": {"source": "none"},
            "strategy": {"name": "downpour", "batch": 1, "rule": rule, "warm_start": None},
            "limits": {"wall_s": 36_000},
            "replicas": 0,
        }

    def coordinator(
        self, job: dict[str, Any] | Path, deadline_s: float, arguments: Sequence[str] = ()
    ) -> tuple[subprocess.Popen[bytes], list[str]]:
        """Start the coordinator of a job alone; once it listens, return the options of its members."""
        ready, file = self.folder / "address", self.folder / "job.yaml"
        if isinstance(job, Path):
            file = job.absolute()
        else:
            file.write_text(json.dumps(job))
        listen = ["--listen", "127.0.0.1:0", "--ready-file", str(ready)]
        command = ["coordinator", str(file), "--set", f"output={self.folder}", *listen, *arguments]
        process = self.start("coordinator", command)
        wait_for(lambda: ready.exists() or process.poll(), "the coordinator", deadline_s)
        if not ready.exists():
            raise SystemExit("\n".join(self.output("coordinator")))
        return process, ["--coordinator", ready.read_text()]

    def finish(self, look: Callable[[], int | None], deadline_s: float) -> list[dict[str, Any]]:
        """Poll for the coordinator's exit code, which must be 0; return the run's events."""
        if wait_for(look, "the end of the job", deadline_s):
            raise SystemExit("\n".join(self.output("coordinator")))
        return list(read_events(self.run / "events.jsonl"))

    def samples(self) -> int:
        """Samples trained so far."""
        try:
            events = read_events(self.run / "events.jsonl")
            return int(max(event["samples"] for event in events if event["event"] == "progress"))
        except (DataError, OSError, ValueError):
            return 0  # not written yet

    def summary(self) -> dict[str, Any]:
        """The run's summary; empty before its end."""
        try:
            summary: dict[str, Any] = json.loads((self.run / "summary.json").read_text())
        except (OSError, ValueError):
            return {}
        return summary

    def figures(self) -> dict[str, Any]:
        """Accuracy, samples and losses of the summary."""
        summary = self.summary()
        found = {key: summary.get(key) for key in ("test_accuracy", "samples", "samples_per_replica", "reason")}
        return found | {key: value for key, value in summary.items() if re.search("lost|twice|died", key)}

    def processes(self) -> dict[int, list[str]]:
        """Command lines of its running processes, by pid."""
        table = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, parent, *_, born = (folder / "stat").read_text().rpartition(")")[2].split()[:20]
                words = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ").split()
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # ended meanwhile, or of another user
            if state != "Z":
                table[int(folder.name)] = int(parent), born, words, marked
        # The pid of a process that was waited for may be another program's by now.
        roots = {process.pid for process in self.started if process.returncode is None}
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
        """Pid and name of the running processes, by role."""
        roles: dict[str, list[tuple[int, str]]] = {"worker": [], "shard": [], "coordinator": [], "registry": []}
        for pid, words in self.processes().items():
            if not words:
                continue  # it is about to run another program
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
        """Lines that the process of this name has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace").splitlines()

    def end(self) -> list[str]:
        """Wait up to `END_S` for all processes to end; kill the rest and return their command lines."""
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


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises `SystemExit` meanwhile: a benchmark that is ended, as by `timeout`, must end its processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def temporary_run(job: str) -> Iterator[Run]:
    """A run in a temporary folder; processes left at the end of the block are terminated, and killed after `END_S`."""
    # A short name: paths of sockets end at 107 bytes.
    with _ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Run(Path(folder), job)
        try:
            yield run
        finally:
            for process in run.started:
                process.terminate()
            run.end()
