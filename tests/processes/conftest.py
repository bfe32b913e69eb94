"""Roles started by hand, as an operator would, each as a process of its own on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from safetensors.numpy import load_file

T = TypeVar("T")

DEADLINE_S = 300.0
"""Of every wait: what takes seconds here takes minutes where others keep the cores busy."""


def parameters(run: Path) -> dict[str, bytes]:
    """Bits of a run's model by tensor: its file holds the job too, and jobs that are compared differ in a field."""
    return {name: values.tobytes() for name, values in load_file(run / "model.safetensors").items()}


DBELIEF = (sys.executable, "-P", "-m", "dbelief")


class Role:
    """One `dbelief` command, or what a launcher makes of it; or another program."""

    def __init__(
        self,
        folder: Path,
        name: str,
        arguments: list[str],
        launcher: Sequence[str] = (),
        compute_wait_s: float = 0.0,
        program: Sequence[str] = DBELIEF,
    ) -> None:
        self.log = folder / f"{name}.log"
        command = [*launcher, *program, *arguments]
        environment = {**os.environ, "DBELIEF_COMPUTE_WAIT": str(compute_wait_s)}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment
            )

    def said(self, pattern: str) -> str:
        """Wait until the log holds a line like this; its first group."""
        return wait_for(lambda: self._find(pattern), f"{pattern!r} in {self.log}")

    def _find(self, pattern: str) -> str | None:
        found = re.search(pattern, self.log.read_text())
        return found.group(1) if found else None

    def ends(self) -> int:
        """Wait for its end; the exit code."""
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def wait_for(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Look until it is so, or there is something, with a deadline."""
    until_s = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < until_s, f"waited {deadline_s:g} s for {what}"
        time.sleep(0.02)
    return found


def dbelief(*words: str, code: int = 0, folder: Path | None = None) -> str:
    """Run a command to its end, which has this exit code; what it printed, standard output first."""
    ended = subprocess.run(
        [*DBELIEF, *words], cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


def descendants(pid: int) -> list[int]:
    """Processes below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def child(launcher: int, words: str) -> int:
    """The process id of one below the launcher, by what its command line holds."""

    def look() -> int | None:
        for pid in descendants(launcher):
            try:
                if words in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
                    return pid
            except OSError:
                continue
        return None

    return wait_for(look, f"a process of {words!r}")


def a_free_address() -> str:
    """A port of loopback on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Operator:
    """Starts roles, and ends at last all that still run.

    Attributes
    ----------
    compute_wait_s
        Seconds by which the workers it starts compute each mini-batch longer. A job that must outlast a fault lasts by
        waiting, not by more samples: that takes no processor time, and a fast machine is not done sooner.
    """

    def __init__(self, folder: Path) -> None:
        self.compute_wait_s = 0.0
        self.folder = folder
        self.roles: list[Role] = []

    def start(self, name: str, *arguments: str, launcher: Sequence[str] = (), program: Sequence[str] = DBELIEF) -> Role:
        role = Role(self.folder, name, list(arguments), launcher, self.compute_wait_s, program)
        self.roles.append(role)
        return role

    def write_job(self, text: str) -> Path:
        """Write a job file beside the run."""
        path = self.folder / "job.yaml"
        path.write_text(text)
        return path

    def coordinator(self, job: Path, *arguments: str) -> tuple[Role, str]:
        role = self.start("coordinator", "coordinator", str(job), "--listen", "127.0.0.1:0", *arguments)
        return role, role.said(r" on (127\.0\.0\.1:\d+),")

    def members(self, address: str, shards: int, workers: int) -> list[Role]:
        names = [(f"ps-{n}", "ps") for n in range(shards)] + [(f"worker-{n}", "worker") for n in range(workers)]
        return [self.start(name, role, "--coordinator", address) for name, role in names]

    def summary(self, job: str) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "runs" / job / "summary.json").read_text())
        return summary

    def trained(self, job: str, path: Path, *options: str, launcher: Sequence[str] = ()) -> dict[str, Any]:
        """Train a job to its good end; its summary."""
        train = self.start("train", "train", "--quiet", *options, str(path), launcher=launcher)
        assert train.ends() == 0, train.log.read_text()
        return self.summary(job)

    def events(self, job: str, kind: str | None = None) -> list[dict[str, Any]]:
        """All events of a job so far, or those of a kind."""
        path = self.folder / "runs" / job / "events.jsonl"
        if not path.exists():
            return []
        found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return [event for event in found if kind in (None, event["event"])]

    def until(self, job: str, kind: str, times: int = 1) -> None:
        """Wait until there are so many events of a kind."""
        wait_for(lambda: len(self.events(job, kind)) >= times, f"{times} times {kind!r}")

    def until_joined(self, job: str, replicas: int) -> None:
        """Wait until so many replicas have joined."""

        def joined() -> int:
            return sum(e["what"] == "joined" and e["role"] == "replica" for e in self.events(job, "member"))

        wait_for(lambda: joined() >= replicas, f"{replicas} replicas of {job}")

    def until_died(self, job: str, ends: Collection[str] = ("died",)) -> None:
        """Wait until the coordinator has recorded that a member has died, or has ended in another of these ways."""
        wait_for(lambda: any(e["what"] in ends for e in self.events(job, "member")), f"a death in {job}")

    def until_samples(self, job: str, samples: int, since: int = 0) -> None:
        """Wait until so many samples are trained, as an event after so many others tells."""

        def reached() -> bool:
            seen = [e["samples"] for e in self.events(job)[since:] if e["event"] == "progress"]
            return bool(seen) and seen[-1] >= samples

        wait_for(reached, f"{samples} samples of {job}")


@contextmanager
def operating(folder: Path) -> Iterator[Operator]:
    """An operator for as long as the block lasts; what it started ends with it."""
    operator = Operator(folder)
    try:
        yield operator
    finally:
        for role in operator.roles:
            if role.process.poll() is None:
                role.kill()


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """A Redis server of one's own, and its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    socket_path = folder / "redis.sock"
    server = subprocess.Popen(
        [binary, "--port", "0", "--unixsocket", str(socket_path), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(socket_path.exists, "redis-server")
        yield f"unix://{socket_path}"
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Signals that this process ignores, as under `nohup`, are not ignored by what it starts."""
    ignored = [number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
