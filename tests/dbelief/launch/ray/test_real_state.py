"""A job's actors as Ray's own commands list them, on a real cluster with its API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dbelief.launch.processes import soon
from tests.dbelief.launch.ray.conftest import NODE, ray_cluster
from tests.deploy.digits_job import LONG, DigitsJob, ends_well

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

pytest.importorskip("ray")
pytest.importorskip("aiohttp_cors", reason="ray[default], which has the API server, is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One node, with the API server at a free port."""
    with ray_cluster({**NODE, "num_cpus": 4, "include_dashboard": True}) as made:
        yield made


def listed(cluster: Any, what: str) -> str:
    """Output of `ray list`, with everything that it shows; "" while the API server does not answer yet."""
    program = str(Path(sys.executable).with_name("ray"))
    options = ["--address", cluster.address, "--detail", "--format", "json", "--limit", "1000"]
    asked = subprocess.run([program, "list", what, *options], capture_output=True, text=True, timeout=60, check=False)
    return asked.stdout if asked.returncode == 0 else ""


def states(shown: str) -> Counter[tuple[str, str]]:
    return Counter((actor["name"], actor["state"]) for actor in json.loads(shown))


def test_ray_lists_members_by_name_and_no_token(cluster: Any, job: DigitsJob) -> None:
    members = [f"dbelief digits {name}" for name in ("ps-0", "ps-1", "worker-0", "worker-1")]
    training = job.train(LONG)
    soon(lambda: job.trains, "it does not train")
    soon(lambda: listed(cluster, "actors"), "the API server does not answer")
    shown = [listed(cluster, "actors"), listed(cluster, "tasks")]
    assert states(shown[0]) == Counter((name, "ALIVE") for name in members)
    assert "MemberActor.start" in shown[1]
    tokens = [file.read_text().strip() for file in (job.run / "credentials").glob("*/token")]
    assert len(tokens) > 2

    assert job.operate("stop", "runs/digits").returncode == 0
    ends_well(training, 60)
    dead = Counter((name, "DEAD") for name in members)
    soon(lambda: states(listed(cluster, "actors") or "[]") == dead, "an actor is left")
    shown += [listed(cluster, "actors"), listed(cluster, "tasks")]
    assert [token for token in tokens if any(token in text for text in shown)] == []
