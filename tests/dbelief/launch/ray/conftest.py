"""A real Ray cluster of three nodes, all on this machine, and jobs on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.digits_job import DigitsJob

NODE = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, on one address."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        for _ in range(2):
            made.add_node(**NODE)
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def job(cluster: Any, tmp_path: Path) -> Iterator[DigitsJob]:
    made = DigitsJob(tmp_path, ["--on", "ray"], {**os.environ, "RAY_ADDRESS": cluster.address})
    yield made
    made.end()


@pytest.fixture
def connected(cluster: Any) -> Iterator[None]:
    """This process is a driver of the cluster."""
    import ray

    ray.init(cluster.address, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()
