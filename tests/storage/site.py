"""A user of a job whose files are in an S3 server: a job file, a disk, a prefix in the store, and started commands."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from dbelief.storage.object_store import ObjectStore, connect
from dbelief.url import Url, parse_url
from tests.processes.conftest import Operator, Role, wait_for
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


class Site:
    """A user with a job file, a disk for temporary files, and a prefix in the store."""

    def __init__(self, operator: Operator, prefix: str) -> None:
        self.operator, self.folder = operator, operator.folder
        self.disk = Path(tempfile.mkdtemp(prefix="dbelief-"))  # a socket's path is short
        self.url = parse_url(f"s3://bucket/{prefix}/far")
        self.store: ObjectStore = connect(self.url)
        self.job = operator.write_job(JOB.replace("OUTPUT", prefix))

    def dbelief(self, *arguments: str, wait_s: float = 0.0) -> Role:
        self.disk.mkdir(exist_ok=True)
        self.operator.compute_wait_s = wait_s
        name = str(len(self.operator.roles))
        return self.operator.start(name, *arguments, launcher=("env", f"TMPDIR={self.disk}"))

    def log(self) -> str:
        """What the last command has printed."""
        return self.operator.roles[-1].log.read_text()

    def output(self, *arguments: str) -> str:
        assert self.dbelief(*arguments).ends() == 0, self.log()
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

    def until_trained(self, samples: int) -> None:
        """Wait until a set with that many samples is complete."""

        def trained() -> bool:
            sets = self.sets()
            return bool(sets) and int(sets[-1].parent.name.partition("-")[0]) >= samples

        wait_for(trained, f"a set of {samples} samples")

    def close(self) -> None:
        """Check that nothing that was written shows the login; all processes have ended."""
        shutil.rmtree(self.disk, ignore_errors=True)
        texts = [path.read_bytes() for path in self.folder.rglob("*.log")]
        texts += [self.store.read(url) for url in self.store.list(self.url)]
        assert not [secret for secret in LOGIN.values() for text in texts if secret.encode() in text]
