"""Every expression of the dashboard on a real Prometheus that scrapes a real job's processes, and its types."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from dbelief.errors import Rejected
from dbelief.rpc.channel import named_errors, open_channel
from dbelief.rpc.pb import coordination_pb2 as coordination
from dbelief.rpc.pb import coordination_pb2_grpc
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import parameters_pb2_grpc as stubs
from tests.deploy.dashboard import FILES, RULES, ask, expressions, rules
from tests.processes.conftest import Operator, Role, operating, redis_server, wait_for

pytestmark = pytest.mark.deploy

JOB = """
name: {name}
model: {{layers: [{{dense: 16}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {strategy}
evaluate: {{every: 5000}}
snapshots: {{every_s: 2}}
deadlines: {{beat_s: 3}}
limits: {{epochs: 1000000, wall_s: 600}}
shards: {shards}
replicas: {replicas}
"""
DOWNPOUR = "{name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}, staleness: 4}"
BATCH = "{name: sandblaster, portion: 20, bundle: 4, iterations: null, gradient_norm: null, relative_decrease: null}"
METRICS = ("--metrics", "127.0.0.1:0")
TYPES = Path(__file__).with_name("dashboard.ts")
SCHEMA = ("typescript@5.9", "@grafana/schema@11.3.0")
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "grafana"


class Cluster:
    """A job of Downpour with a standby, one of a batch method, each with a worker that is slow."""

    def __init__(self, operator: Operator, registry: str) -> None:
        self.operator = operator
        self._registry = registry
        self.roles: dict[str, Role] = {}
        self._targets = operator.folder / "targets.json"
        self.leader, self.address = self._job("watched", DOWNPOUR, shards=2, replicas=3)
        self.standby = self._coordinator("watched", "coordinator-standby", self.address)
        self.batch, address = self._job("batch", BATCH, shards=1, replicas=2)
        for name, job in (("ps-0", self.address), ("ps-1", self.address), ("ps-batch", address)):
            self.member(name, job)
        self._until_they_say(r"(shard \d+) of job", "ps-0", "ps-1", "ps-batch")
        for name in ("worker-0", "worker-1"):
            self.member(name, self.address)
        self.member("worker-slow", self.address, "--compute-wait", "0.1")
        self.member("worker-batch", address)
        self.member("worker-batch-slow", address, "--compute-wait", "0.05")
        self._until_they_say("(joining)", "worker-0", "worker-1", "worker-slow", "worker-batch", "worker-batch-slow")
        for job, workers in (("watched", 3), ("batch", 2)):
            operator.until_joined(job, workers)
            operator.until_samples(job, 1)

    def _until_they_say(self, what: str, *names: str) -> None:
        for name in names:
            self.roles[name].said(what)

    def _job(self, name: str, strategy: str, shards: int, replicas: int) -> tuple[Role, str]:
        text = JOB.format(name=name, strategy=strategy, shards=shards, replicas=replicas)
        (self.operator.folder / f"{name}.yaml").write_text(text)
        role = self._coordinator(name, f"coordinator-{name}", "127.0.0.1:0")
        return role, role.said(r" on (127\.0\.0\.1:\d+),")

    def _coordinator(self, job: str, name: str, listen: str) -> Role:
        file = self.operator.folder / f"{job}.yaml"
        return self._start(name, "coordinator", str(file), "--listen", listen, "--registry", self._registry)

    def member(self, name: str, address: str, *options: str) -> Role:
        return self._start(name, name.partition("-")[0], "--coordinator", address, *options)

    def _start(self, name: str, *arguments: str) -> Role:
        self.roles[name] = self.operator.start(name, *arguments, *METRICS)
        return self.roles[name]

    def scraped(self) -> int:
        """Have Prometheus scrape those that live; how many they are."""
        rows = []
        for name, role in self.roles.items():
            if role.process.poll() is None:
                port = role.said(r"metrics on http://127\.0\.0\.1:(\d+)/")
                rows.append({"targets": [f"127.0.0.1:{port}"], "labels": {"job": name.partition("-")[0]}})
        new = self._targets.with_suffix(".new")
        new.write_text(json.dumps(rows))
        new.rename(self._targets)
        return len(rows)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with redis_server(tmp_path) as registry, operating(tmp_path) as operator:
        yield Cluster(operator, registry)


@pytest.fixture
def prometheus(cluster: Cluster) -> Iterator[str]:
    """Where a Prometheus answers that scrapes every process twice a second, and has the rules."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus on this machine (Debian: apt-get install prometheus)")
    folder = cluster.operator.folder
    found = [{"files": [str(folder / "targets.json")], "refresh_interval": "1s"}]
    told = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "cluster", "file_sd_configs": found}],
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(told))
    log = folder / "prometheus.log"
    command = [binary, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with log.open("wb") as file:
        server = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=file, stderr=file)
    try:
        address = wait_for(lambda: re.search(r'"Listening on" address=(\S+)', log.read_text()), f"an address in {log}")
        url = f"http://{address[1]}"
        wait_for(lambda: _ready(url), f"{url} to be ready")
        yield url
    finally:
        server.terminate()
        server.wait(30)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=10):
            return True
    except urllib.error.HTTPError:
        return False


def _be_refused(address: str, call: Callable[[grpc.Channel], object], said: str) -> None:
    """A call that is refused: its reasons are no series before there is one."""
    with open_channel(address) as channel, pytest.raises(Rejected, match=said), named_errors("it"):
        call(channel)


