"""A user of a job whose files are in an S3 server: a job file, a disk, a prefix in the store, and started commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dbelief.storage.object_store import ObjectStore, connect
from dbelief.url import Url, parse_url
from tests.storage.s3_server import LOGIN

JOB = """
name: far
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, warm_start: null}
limits: {epochs: 8}
shards: 2
replicas: 2
snapshots: {every_s: 1, keep: 2}
output: s3://bucket/OUTPUT
"""
TOTAL = 8 * 1257
T = TypeVar("T")


def until(look: Callable[[], T | None], what: str, process: subprocess.Popen[bytes]) -> T:
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s and process.poll() is None:
        if (found := look()) is not None:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited for {what}")


class Site:
    """A user with a job file, a disk for temporary files, and a prefix in the store."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.disk = folder, Path(tempfile.mkdtemp(prefix="dbelief-"))  # a socket's path is short
        self.url = parse_url(f"s3://bucket/{prefix}/far")
        self.store: ObjectStore = connect(self.url)
        self.job = folder / "job.yaml"
        self.job.write_text(JOB.replace("OUTPUT", prefix))
        self.started: list[subprocess.Popen[bytes]] = []

    def dbelief(self, *arguments: str, wait_s: float = 0.0) -> subprocess.Popen[bytes]:
        self.disk.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(self.disk), "DBELIEF_COMPUTE_WAIT": str(wait_s)}
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "dbelief", *arguments],
                    cwd=self.folder,
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
        return self.started[-1]

    def log(self, number: int = -1) -> str:
        return (self.folder / f"{range(len(self.started))[number]}.log").read_text()

    def output(self, *arguments: str) -> str:
        assert self.dbelief(*arguments).wait(120) == 0, self.log()
        return self.log()

    def sets(self) -> list[Url]:
        """The commits, oldest first."""
        return sorted(url for url in self.store.list(self.url / "snapshots") if url.name == "set.json")

    def events(self, name: str) -> list[dict[str, Any]]:
        pieces = sorted(self.store.list(self.url / "events"))
        lines = b"".join(self.store.read(url) for url in pieces).splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.store.read(self.url / "summary.json"))
        return found

    def trained(self, samples: int) -> bool | None:
        """Whether a set with that many samples is complete."""
        sets = self.sets()
        return True if sets and int(sets[-1].parent.name.partition("-")[0]) >= samples else None

    def close(self) -> None:
        """End all that runs, and check that nothing that was written shows the login."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(self.disk, ignore_errors=True)
        texts = [path.read_bytes() for path in self.folder.rglob("*.log")]
        texts += [self.store.read(url) for url in self.store.list(self.url)]
        assert not [secret for secret in LOGIN.values() for text in texts if secret.encode() in text]


def child(launcher: int, words: str) -> int:
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == launcher and words in (entry / "cmdline").read_text().replace("\0", " "):
                return int(entry.name)
        except (OSError, IndexError, ValueError):
            continue
    raise AssertionError(f"no process of {words!r}")
