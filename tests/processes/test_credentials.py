"""A job whose processes show certificates and tokens to each other, and what a command says that has none."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dbelief.errors import Rejected, Unavailable, UserError
from dbelief.process.clock import SystemClock
from dbelief.registry import open_registry
from dbelief.rpc import diagnosis
from dbelief.rpc.client.coordinator_client import CoordinatorClient, MembershipClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.server.health import check_serving
from dbelief.security import Credentials, identity

from .conftest import Operator, a_free_address, dbelief, wait_for

pytestmark = pytest.mark.processes

JOB = """
name: guarded
model: {layers: [{dense: 16}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: STRATEGY
limits: {samples: 8000}
shards: 2
replicas: 2
"""
DOWNPOUR = "{name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}}"
IN_STEP = "{name: sync-sgd, batch: 16, rule: {name: sgd, rate: 0.1}}"


def _start(operator: Operator, folders: dict[str, Path], strategy: str, samples: int = 8_000) -> str:
    """All roles, each with its credentials, reached under every address of the host; the coordinator's address."""
    job = operator.folder / "job.yaml"
    job.write_text(JOB.replace("STRATEGY", strategy).replace("8000", str(samples)))
    mine = folders["ours"]
    role = operator.start(
        "coordinator", "coordinator", str(job), "--listen", "0.0.0.0:0", "--credentials", str(mine / "coordinator")
    )
    address = "127.0.0.1:" + role.said(r" on 0\.0\.0\.0:(\d+),")
    for number in range(2):
        there = ("--coordinator", address, "--credentials")
        operator.start(f"ps-{number}", "ps", *there, str(mine / "ps"))
        operator.start(f"worker-{number}", "worker", *there, str(mine / "worker"), "--metrics", "0.0.0.0:0")
    return address


@pytest.mark.long
@pytest.mark.parametrize("strategy", [DOWNPOUR, IN_STEP], ids=["downpour", "in-step"])
def test_a_job_trains_over_tls_with_tokens(strategy: str, operator: Operator, folders: dict[str, Path]) -> None:
    _start(operator, folders, strategy)
    assert [role.ends() for role in operator.roles] == [0] * 5
    assert operator.summary("guarded")["test_accuracy"] > 0.8
    secrets = [path.read_text().strip() for path in folders["ours"].rglob("token")]
    written = [path for path in operator.folder.rglob("*") if path.is_file()]
    assert len(written) > 5
    for path in written:
        assert not any(secret.encode() in path.read_bytes() for secret in secrets), path


def test_permissions_by_role_in_a_running_job(
    operator: Operator, folders: dict[str, Path], ours: Callable[[str], Credentials], monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.compute_wait_s = 0.05
    address = _start(operator, folders, DOWNPOUR, samples=100_000_000)  # it goes on until it is stopped
    operator.until_samples("guarded", 1)

    def call(role: str, ask: Callable[[CoordinatorClient], Any]) -> Any:
        monkeypatch.setattr(identity._Identity, "loaded", ours(role))
        with closing(CoordinatorClient(address, patience_s=5.0)) as client:
            return ask(client)

    for role in ("worker", "viewer", "ps"):
        with pytest.raises(Rejected, match=f"Stop is for operator, and the token for {role}"):
            call(role, lambda client: client.call("Stop", wire.StopRequest()))
    with pytest.raises(Rejected, match="the caller's token is for worker, and this is for ps"):
        call("worker", lambda client: MembershipClient(client, wire.ROLE_SHARD, "guarded", address="127.0.0.1:1"))
    with pytest.raises(Rejected, match="Join is for ps, worker, and the token for operator"):
        call("operator", lambda client: MembershipClient(client, wire.ROLE_CLIENT, "guarded"))
    assert call("viewer", lambda client: client.status().job) == "guarded"

    viewer = ("--credentials", str(folders["ours"] / "viewer"))
    assert json.loads(dbelief("status", address, "--json", *viewer))["job"] == "guarded"
    dbelief("health", address, "--timeout", "60", *viewer)
    monkeypatch.setattr(identity._Identity, "loaded", None)
    monkeypatch.setattr(diagnosis, "PATIENCE_S", 60.0)
    with pytest.raises(Unavailable, match="it speaks TLS: give --credentials"):
        check_serving(address, 1.0)
    call("operator", lambda client: client.call("Stop", wire.StopRequest(reason="an operator said so")))
    assert operator.roles[0].ends() == 0
    assert operator.summary("guarded")["reason"] == "an operator said so"


@pytest.mark.long
def test_local_job_ignores_credentials_in_the_environment(
    tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("STRATEGY", DOWNPOUR).replace("8000", "2000"))
    monkeypatch.setenv(identity.FOLDER, str(folders["ours"] / "operator"))
    assert "andshake" not in dbelief("train", str(job), folder=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("coordinator", "JOB", "--listen", "0.0.0.0:0"),
        pytest.param(
            ("coordinator", "JOB", "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"), marks=pytest.mark.long
        ),
        pytest.param(("ps", "--coordinator", "127.0.0.1:1", "--listen", "0.0.0.0:0"), marks=pytest.mark.long),
        ("ps", "--coordinator", "127.0.0.1:1", "--metrics", "[::]:0"),
        ("worker", "--coordinator", "127.0.0.1:1", "--metrics", "0.0.0.0:0"),
    ],
    ids=" ".join,
)
def test_public_port_needs_credentials(arguments: tuple[str, ...], tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("STRATEGY", DOWNPOUR))
    said = dbelief(*(str(job) if word == "JOB" else word for word in arguments), code=2)
    assert said.count("\n") == 1, said
    assert "without TLS and a token, since other machines reach it: give --credentials DIR" in said
    assert not (tmp_path / "runs").exists()


def test_another_roles_credentials_do_not_do(folders: dict[str, Path]) -> None:
    worker = str(folders["ours"] / "worker")
    said = dbelief("ps", "--coordinator", "127.0.0.1:1", "--credentials", worker, code=2)
    assert said.endswith("they are for worker, wanted ps\n")


def test_registry_password_on_the_command_line_is_refused(tmp_path: Path) -> None:
    words = ("coordinator", str(tmp_path / "job.yaml"), "--registry", "redis://:hush@127.0.0.1:1/0")
    said = dbelief(*words, code=2)
    assert "a password on a command line is for all to see" in said
    assert "hush" not in said


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A Redis server with the configuration of `dbelief certs`, in a place of its own; its credentials and URL."""
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    if server is None:
        pytest.skip("no redis-server with TLS on this machine (Debian: apt-get install redis-server)")
    made = tmp_path / "certs"
    dbelief("certs", str(made), "--registry-host", "127.0.0.1")
    conf = made / "registry" / "registry.conf"
    port = a_free_address().rpartition(":")[2]
    text = conf.read_text().replace("/credentials", str(conf.parent)).replace("6379", port)
    conf.write_text(f"{text}dir {tmp_path}\n")
    log = tmp_path / "registry.log"
    with log.open("wb") as file:
        process = subprocess.Popen([server, str(conf)], stdout=file, stderr=file)
    try:
        wait_for(lambda: "Ready to accept connections" in log.read_text(), f"a server in {log}")
        yield made, f"rediss://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def test_the_registry_requires_a_certificate_and_a_password(
    registry: tuple[Path, str], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, url = registry

    def holder(folder: Path | None, url: str = url) -> Any:
        monkeypatch.setattr(identity._Identity, "loaded", Credentials.read(folder) if folder else None)
        with closing(open_registry(url, SystemClock())) as opened:
            return opened.holder("a-job")

    assert holder(made / "coordinator") is None
    with pytest.raises(UserError, match="refuses the login"):
        holder(made / "worker")
    for stranger in (None, folders["ours"] / "coordinator"):
        with pytest.raises(Unavailable):
            holder(stranger)
    with pytest.raises(Unavailable):
        holder(made / "coordinator", url.replace("rediss", "redis"))
    with pytest.raises(UserError, match="its password would travel readable; use rediss://"):
        holder(made / "coordinator", "redis://192.0.2.7:6379")
