"""Whole jobs whose only shared thing is an S3 server: shards fail, all processes fail, and local disks are lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import dbelief
from dbelief.storage.object_store import ObjectStore, connect
from dbelief.url import Url, parse_url
from tests.storage.s3_server import LOGIN, MISSING, WHY, s3_server

pytestmark = [pytest.mark.storage, pytest.mark.processes, pytest.mark.skipif(bool(MISSING), reason=WHY)]

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


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def site(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(tmp_path, request.node.name)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(made.disk, ignore_errors=True)
    texts = [path.read_bytes() for path in tmp_path.rglob("*.log")]
    texts += [made.store.read(url) for url in made.store.list(made.url)]
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


def trained(site: Site, samples: int) -> bool | None:
    """Whether a set with that many samples is complete."""
    sets = site.sets()
    return True if sets and int(sets[-1].parent.name.partition("-")[0]) >= samples else None


def test_a_shard_and_the_coordinator_fail(site: Site) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", wait_s=0.02)
    until(lambda: trained(site, 1000), "a set", train)
    os.kill(child(train.pid, "ps-1"), signal.SIGKILL)
    until(lambda: True if site.events("shard_back") else None, "the shard's return", train)
    os.kill(child(train.pid, "dbelief coordinator"), signal.SIGKILL)
    assert train.wait(120) == 0, site.log()
    summary = site.summary()
    assert summary["samples"] == TOTAL
    assert set(summary["died"]) >= {"shard 1", "coordinator"}
    assert site.events("takeover")
    assert len(site.sets()) == 2
    assert list(site.disk.iterdir()) == [], "nothing that is needed is on a disk"
    assert not (site.folder / "runs").exists()
    assert site.log().endswith(f"; see {site.url}\n")


def test_all_processes_and_disks_are_lost(site: Site) -> None:
    """A set of one shard, whose parameters are one segment, has each push in full or not at all: none is twice."""
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "shards=1", wait_s=0.02)
    until(lambda: trained(site, 2000), "a set", train)
    train.kill()
    train.wait()
    shutil.rmtree(site.disk)
    newest = site.sets()[-1].parent.name

    assert site.dbelief("train", str(site.job), "--quiet").wait(120) == 2
    assert f"{site.url}: a run of this name is there; continue it with --resume, or give this one" in site.log()
    resumed = site.dbelief("train", str(site.job), "--quiet", "--resume")
    assert resumed.wait(120) == 0, site.log()
    summary = site.summary()
    assert (summary["samples"], summary["pushes_trained_twice"], summary["pushes_lost"]) == (TOTAL, 0, 0)
    assert summary["test_accuracy"] > 0.9
    assert sum(summary["samples_per_replica"].values()) == TOTAL
    assert int(newest.partition("-")[0]) >= 2000
    begun = [event["samples"] for event in site.events("progress")]
    assert min(begun) < 2000 < max(begun), "events of both legs"

    model = dbelief.load_model(site.url)
    assert model.job.name == "far"
    assert json.loads(site.output("evaluate", site.url))["accuracy"] == pytest.approx(summary["test_accuracy"])
    assert "done" in site.output("status", site.url)
    assert json.loads(site.output("status", "--json", site.url))["samples"] == TOTAL
    assert "far" in site.output("report", site.url, "--output", str(site.folder / "pictures"))
    assert (site.folder / "pictures" / "curves.png").exists()
    for vector in ([], ["--vector", "w"]):
        site.output("export", site.url, "--output", str(site.folder / "model.npz"), "--format", "npz", *vector)
    more = ["--set", "name=further", "--set", f"start_from={site.url}", "--set", "limits.epochs=1"]
    assert site.dbelief("train", str(site.job), "--quiet", *more).wait(120) == 0, site.log()
    assert list(site.disk.iterdir()) == []


def test_a_run_in_progress_is_not_disturbed(site: Site) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", wait_s=0.05)
    until(lambda: trained(site, 1), "a set", train)
    assert json.loads(site.output("status", "--json", site.url))["state"] == "training"
    assert site.dbelief("train", str(site.job), "--quiet", "--resume").wait(120) == 2
    assert f"{site.url}: a run is in progress there; end it first, or give this one another name" in site.log()
    train.send_signal(signal.SIGINT)
    assert train.wait(120) == 130
    assert site.summary()["reason"] == "stopped by Ctrl-C"


def test_a_bucket_that_is_absent(site: Site) -> None:
    train = site.dbelief("train", str(site.job), "--quiet", "--set", "output=s3://absent/runs")
    assert train.wait(120) == 2
    assert site.log() == "Error: s3://absent/runs/far: there is no such bucket\n"
