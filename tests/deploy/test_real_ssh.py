"""Whole jobs on hosts by real `ssh` and `sshd`, in network namespaces of this machine."""

from __future__ import annotations

import shlex
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.process.temporary_folder import remove_left
from dbelief.rundir.summary import has_ended
from tests.dbelief.launch.processes import soon
from tests.deploy.digits_job import (
    FLOOR,
    LONG,
    PROGRAM,
    SAMPLES,
    SHORT,
    DigitsJob,
    ends_well,
    scaled_stopped_and_resumed,
)
from tests.deploy.ssh_hosts import SshHosts, missing, ssh_hosts

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    if why := missing():
        pytest.skip(why)
    with ssh_hosts(tmp_path / "ssh", 4, 500) as made:
        (tmp_path / "hosts.txt").write_text("\n".join(made.names))
        yield made


@pytest.fixture
def job(hosts: SshHosts, tmp_path: Path) -> Iterator[DigitsJob]:
    """Commands on h1, with members on the others."""
    on = ["--on", "ssh", "--hosts", "hosts.txt", "--remote-command", shlex.join(PROGRAM)]
    made = DigitsJob(tmp_path, on, hosts.environment, hosts.here)
    yield made
    made.end()


def left() -> list[Path]:
    """Credentials on hosts, which share this machine's disk."""
    return list(Path(tempfile.gettempdir()).glob("dbelief-credentials-*"))


def test_a_job_ends_and_leaves_nothing(hosts: SshHosts, job: DigitsJob) -> None:
    ends_well(job.train(SHORT), 120)
    assert job.summary["samples"] == SHORT * SAMPLES
    assert job.summary["test_accuracy"] > FLOOR
    assert [hosts.processes(host) for host in (2, 3, 4)] == [[], [], []]
    assert not left()


def test_status_scale_stop_and_resume(job: DigitsJob) -> None:
    ended = scaled_stopped_and_resumed(job)
    assert ended["epochs"] > ended["epochs_before"]
    assert ended["test_accuracy"] > FLOOR


def test_a_lost_host_is_replaced(hosts: SshHosts, job: DigitsJob) -> None:
    training = job.train(LONG, replication=2)
    soon(lambda: job.trains, "it does not train")
    hosts.cut(4)
    assert "host h4 is lost; it gets no member for 30 s" in ends_well(training, 300)
    assert job.summary["test_accuracy"] > FLOOR


def test_members_end_with_a_killed_launcher(hosts: SshHosts, job: DigitsJob) -> None:
    training = job.train(LONG)
    soon(lambda: job.trains, "it does not train")
    training.send_signal(signal.SIGKILL)
    training.communicate(timeout=60)
    for host in (2, 3, 4):
        soon(lambda host=host: not hosts.processes(host), f"members on h{host} go on")  # type: ignore[misc]
    soon(lambda: not left(), "credentials are left on hosts")
    assert not has_ended(job.run)
    remove_left(Path(tempfile.gettempdir()))  # of the launcher
