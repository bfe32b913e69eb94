"""A cluster of `ray start` that asks for a token, as one does where the user's home has a token."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.errors import UserError
from tests.dbelief.launch.processes import soon
from tests.deploy.digits_job import SAMPLES, SHORT, DigitsJob, ends_well

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

pytest.importorskip("ray.scripts.scripts")
HEAD = ["start", "--head", "--block", "--port=0", "--num-cpus=4", "--include-dashboard=false"]


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Of a user in whose home a token is, and where a cluster was started."""
    home = Path(tempfile.mkdtemp(prefix="r"))  # short: names of sockets are
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("f" * 64)
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own |= {"HOME": str(home), "RAY_TMPDIR": str(home)}
    program = str(Path(sys.executable).with_name("ray"))
    head = subprocess.Popen([program, *HEAD, "--object-store-memory=100000000"], env=own, stdout=subprocess.DEVNULL)
    try:
        soon((home / "ray" / "ray_current_cluster").exists, "no cluster starts")
        yield own
    finally:
        head.terminate()
        head.wait(60)


def test_a_cluster_that_is_found_gets_its_token(environment: dict[str, str], tmp_path: Path) -> None:
    job = DigitsJob(tmp_path, ["--on", "ray"], environment)
    ends_well(job.train(SHORT), 120)
    assert job.summary["samples"] == SHORT * SAMPLES

    named = (Path(environment["HOME"]) / "ray" / "ray_current_cluster").read_text()
    refused = DigitsJob(tmp_path, ["--on", "ray"], environment | {"RAY_ADDRESS": named}).train(SHORT)
    _, said = refused.communicate(timeout=120)
    assert refused.returncode == UserError.exit_code
    assert said.splitlines()[-1].startswith(f"Error: the Ray cluster at {named} takes no driver: ")
    assert said.endswith("one that needs a token needs RAY_AUTH_MODE=token here too\n")
