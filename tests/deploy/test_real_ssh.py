"""Whole jobs on hosts by real `ssh` and `sshd`, in network namespaces of this machine."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.process.temporary_folder import remove_left
from dbelief.rundir.summary import has_ended
from tests.dbelief.launch.processes import soon
from tests.deploy.ssh_hosts import SshHosts, missing, ssh_hosts

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

PROGRAM = [sys.executable, "-P", "-m", "dbelief"]
# 1,257 samples an epoch.
JOB = """
name: digits
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}}}
limits: {{epochs: {epochs}}}
shards: 2
replication: {replication}
replicas: 2
snapshots: {{every_s: 1}}
"""
SHORT, LONG = 6, 400
FLOOR = 0.9
"""Test accuracy that the digits reach with any seed."""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    if why := missing():
        pytest.skip(why)
    with ssh_hosts(tmp_path / "ssh", 4, 500) as made:
        (tmp_path / "hosts.txt").write_text("\n".join(made.names))
        yield made


def training(hosts: SshHosts, folder: Path, epochs: int, *more: str, replication: int = 1) -> subprocess.Popen[str]:
    """`dbelief train` on h1, with members on the others."""
    (folder / "job.yaml").write_text(JOB.format(epochs=epochs, replication=replication))
    words = ["train", "job.yaml", "--on", "ssh", "--hosts", "hosts.txt", "--quiet", *more]
    command = [*hosts.here, *PROGRAM, *words, "--remote-command", shlex.join(PROGRAM)]
    return subprocess.Popen(command, cwd=folder, env=hosts.environment, stderr=subprocess.PIPE, text=True)


def operate(hosts: SshHosts, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the operator, on h1."""
    command = [*hosts.here, *PROGRAM, *words]
    return subprocess.run(command, cwd=folder, env=hosts.environment, capture_output=True, text=True, timeout=120)


def left() -> list[Path]:
    """Credentials on hosts, which share this machine's disk."""
    return list(Path(tempfile.gettempdir()).glob("dbelief-credentials-*"))


def accuracy(folder: Path) -> float:
    """Test accuracy of the run."""
    return float(json.loads((folder / "runs" / "digits" / "summary.json").read_text())["test_accuracy"])


def trains(hosts: SshHosts, folder: Path) -> bool:
    """Whether workers have joined, and the job has counted samples."""
    asked = operate(hosts, folder, "status", "runs/digits", "--json")
    return asked.returncode == 0 and json.loads(asked.stdout)["samples"] > 0


def test_a_job_ends_and_leaves_nothing(hosts: SshHosts, tmp_path: Path) -> None:
    ended = training(hosts, tmp_path, SHORT)
    _, said = ended.communicate(timeout=120)
    assert ended.returncode == 0, said
    assert accuracy(tmp_path) > FLOOR
    assert [hosts.processes(host) for host in (2, 3, 4)] == [[], [], []]
    assert not left()


def test_status_scale_stop_and_resume(hosts: SshHosts, tmp_path: Path) -> None:
    job = training(hosts, tmp_path, LONG)
    soon((tmp_path / "runs" / "digits" / "address").exists, "there is no coordinator")
    soon(lambda: trains(hosts, tmp_path), "no samples are counted")
    assert operate(hosts, tmp_path, "scale", "workers", "3", "runs/digits").returncode == 0
    soon(lambda: "worker-2" in operate(hosts, tmp_path, "status", "runs/digits").stdout, "there is no third worker")
    stopped = operate(hosts, tmp_path, "stop", "runs/digits")
    assert stopped.returncode == 0, stopped.stderr
    _, said = job.communicate(timeout=60)
    assert job.returncode == 0, said
    before = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert before["reason"] == "stopped by dbelief stop"
    again = training(hosts, tmp_path, LONG, "--resume", "--set", f"limits.epochs={int(before['epochs']) + 2}")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert accuracy(tmp_path) > FLOOR


def test_a_lost_host_is_replaced(hosts: SshHosts, tmp_path: Path) -> None:
    job = training(hosts, tmp_path, LONG, replication=2)
    soon(lambda: (tmp_path / "runs" / "digits" / "address").exists() and trains(hosts, tmp_path), "it does not train")
    hosts.cut(4)
    _, said = job.communicate(timeout=300)
    assert job.returncode == 0, said
    assert "host h4 is lost; it gets no member for 30 s" in said
    assert accuracy(tmp_path) > FLOOR


def test_members_end_with_a_killed_launcher(hosts: SshHosts, tmp_path: Path) -> None:
    job = training(hosts, tmp_path, LONG)
    soon(lambda: (tmp_path / "runs" / "digits" / "address").exists() and trains(hosts, tmp_path), "it does not train")
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=60)
    for host in (2, 3, 4):
        soon(lambda host=host: not hosts.processes(host), f"members on h{host} go on")  # type: ignore[misc]
    soon(lambda: not left(), "credentials are left on hosts")
    assert not has_ended(tmp_path / "runs" / "digits")
    remove_left(Path(tempfile.gettempdir()))  # of the launcher
