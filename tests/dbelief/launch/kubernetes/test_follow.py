"""A job as its follower sees it, look by look, on an API server that answers from a script."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.launch.kubernetes import follow
from dbelief.launch.kubernetes.api import KubernetesApi, ObjectKind, Refused
from dbelief.launch.kubernetes.description import Object, describe
from dbelief.launch.kubernetes.follow import JobFollower
from dbelief.launch.kubernetes.render import render
from dbelief.process.terminal.console import Interrupt
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire

from .jobs import job

RUNS: Object = {"status": {}}


def _ended(condition: str) -> Object:
    return {"status": {"conditions": [{"type": condition, "status": "True", "message": "why"}]}}


def _pod(name: str, code: int | None = None, ready: bool = False, **state: Any) -> Object:
    states = {"terminated": {"exitCode": code}} if code is not None else state
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [{"state": states}]}
    return {"metadata": {"name": name}, "status": status}


class ScriptedApi:
    """Answers with the next main object and pods of each look; the last look repeats."""

    def __init__(self, looks: Iterable[tuple[Object | Exception | None, list[Object]]], log: str = "") -> None:
        self._looks, self._log = list(looks), log
        self.patched: list[tuple[str, str, Any]] = []

    def get(self, kind: ObjectKind, name: str) -> Object | None:
        if kind.kind == "StatefulSet":
            return {"spec": {"replicas": 2}}
        main, self._pods = self._looks[0]
        self._looks = self._looks[1:] or self._looks
        if isinstance(main, Exception):
            raise main
        return main

    def pods(self, selector: Mapping[str, str]) -> list[Object]:
        return self._pods

    def log(self, pod: str, lines: int) -> list[str]:
        return self._log.splitlines()

    def patch(self, kind: ObjectKind, name: str, fields: Object) -> None:
        self.patched.append((kind.kind, name, fields["spec"]["replicas"]))


class ScriptedClient:
    """A coordinator with one status."""

    def __init__(self, **status: Any) -> None:
        self._status = wire.StatusReply(state=wire.STATE_READY, wanted_shards=2, **status)
        self.stops = 0

    def call(self, method: str, request: Any, patience_s: float | None = None) -> Any:
        self.stops += method == "Stop"
        return self._status


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_S", 0.0)


def _followed(
    api: ScriptedApi, client: ScriptedClient | None = None, number: int | None = None, **kubernetes: Any
) -> tuple[int, JobFollower]:
    described = describe(job("downpour", **kubernetes))
    clock = iter(range(0, 100_000, 40))
    made = JobFollower(cast(KubernetesApi, api), described, render(described)[-1], clock=lambda: float(next(clock)))
    interrupted = Interrupt()
    if number is not None:
        interrupted.number = number
        interrupted.set()
    return made.follow(cast(CoordinatorClient, client or ScriptedClient()), interrupted), made


@pytest.mark.parametrize(
    ("condition", "codes", "code"),
    [("Complete", [0, 0], 0), ("Failed", [-1, 3], 3), ("Failed", [1], 1), ("Complete", [], 0)],
)
def test_exit_code_is_that_of_the_coordinator_that_led(condition: str, codes: list[int], code: int) -> None:
    pods = [_pod(f"c{number}", one) for number, one in enumerate(codes)]
    got, made = _followed(ScriptedApi([(RUNS, pods), (_ended(condition), pods)], "job Job_downpour done: 9 samples"))
    assert (got, made.over) == (code, True)


def test_the_leaders_outcome_is_shown_and_states_of_pods(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    waits = {"reason": "ImagePullBackOff", "message": "no such image"}
    log = '{"message": "job Job_downpour done: 9 samples trained"}\n{"message": "bye"}'
    looks = [
        (RUNS, [_pod("c0", waiting=waits)]),
        (RUNS, [_pod("c0", ready=True)]),
        (_ended("Complete"), [_pod("c0", 0)]),
    ]
    _followed(ScriptedApi(looks, log))
    said = [record.message for record in caplog.records]
    assert said[0] == "pod c0: ImagePullBackOff: no such image"
    assert said[1] == "pod c0: running"
    assert said[-1].startswith("job Job_downpour done: 9 samples trained")


def test_outcome_is_that_of_the_coordinator_that_led_whichever_log_is_read_first() -> None:
    led = ['{"message": "job a done: 9 samples trained"}', '{"message": "bye"}']
    stood_by = ['{"message": "job a has already ended (done: 9 samples trained), and runs once only"}']
    outcomes = [follow._outcome(lines, "a") for lines in (led, stood_by, [])]
    assert sorted(outcomes)[-1] == (True, "job a done: 9 samples trained")
    assert [found for found, _ in outcomes] == [True, False, False]


def test_a_job_that_kubernetes_ended_has_its_reason() -> None:
    with pytest.raises(RuntimeFailure, match="Job job-downpour-coordinator: why"):
        _followed(ScriptedApi([(_ended("Failed"), [_pod("c0", 137)])]))
    with pytest.raises(RuntimeFailure, match="is gone: it was deleted"):
        _followed(ScriptedApi([(None, [])]))


def test_numbers_of_pods_are_those_that_were_asked_for() -> None:
    ready = (RUNS, [_pod("c0", ready=True)])
    end = (_ended("Complete"), [_pod("c0", 0)])
    members = [wire.MemberStatus(role=wire.ROLE_SHARD, state="ready", name=f"ps-{number}") for number in range(2)]
    api = ScriptedApi([ready, ready, end])
    _followed(api, ScriptedClient(wanted_replicas=7, members=members))
    assert api.patched == [("Deployment", "job-downpour-worker", 7)], "once"
    scaled = ScriptedApi([ready, end])
    _followed(scaled, ScriptedClient(wanted_replicas=7, members=members), scale={})
    assert scaled.patched == [], "an autoscaler is the only one to set its number"


def test_a_signal_stops_a_job_that_is_led_and_cancels_one_that_is_not() -> None:
    client = ScriptedClient()
    led = [(RUNS, [_pod("c0", ready=True)]), (_ended("Complete"), [_pod("c0", 0)])]
    code, made = _followed(ScriptedApi(led), client, signal.SIGTERM)
    assert (code, client.stops, made.over) == (130, 1, True)
    code, made = _followed(ScriptedApi([(RUNS, [_pod("c0")])]), client, signal.SIGINT)
    assert (code, client.stops, made.over) == (130, 1, True), "removed"
    code, made = _followed(ScriptedApi([(RUNS, [_pod("c0")])]), client, signal.SIGHUP)
    assert (code, client.stops, made.over) == (130, 1, False), "left running"


@pytest.mark.parametrize(("status", "looks"), [(0, follow.TRIES + 2), (403, 1)])
def test_an_api_server_that_fails_is_asked_again_for_a_while(status: int, looks: int) -> None:
    api = ScriptedApi([(Refused("Kubernetes: read Job: no", status), [])] * looks)
    with pytest.raises(RuntimeFailure, match="read Job: no; job-downpour-coordinator goes on"):
        _followed(api)
    back = ScriptedApi([(Refused("no", 500), [])] * follow.TRIES + [(_ended("Complete"), [])])
    assert _followed(back)[0] == 0
