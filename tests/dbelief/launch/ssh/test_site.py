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
from dbelief.launch.ssh import site
from dbelief.launch.ssh.connection import run
from dbelief.launch.ssh.site import SshSite
from dbelief.security import identity

from .stand_in import StandIn

pytestmark = pytest.mark.processes

PROGRAM = [sys.executable, "-P", "-m", "dbelief"]
DIGITS = Path(__file__).parents[4] / "examples/digits.yaml"
JOB = """
name: digits
model: {layers: [{dense: 16}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 50, rule: {name: adagrad, rate: 0.05}, warm_start: null}
limits: {epochs: 4}
shards: 2
replicas: 2
"""


@pytest.fixture
def any_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """All addresses are this machine's."""
    monkeypatch.setattr(site, "_check_own", lambda address: None)


@pytest.mark.usefixtures("any_address")
def test_hosts_reach_this_machine_under_the_address_that_they_see(ssh: StandIn) -> None:
    ssh.ends("b", "10.0.0.1", "10.0.0.2")
    ssh.ends("c", "10.0.0.1", "fd00::3")
    made = SshSite({"a": 1, "b": 1, "c": 1}, PROGRAM)
    assert made.listen == "10.0.0.1:0"
    assert made._listens == {"a": "10.0.0.1", "b": "10.0.0.2", "c": "fd00::3"}


def test_an_address_that_is_not_this_machines_is_refused(ssh: StandIn) -> None:
    ssh.ends("a", "192.0.2.1", "192.0.2.2")
    with pytest.raises(UserError, match=r"hosts see this machine as 192.0.2.1, where it cannot listen .* --address"):
        SshSite({"a": 1}, PROGRAM)
    assert SshSite({"a": 1}, PROGRAM, "[::1]").listen == "[::1]:0"


@pytest.mark.usefixtures("any_address")
def test_several_addresses_of_this_machine_are_refused(ssh: StandIn) -> None:
    ssh.ends("a", "10.0.0.1", "10.0.0.2")
    ssh.ends("b", "192.168.0.1", "192.168.0.2")
    with pytest.raises(UserError, match=r"several addresses: 10.0.0.1 \(a\), 192.168.0.1 \(b\); --address"):
        SshSite({"a": 1, "b": 1}, PROGRAM)
    assert SshSite({"a": 1, "b": 1}, PROGRAM, "10.0.0.1").listen == "10.0.0.1:0"


def test_hosts_that_cannot_take_part_are_named(ssh: StandIn) -> None:
    with pytest.raises(UserError, match=r"host a: .*not found; is 'no-such-program' how dbelief is started there"):
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
    made = SshSite({"a": 1}, PROGRAM, shares=True)
    (logs.parent / "credentials").mkdir()
    (logs.parent / "credentials" / "left").touch()  # of a launcher that was killed
    with made.entered(logs):
        assert made.arguments("worker") == []
        assert not (logs.parent / "credentials" / "left").exists()
        (_, own) = made.arguments("coordinator")
        assert Path(own) == logs.parent / "credentials" / "coordinator"
        for role in ("coordinator", "operator"):
            folder = logs.parent / "credentials" / role
            assert {"token", "ca.crt", "tls.key"} <= {file.name for file in folder.iterdir()}
            assert folder.stat().st_mode & 0o77 == 0
        assert identity.current() is not None
    assert identity.current() is None, "another job's credentials would be offered to the next one"
    assert [file.name for file in logs.parent.iterdir()] == ["logs"]


def test_hosts_that_do_not_share_the_run_folder_are_refused(
    ssh: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "run", lambda host, script, *words: "" if host == "b" else "there")
    monkeypatch.setattr(site, "_probe", lambda host, program: site.Ends("127.0.0.1", "127.0.0.1"))
    made = SshSite({"a": 1, "b": 1}, PROGRAM, shares=True)
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"host b does not share .*/run, where .* output: s3://"):
        made.entered(tmp_path / "run" / "logs").__enter__()
    assert not list((tmp_path / "run").iterdir())


def test_a_command_that_fails_names_its_host(ssh: StandIn) -> None:
    assert run("a", 'printf "%s" "$1"', "it's $HOME") == "it's $HOME"
    with pytest.raises(RuntimeFailure, match=r"^host a: broken$"):
        run("a", "echo broken >&2; exit 3")
    with pytest.raises(RuntimeFailure, match=r"^host a: exit code 3$"):
        run("a", "exit 3")


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (Where("local", hosts=Path("hosts.txt")), "--hosts and --address are of --on ssh, and this is --on local"),
        (Where("k8s"), "there is no backend 'k8s'; there are local, ssh, ray, slurm"),
        (Where("ray", address="10.0.0.1"), "--hosts and --address are of --on ssh, and this is --on ray"),
        (Where("ssh", Path("x"), sbatch="--time=1"), "--sbatch is of --on slurm, and this is --on ssh"),
        (Where("ssh"), "--on ssh needs --hosts FILE"),
        (Where("ssh", Path("x"), "a 'b"), '--remote-command "a \'b": No closing quotation'),
        (Where("ssh", Path("x"), ""), "--remote-command is empty"),
    ],
)
def test_options_of_another_backend_are_refused(where: Where, why: str) -> None:
    with pytest.raises(UserError, match=why):
        where.place(None, DIGITS, {})


def on_hosts(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command on two hosts, to its end."""
    (folder / "hosts.txt").write_text("a\nb\n")
    first, *rest = words
    command = [*PROGRAM, first, "--on", "ssh", "--hosts", "hosts.txt", "--quiet"]
    command += ["--remote-command", shlex.join(PROGRAM), *rest]
    environment = {**os.environ, "DBELIEF_CREDENTIALS": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_a_whole_job_on_two_hosts(ssh: StandIn, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    ended = on_hosts(tmp_path, "train", "job.yaml")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8
    roles = [line.split(" ", 1)[0] for line in ssh.asked if " --coordinator " in line]
    assert sorted(roles) == ["a", "a", "b", "b"]
    assert not (tmp_path / "runs" / "digits" / "credentials").exists()


def test_scripts_run_on_hosts(ssh: StandIn, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        "{name: own, model: {source: script}, data: {source: script, train: 100}, shards: 1, replicas: 2, "
        "strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}, limits: {epochs: 1}}"
    )
    (tmp_path / "own.py").write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(f'ran-{os.environ[\"DBELIEF_NAME\"]}').write_text(' '.join([sys.executable, *sys.argv]))\n"
    )
    ended = on_hosts(tmp_path, "run", "--job", "job.yaml", "own.py", "--rate", "0.5")
    assert "ended without dbelief.join()" in ended.stderr
    found = [file.read_text() for file in sorted(tmp_path.glob("ran-*"))]
    assert found == [f"{sys.executable} own.py --rate 0.5"] * 2
