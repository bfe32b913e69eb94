"""Every expression of the dashboard on a real Prometheus that scrapes a real job's processes, and its types."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.errors import Refused
from dbelief.rpc import parameters_pb2 as wire
from dbelief.rpc import parameters_pb2_grpc as stubs
from dbelief.rpc.channel import named_errors, open_channel
from tests.deploy.dashboard import FILE, ask, expressions
from tests.processes.conftest import Operator, Role, operating, wait_for

pytestmark = pytest.mark.deploy

JOB = """
name: watched
model: {layers: [{dense: 16}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}}
evaluate: {every: 1257}
snapshots: {every_s: 2}
limits: {wall_s: 120}
shards: 2
replicas: 2
"""
TYPES = Path(__file__).with_name("dashboard.ts")
SCHEMA = ("typescript@5.9", "@grafana/schema@11.3.0")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "grafana"


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with operating(tmp_path) as operator:
        yield operator


@pytest.fixture
def job(operator: Operator) -> Role:
    """Its coordinator, the job training, every process with metrics."""
    (operator.folder / "job.yaml").write_text(JOB)
    coordinator, address = operator.coordinator(operator.folder / "job.yaml", "--metrics", "127.0.0.1:0")
    for name in ("ps-0", "ps-1", "worker-0", "worker-1"):
        operator.start(name, name.partition("-")[0], "--coordinator", address, "--metrics", "127.0.0.1:0")
    operator.until_samples("watched", 1)
    return coordinator


@pytest.fixture
def prometheus(operator: Operator, job: Role) -> Iterator[str]:
    """Where a Prometheus answers that scrapes every process of the job twice a second."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus on this machine (Debian: apt-get install prometheus)")
    scrapes = []
    for name in ("coordinator", "ps", "worker"):
        ports = [
            role.said(r"metrics on http://127\.0\.0\.1:(\d+)/") for role in operator.roles if name in role.log.stem
        ]
        scrapes.append({"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]})
    config = operator.folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "500ms"}, "scrape_configs": scrapes}))
    log = operator.folder / "prometheus.log"
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={operator.folder / 'tsdb'}"]
    with log.open("wb") as file:
        server = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=file, stderr=file)
    try:
        address = wait_for(lambda: re.search(r'"Listening on" address=(\S+)', log.read_text()), f"an address in {log}")
        yield f"http://{address[1]}"
    finally:
        server.terminate()
        server.wait(30)


def _be_refused(address: str) -> None:
    """A call that a shard refuses: its reasons are no series before there is one."""
    request = wire.PullRequest(target=wire.Target(job="another"), vector="w", segments=[0])
    said = "a call for job 'another' came here"
    with open_channel(address) as channel, pytest.raises(Refused, match=said), named_errors("the shard"):
        list(stubs.ParametersStub(channel).Pull(iter([request]), timeout=10))


def test_every_expression_has_an_answer(operator: Operator, job: Role, prometheus: str) -> None:
    _be_refused(next(role for role in operator.roles if role.log.stem == "ps-0").said(r" of job watched on (\S+)"))
    asked = {(title, one) for title, several in expressions("20s").items() for one in several}
    assert len(asked) > 30

    def silent() -> list[tuple[str, str]]:
        return [(title, one) for title, one in asked if not any(map(math.isfinite, ask(prometheus, one)))]

    wait_for(lambda: True if not silent() else None, "an answer to every expression")
    assert sum(ask(prometheus, 'up{job=~"coordinator|ps|worker"}')) == 5
    shares = ask(prometheus, expressions("20s")["Where the replicas' time goes"][0])
    assert sum(shares) == pytest.approx(1.0)
    (per_second,) = ask(prometheus, expressions("20s")["Samples per second"][0])
    assert per_second > 0
    job.process.send_signal(signal.SIGTERM)
    assert [role.ends() for role in operator.roles[1:]] == [0, 0, 0, 0]


def test_the_dashboard_has_grafanas_types(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on this machine")
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run([npm, "install", "--silent", "--prefix", CACHE, *SCHEMA], check=True, timeout=110)
    program = CACHE / "check.ts"
    options = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler")

    def problems(board: str) -> str:
        program.write_text(f"{TYPES.read_text()}\nconst board: Board = {board};\n")
        command = [str(CACHE / "node_modules" / ".bin" / "tsc"), *options, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return f"{done.stdout}{done.stderr}"

    assert problems(FILE.read_text()) == ""
    assert "is not assignable to type" in problems(FILE.read_text().replace('"multi"', '"mutli"'))
