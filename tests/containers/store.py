"""A store of objects in a container, in the network of a project: moto's S3 server."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.processes.conftest import wait_for

from .project import Project, run

IMAGE = "localhost/dbelief-test-store:latest"
BUCKET = "bucket"
SETTINGS = {
    "AWS_ENDPOINT_URL": "http://store:9000",
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "something",
    "DBELIEF_OUTPUT": f"s3://{BUCKET}/runs",
    "DBELIEF_RUNS": "/srv/runs",
}
"""What a project with deploy/compose.s3.yaml needs to know of it."""
_BUILD = """
FROM docker.io/library/python:3.12-slim
RUN python -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-cache-dir "moto[server]"
CMD ["python", "-m", "moto.server", "-H", "0.0.0.0", "-p", "9000"]
"""
_MAKE = f"""
import boto3
boto3.client("s3", "us-east-1", endpoint_url="http://127.0.0.1:9000", aws_access_key_id="a", aws_secret_access_key="b"
).create_bucket(Bucket="{BUCKET}")
"""


@contextmanager
def store(project: Project) -> Iterator[None]:
    """A store with an empty bucket, which the project's services reach as `store`, within the `with` block."""
    subprocess.run(
        ("podman", "build", "-q", "--network=host", "-t", IMAGE, "-"),
        input=_BUILD, text=True, check=True, timeout=600, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    name, network = f"{project.name}_store", f"{project.name}_default"
    run("podman", "network", "create", network)
    try:
        run("podman", "run", "-d", "--name", name, "--network", network, "--network-alias", "store", IMAGE)

        def made() -> bool:
            done = subprocess.run(("podman", "exec", name, "python", "-c", _MAKE), capture_output=True, check=False)
            return done.returncode == 0

        wait_for(made, "the store", 60.0)
        yield
    finally:
        run("podman", "rm", "-f", "-t", "1", name, check=False)
