"""Whole jobs by `--on kubernetes` on an emulated cluster, whose pods are processes."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dbelief.launch.kubernetes.access import RULES
from dbelief.rundir.events import read_events
from tests.dbelief.launch.processes import soon
from tests.script.test_whole import JOB as WHOLE_JOB
from tests.script.test_whole import WHOLE

from .digits_job import FLOOR, LONG, PROGRAM, SAMPLES, SHORT, DigitsJob, ends_well, scaled_stopped_and_resumed

pytest.importorskip("kmock", reason="needs the extras kubernetes and kubernetes-tests")
pytest.importorskip("kubernetes", reason="needs the extra kubernetes")

from .emulated.api_server import Call, Served, kubeconfig
from .emulated.cluster import EmulatedCluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmulatedCluster]:
    with EmulatedCluster(tmp_path / "cluster") as made:
        yield made
        assert made.errors == []


@pytest.fixture
def digits(cluster: EmulatedCluster, tmp_path: Path) -> Iterator[DigitsJob]:
    environment = {**os.environ, **cluster.environment}
    files = cluster.claims / "runs" / "digits"
    job = DigitsJob(tmp_path, ("--on", "kubernetes"), environment, files=files, third="worker-7d4b9c-2")
    yield job
    job.end()


def _left(cluster: EmulatedCluster) -> list[str]:
    """Objects and pods that are still there."""
    return [f"{key[0].plural}/{key[2]}" for key, thing in list(cluster.api.objects.items()) if not thing.deleted]


def _allowed(calls: list[Call]) -> set[tuple[str, str, str]]:
    return {(call.group, call.resource, call.verb) for call in calls}


def test_a_job_is_applied_followed_and_removed(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    said = ends_well(digits.train(SHORT, "--set", "kubernetes.namespace=default"), 120)
    assert f"job digits done: {SHORT * SAMPLES:,} samples trained" in said
    assert digits.summary["samples"] == SHORT * SAMPLES
    assert digits.summary["test_accuracy"] > FLOOR
    assert digits.summary["died"] == []
    calls = [call for call in cluster.api.calls if call.resource != "pods"]
    assert calls[0] == Call("create", "batch", "jobs", "digits-coordinator"), "the owner of all others"
    made = [call.resource for call in calls if call.verb == "create"]
    once = {"configmaps": 1, "deployments": 1, "jobs": 1}
    assert Counter(made) == {"secrets": 6, "services": 4, "poddisruptionbudgets": 3, "statefulsets": 2, **once}
    (started,) = (place for place, call in enumerate(calls) if call.verb == "patch")
    assert calls[started] == Call("patch", "batch", "jobs", "digits-coordinator")
    assert not [call for call in calls[started:] if call.verb == "create"], "it starts once all is there"
    ends = [call for call in calls if call.verb == "delete" or call.resource == "pods/log"]
    assert [call.verb for call in ends] == ["get", "get", "delete"], "logs are read before the job is removed"
    soon(lambda: not _left(cluster), f"{_left(cluster)} are left")
    assert not digits.run.exists()


def test_scale_stop_and_resume(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    before_and_after = scaled_stopped_and_resumed(digits)
    assert before_and_after["samples"] > before_and_after["epochs_before"] * SAMPLES
    assert before_and_after["test_accuracy"] > FLOOR
    soon(lambda: not _left(cluster), f"{_left(cluster)} are left")
    allowed = {(rule.group, rule.resource, verb) for rule in RULES for verb in rule.verbs}
    assert _allowed(cluster.api.calls) <= allowed, "the role of dbelief kubernetes access suffices"
    by_shards = {("apps", "statefulsets", "get"), ("apps", "statefulsets", "patch")}
    plain = {one for one in allowed if one[0] not in ("jobset.x-k8s.io", "keda.sh", "autoscaling")}
    unused = {one for one in plain - _allowed(cluster.api.calls) if one[1] != "pods/portforward"}
    assert unused == by_shards, "and allows nothing that is not needed: the next test needs these"


def _scaled(digits: DigitsJob) -> list[dict[str, Any]]:
    return [event for event in read_events(digits.files / "events.jsonl") if event["event"] == "scaled"]


def _are_scaled(digits: DigitsJob, count: int) -> bool:
    return bool(_scaled(digits)) and _scaled(digits)[-1]["to"] == count


def test_shards_are_added_and_removed(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    training = digits.train(LONG)
    soon(lambda: digits.trains, "no samples are counted")
    for count in (3, 2):
        asked = digits.operate("scale", "ps", str(count), "runs/digits")
        assert asked.returncode == 0, asked.stderr
        assert asked.stdout.endswith(f"{count} shards wanted, {5 - count} there now\n")
        soon(functools.partial(_are_scaled, digits, count), f"segments are not on {count} shards")
    soon(lambda: len(cluster.of("ps")) == 2, "the third shard's pod is there")
    assert Call("get", "apps", "statefulsets", "digits-ps") in cluster.api.calls
    training.send_signal(signal.SIGINT)
    _, said = training.communicate(timeout=120)
    assert training.returncode == 130, said
    assert [event["to"] for event in _scaled(digits)] == [3, 2]


def test_no_secret_is_in_a_log_or_an_object_that_is_none(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    training = digits.train(LONG)
    soon(lambda: digits.trains, "no samples are counted")
    secrets = [
        (digits.run / "credentials" / role / "token").read_text().strip()
        for role in ("coordinator", "ps", "worker", "operator")
        if (digits.run / "credentials" / role / "token").exists()
    ]
    assert len(secrets) >= 3
    things = [thing.raw for key, thing in list(cluster.api.objects.items()) if key[0].plural != "secrets"]
    training.send_signal(signal.SIGINT)
    _, said = training.communicate(timeout=120)
    assert training.returncode == 130, said
    logs = [log.read_text(errors="replace") for log in cluster.folder.glob("pods/*/log")]
    assert len(logs) >= 6
    for secret in secrets:
        assert not [text for text in (said, *logs, *map(str, things)) if secret in text]
    assert digits.summary["reason"] == "stopped by Ctrl-C"


def test_a_coordinator_that_is_killed_is_replaced(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    training = digits.train(LONG, "--set", "limits.epochs=60")
    soon(lambda: digits.trains, "no samples are counted")
    (leader,) = (pod for pod in cluster.of("coordinator") if pod.ready)
    leader.process.kill()
    ends_well(training, 180)
    assert digits.summary["samples"] == 60 * SAMPLES
    assert digits.summary["test_accuracy"] > FLOOR
    assert len(list(cluster.folder.glob("pods/digits-coordinator-*"))) == 3, "one more coordinator was started"


def test_a_wrong_job_ends_with_its_code_and_reason(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    wrong = digits.train(SHORT, "--set", "data={source: idx, folder: /srv/data/nothing}")
    _, said = wrong.communicate(timeout=120)
    assert wrong.returncode in (1, 2), said
    assert "/nothing" in said.splitlines()[-2] + said.splitlines()[-1]
    soon(lambda: not _left(cluster), f"{_left(cluster)} are left")


def test_a_closed_terminal_leaves_the_job_which_no_other_may_take_the_name_of(
    cluster: EmulatedCluster, digits: DigitsJob
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the command would inherit that it is ignored
    training = digits.train(LONG)
    signal.signal(signal.SIGHUP, before)
    soon(lambda: digits.trains, "no samples are counted")
    training.send_signal(signal.SIGHUP)
    _, said = training.communicate(timeout=60)
    assert "Job digits-coordinator goes on, and is not followed any further" in said
    again = digits.train(SHORT)
    _, refused = again.communicate(timeout=60)
    assert again.returncode == 2
    assert "Job digits-coordinator runs in namespace default: kubectl delete Job" in refused
    assert [pod.code for pod in cluster.of("worker")] == [None, None]


def test_a_job_set_ends_with_its_coordinator(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    said = ends_well(digits.train(SHORT, "--set", "kubernetes.kind=jobset"), 120)
    assert "JobSet digits is in namespace default" in said
    assert digits.summary["samples"] == SHORT * SAMPLES
    assert digits.summary["test_accuracy"] > FLOOR
    soon(lambda: not _left(cluster), f"{_left(cluster)} are left")


def test_a_drained_member_of_a_job_set_is_started_again(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    training = digits.train(LONG, "--set", "limits.epochs=60", "--set", "kubernetes.kind=jobset")
    soon(lambda: digits.trains, "no samples are counted")
    drained = cluster.of("worker")[0]
    drained.terminate()
    soon(lambda: drained.restarts == 1, "it ended with code 0, which a Job takes for its end, or not at all")
    ends_well(training, 180)
    assert digits.summary["samples"] == 60 * SAMPLES


def test_that_no_cluster_is_configured_is_said(cluster: EmulatedCluster, digits: DigitsJob, tmp_path: Path) -> None:
    nowhere = {**os.environ, "KUBECONFIG": str(tmp_path / "missing")}
    command = [*PROGRAM, "train", "job.yaml", "--on", "kubernetes"]
    digits.train(SHORT).kill()  # writes job.yaml
    done = subprocess.run(command, cwd=tmp_path, env=nowhere, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no cluster of Kubernetes is configured" in done.stderr


@pytest.mark.torch
def test_a_script_of_ones_own(cluster: EmulatedCluster, digits: DigitsJob) -> None:
    pytest.importorskip("torch", reason="needs the torch extra")
    (digits.folder / "job.yaml").write_text(WHOLE_JOB)
    words = ["run", "--on", "kubernetes", "--quiet", "--job", "job.yaml", "--workers", "2", str(WHOLE)]
    ends_well(digits.start(*PROGRAM, *words, str(digits.folder)), 200)
    (run,) = (cluster.claims / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["samples"] == 6 * 70
    soon(lambda: not _left(cluster), f"{_left(cluster)} are left")


def test_a_diff_of_an_unchanged_job_is_empty(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    with Served() as served, kubeconfig(served.url, tmp_path) as variables:
        environment = {**os.environ, **variables}
        for kind in ("plain", "jobset", "trainjob"):
            rendered = _rendered(tmp_path, kind)
            for command in (["apply", "--server-side", "--validate=false"], ["diff", "--server-side"]):
                done = _kubectl(command, rendered, environment)
                assert done.returncode == 0, done.stdout + done.stderr
            changed = rendered.replace("cpu: 500m", "cpu: 750m")
            diff = _kubectl(["diff", "--server-side"], changed, environment)
            assert diff.returncode == 1, diff.stderr
            assert "750m" in diff.stdout


def _rendered(folder: Path, kind: str) -> str:
    job: dict[str, Any] = {"name": "digits", "model": {"layers": [{"dense": 10}], "loss": "softmax_cross_entropy"}}
    job |= {"data": {"source": "digits"}, "strategy": {"name": "downpour", "batch": 16}, "limits": {"epochs": 1}}
    job["strategy"]["rule"] = {"name": "sgd", "rate": 0.1}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [*PROGRAM, "kubernetes", "render", "job.yaml", "--set", f"kubernetes.kind={kind}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def _kubectl(words: list[str], text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", *words, "-f", "-"]
    return subprocess.run(command, input=text, env=environment, capture_output=True, text=True, timeout=60, check=False)
