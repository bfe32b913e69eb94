"""The image built, the compose file's job run to its end in containers, and its accuracy beside `dbelief train`'s.

podman and podman-compose are found on PATH; how podman is set up on a machine is its environment's business
(CONTAINERS_CONF, say). Where the base images are not to be pulled, images of the same names do as well.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dbelief.run import train
from tests.conftest import MARK
from tests.deploy.dashboard import DEPLOY, ask
from tests.processes.conftest import wait_for

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1_800)]

ROOT = DEPLOY.parent
IMAGE = "localhost/dbelief-test:latest"
CHECKED = ("registry_1", "coordinator_1", "ps_1", "ps_2")
OURS = ("coordinator_1", "ps_1", "ps_2", "worker_1", "worker_2", "worker_3")
RUN_S = 600.0
NEAR = 0.015
"""Five of 360 test images: free-running runs differ by as much from one to the next."""


def _run(*command: str | Path, timeout_s: float = 120.0, **environment: str) -> str:
    """Output of a command that must succeed."""
    # Without the mark: what runs in containers ends by their engine, not with this session.
    around = {name: value for name, value in os.environ.items() if name != MARK} | environment
    done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def image() -> str:
    """The image, built; it stays, so that the next time is short."""
    for program in ("podman", "podman-compose"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
    file = DEPLOY / "Dockerfile"
    _run("podman", "build", "--quiet", "--format", "docker", "-f", file, "-t", IMAGE, ROOT, timeout_s=1_200)
    return IMAGE


class Project:
    """The services of deploy/compose.yaml under a name of their own."""

    def __init__(self, image: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.name = f"dbelief-test-{os.getpid()}"
        self.prometheus = f"http://127.0.0.1:{port}"
        self._environment = {"DBELIEF_IMAGE": image, "DBELIEF_PROMETHEUS_PORT": port}

    def compose(self, *arguments: str) -> str:
        file = str(DEPLOY / "compose.yaml")
        return _run("podman-compose", "-p", self.name, "-f", file, *arguments, timeout_s=300, **self._environment)

    def states(self) -> dict[str, dict[str, Any]]:
        """What podman knows of each container, by its name within the project."""
        names = _run("podman", "ps", "-a", "--format", "{{.Names}}").split()
        own = [name for name in names if name.startswith(f"{self.name}_")]
        found = json.loads(_run("podman", "inspect", *own)) if own else []
        return {one["Name"].removeprefix(f"{self.name}_"): one for one in found}

    def log(self, container: str) -> str:
        return _run("sh", "-c", f"podman logs {self.name}_{container} 2>&1")

    def healthy(self, container: str) -> bool:
        check = ("podman", "healthcheck", "run", f"{self.name}_{container}")
        return subprocess.run(check, capture_output=True, timeout=60, check=False).returncode == 0

    def summary(self, job: str, folder: Path) -> dict[str, Any]:
        _run("podman", "cp", f"{self.name}_coordinator_1:/srv/runs/{job}/summary.json", folder)
        found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
        return found


@pytest.fixture
def project(image: str) -> Iterator[Project]:
    project = Project(image)
    yield project
    project.compose("down", "--volumes", "--timeout", "5")
    assert project.states() == {}
    assert not [name for name in _run("podman", "volume", "ls", "-q").split() if name.startswith(project.name)]


def test_the_job_trains_in_containers_as_well_as_on_this_machine(project: Project, tmp_path: Path) -> None:
    project.compose("up", "-d", "registry", "coordinator", "ps", "worker", "prometheus")
    for name in CHECKED:
        wait_for(lambda name=name: project.healthy(name) or None, f"{name} to be healthy", RUN_S)  # type: ignore[misc]
    _run("podman", "wait", *(f"{project.name}_{name}" for name in OURS), timeout_s=RUN_S)
    ended = project.states()
    told = "\n".join(f"{name}:\n{project.log(name)}" for name in OURS)
    assert [(ended[name]["State"]["ExitCode"], ended[name]["RestartCount"]) for name in OURS] == [(0, 0)] * 6, told
    seen = {
        role: len(ask(project.prometheus, f'max_over_time(up{{job="{role}"}}[1h]) == 1'))
        for role in ("coordinator", "ps", "worker")
    }
    assert seen == {"coordinator": 1, "ps": 2, "worker": 3}
    inside = project.summary("digits", tmp_path)
    beside = train(ROOT / "examples" / "digits.yaml", output=str(tmp_path / "runs"))
    assert beside.test_accuracy is not None
    print(
        f"test accuracy {100 * inside['test_accuracy']:.2f} % in containers, {100 * beside.test_accuracy:.2f} % beside"
    )
    assert inside["samples"] == beside.samples
    assert abs(inside["test_accuracy"] - beside.test_accuracy) <= NEAR


def test_a_container_is_no_roots_and_ends_when_it_is_asked_to(image: str) -> None:
    assert _run("podman", "run", "--rm", "--entrypoint", "id", image, "-u").strip() == "1000"
    waiting = _run("podman", "run", "-d", image, "worker", "--coordinator", "127.0.0.1:7070").strip()
    try:
        joining = "joining the job"
        wait_for(lambda: joining in _run("sh", "-c", f"podman logs {waiting} 2>&1") or None, joining, RUN_S)
        _run("podman", "stop", "--time", "30", waiting)
        (state,) = json.loads(_run("podman", "inspect", waiting))
        assert state["State"]["ExitCode"] == 143, "128 + SIGTERM; killed after 30 s it were 137"
    finally:
        _run("podman", "rm", "--force", waiting)