def _be_refused_by_both(cluster: Cluster) -> None:
    pull = wire.PullRequest(target=wire.Target(job="another"), vector="w", segments=[0])
    shard = cluster.roles["ps-0"].said(r" of job watched on (\S+)")
    _be_refused(
        shard,
        lambda channel: list(stubs.ParametersStub(channel).Pull(iter([pull]), timeout=10)),
        "a call for job 'another' is not for this shard",
    )
    join = coordination.JoinRequest(job="another", role=coordination.ROLE_SHARD)
    _be_refused(
        cluster.address,
        lambda channel: coordination_pb2_grpc.CoordinatorStub(channel).Join(join, timeout=10),
        "this coordinator runs job 'watched'",
    )


EXPIRED = "dbelief_coordinator_leases_expired_total >= 1"


def _kill_one_that_holds_a_lease(cluster: Cluster, prometheus: str, until: Callable[[str, float], None]) -> None:
    """Kill workers, and start others, until one of them has held a lease; who waits for the others holds none."""
    names = ["worker-slow", "worker-0", "worker-1"]  # at work for long, they come first
    for deaths in range(1, 11):
        cluster.roles[names.pop(0)].kill()
        until('dbelief_coordinator_members_lost_total{role="worker"}', deaths)
        with suppress(AssertionError):
            wait_for(lambda: ask(prometheus, EXPIRED), EXPIRED, 10.0)
            return
        names.append(f"worker-{deaths + 1}")
        cluster.member(names[-1], cluster.address)
        cluster.roles[names[-1]].said(r"(replica \d+ of job)")
        cluster.scraped()
    raise AssertionError("ten workers were killed, and none of them held a lease")


@pytest.mark.timeout(600)
def test_every_dashboard_query_answers_during_faults(cluster: Cluster, prometheus: str) -> None:
    def until(expression: str, least: float = 1.0) -> None:
        told = f"{expression} >= {least:g}"
        wait_for(lambda: max(ask(prometheus, expression), default=-1.0) >= least, told, 120.0)

    def silent() -> set[tuple[str, str, str]]:
        return {one for one in asked if not any(map(math.isfinite, ask(prometheus, one[2])))}

    asked = {(*panel, one) for panel, several in expressions("20s").items() for one in several}
    assert len(asked) > 90
    living = cluster.scraped()
    until('sum(up{job=~"coordinator|ps|worker"})', living)
    assert sorted(ask(prometheus, "dbelief_coordinator_leading")) == [0, 1, 1]

    _be_refused_by_both(cluster)
    until("sum(dbelief_ps_refused_total)")
    until("sum(dbelief_coordinator_refused_total)")
    until("dbelief_coordinator_stragglers")
    until('count(ALERTS{alertname="DbeliefStraggler"})')
    until("dbelief_coordinator_backups_won_total")
    until("max(dbelief_ps_hottest_pushes_per_second)")
    shares = ask(prometheus, expressions("20s")["workers", "Where the replicas' time goes"][0])
    assert sum(shares) == pytest.approx(1.0)

    _kill_one_that_holds_a_lease(cluster, prometheus, until)
    cluster.roles["ps-1"].kill()
    until("dbelief_coordinator_shards_away")
    until('count(ALERTS{alertname="DbeliefShardDown"})')
    cluster.member("ps-again", cluster.address)
    cluster.scraped()
    until("dbelief_coordinator_shards_back_total")
    until('sum(dbelief_worker_retries_total{to="ps"})')
    cluster.leader.kill()
    cluster.standby.said(r"(taking over from another coordinator)")
    cluster.scraped()
    until("dbelief_coordinator_takeovers_total")
    until('sum(dbelief_worker_retries_total{to="coordinator"})')

    with suppress(AssertionError):
        wait_for(lambda: not silent(), "an answer to every expression")
    assert silent() == set()
    assert ask(prometheus, "dbelief:over") == [0]
    for coordinator in (cluster.batch, cluster.standby):
        coordinator.process.send_signal(signal.SIGTERM)
        assert coordinator.ends() == 0
    wait_for(lambda: not ask(prometheus, "up == 1"), "the end of all processes")
    # One more scrape was waited for, so that it is known how both ended.
    assert ask(prometheus, 'count(last_over_time(dbelief_coordinator_state{state="done"}[2m]) == 1)') == [2]
    assert ask(prometheus, "dbelief:over") == [1]
    assert ask(prometheus, 'ALERTS{alertname="DbeliefCoordinatorDown"}') == []


@pytest.fixture(scope="module")
def compiler() -> Path:
    """TypeScript's, with Grafana's types."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm on this machine")
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run([npm, "install", "--silent", "--prefix", CACHE, *SCHEMA], check=True, timeout=110)
    return CACHE / "node_modules" / ".bin" / "tsc"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_dashboards_have_grafanas_types(file: Path, compiler: Path) -> None:
    program = CACHE / "check.ts"
    options = ("--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler")

    def problems(board: str) -> str:
        program.write_text(f"{TYPES.read_text()}\nconst board: Board = {board};\n")
        command = [str(compiler), *options, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return f"{done.stdout}{done.stderr}"

    assert problems(file.read_text()) == ""
    assert "is not assignable to type" in problems(file.read_text().replace('"multi"', '"mutli"'))


def test_prometheus_rules_are_valid_and_alerts_fire() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine (Debian: apt-get install prometheus)")

    def says(*arguments: str) -> str:
        command = [promtool, *arguments]
        done = subprocess.run(command, cwd=RULES.parent, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    assert f"{len(rules('alert')) + len(rules('record'))} rules found" in says("check", "rules", RULES.name)
    says("test", "rules", "rules_test.yml")
    for config in ("prometheus.yml", "by-hand.yml"):
        says("check", "config", "--syntax-only", config)
