"""Hosts as a site: how they and this machine reach each other, versions, credentials, and a whole job."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dbelief.errors import RuntimeFailure, UserError
from dbelief.launch.backends import Where
from dbelief.launch.ssh.connection import run
from dbelief.launch.ssh.site import SshSite
from dbelief.security import identity

from .stand_in import StandIn

pytestmark = pytest.mark.processes

PROGRAM = [sys.executable, "-P", "-m", "dbelief"]
JOB = """
name: digits
model: {layers: [{dense: 16}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 50, rule: {name: adagrad, rate: 0.05}, warm_start: null}
limits: {epochs: 4}
shards: 2
replicas: 2
"""


def test_hosts_reach_this_machine_under_the_address_that_they_see(ssh: StandIn) -> None:
    ssh.ends("b", "10.0.0.1", "10.0.0.2")
    ssh.ends("c", "10.0.0.1", "fd00::3")
    site = SshSite({"a": 1, "b": 1, "c": 1}, PROGRAM)
    assert site.listen == "10.0.0.1:0"
    assert site._listens == {"a": "10.0.0.1", "b": "10.0.0.2", "c": "fd00::3"}


def test_several_addresses_of_this_machine_are_refused(ssh: StandIn) -> None:
    ssh.ends("a", "10.0.0.1", "10.0.0.2")
    ssh.ends("b", "192.168.0.1", "192.168.0.2")
    with pytest.raises(UserError, match=r"several addresses: 10.0.0.1 \(a\), 192.168.0.1 \(b\); --address"):
        SshSite({"a": 1, "b": 1}, PROGRAM)
    assert SshSite({"a": 1, "b": 1}, PROGRAM, "10.0.0.1").listen == "10.0.0.1:0"


def test_hosts_that_cannot_take_part_are_named(ssh: StandIn) -> None:
    with pytest.raises(UserError, match=r"host a: sh failed: .*; is 'no-such-program' how dbelief is started there"):
        SshSite({"a": 1}, ["no-such-program"])
    with pytest.raises(UserError, match=r"host a: dbelief is of version 0.0.1, and here of"):
        SshSite({"a": 1}, ["sh", "-c", "echo dbelief, version 0.0.1"])
    ssh.lose("a")
    with pytest.raises(RuntimeFailure, match="host a cannot be reached: ssh: connect to host a port 22: No route"):
        SshSite({"a": 1}, PROGRAM)


def test_the_operators_credentials_are_in_the_run_folder_while_the_job_runs(
    ssh: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity._Identity, "loaded", None)
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    site = SshSite({"a": 1}, PROGRAM)
    with site.entered(logs):
        assert site.arguments("worker") == []
        (_, own) = site.arguments("coordinator")
        assert Path(own) == logs.parent / "credentials" / "coordinator"
        for role in ("coordinator", "operator"):
            folder = logs.parent / "credentials" / role
            assert {"token", "ca.crt", "tls.key"} <= {file.name for file in folder.iterdir()}
            assert folder.stat().st_mode & 0o77 == 0
    assert not (logs.parent / "credentials").exists()


def test_a_command_that_fails_names_its_host(ssh: StandIn) -> None:
    assert run("a", ["cat"], b"given") == "given"
    with pytest.raises(RuntimeFailure, match=r"^host a: sh failed: broken$"):
        run("a", ["sh", "-c", "echo broken >&2; exit 3"])


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (Where("local", hosts=Path("hosts.txt")), "--hosts and --address are of --on ssh, and this is --on local"),
        (Where("ssh"), "--on ssh needs --hosts FILE"),
    ],
)
def test_options_of_another_backend_are_refused(where: Where, why: str) -> None:
    with pytest.raises(UserError, match=why):
        where.site(server=None)  # type: ignore[arg-type]


def test_a_whole_job_on_two_hosts(ssh: StandIn, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "hosts.txt").write_text("a\nb\n")
    words = ["train", "job.yaml", "--on", "ssh", "--hosts", "hosts.txt", "--quiet"]
    environment = {**os.environ, "DBELIEF_CREDENTIALS": ""}
    ended = subprocess.run(
        [*PROGRAM, *words, "--remote-command", shlex.join(PROGRAM)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8
    roles = [line.split(" ", 1)[0] for line in ssh.asked if " --coordinator " in line]
    assert sorted(roles) == ["a", "a", "b", "b"]
    assert not (tmp_path / "runs" / "digits" / "credentials").exists()
