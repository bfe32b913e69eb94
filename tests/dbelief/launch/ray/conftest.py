"""A real Ray cluster of three nodes, all on this machine, and jobs on it."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.dbelief.launch.processes import parent_of
from tests.deploy.digits_job import DigitsJob

NODE = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False}
TRIES = 3


@contextmanager
def ray_cluster(*nodes: dict[str, Any]) -> Iterator[Any]:
    """A cluster of these nodes, of which the first one is its head.

    A raylet ends where its agents, which are Python programs, are not ready within 15 s, and a node that is not there
    within 30 s is an error. Ray has no option for either, and a busy machine is slower: only one process of the tests
    starts nodes at a time, without the parts of agents that the API server needs, and a node is started again.
    """
    from ray.cluster_utils import Cluster

    made = Cluster()
    (ROOT / ".cache").mkdir(exist_ok=True)
    try:
        with open(ROOT / ".cache" / "ray-nodes.lock", "w") as lock, pytest.MonkeyPatch.context() as patch:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not any(node["include_dashboard"] for node in nodes):
                patch.setattr("ray._private.utils.get_dashboard_dependency_error", lambda: "not wanted")
            for node in nodes:
                _add(made, node)
        yield made
    finally:
        made.shutdown()


def _add(cluster: Any, node: dict[str, Any]) -> None:
    """Start a node, again where it is late: what has started of it then is ended."""
    before = _children()
    for left in reversed(range(TRIES)):
        try:
            cluster.add_node(**node)
            return
        except Exception as error:
            if "timed out during startup" not in str(error) or not left:
                raise
            for pid in _children() - before:
                os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _children() -> set[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return {pid for pid in pids if parent_of(pid) == os.getpid()}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes, on one address."""
    with ray_cluster(NODE, NODE, NODE) as made:
        yield made


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
