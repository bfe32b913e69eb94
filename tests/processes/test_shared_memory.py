"""Real processes that share memory: a job with it and without, a peer that dies, a peer that is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dbelief.core.push import Pusher
from dbelief.errors import Unavailable
from dbelief.launch.child_process import Process
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.security.named_socket import FOLDER
from dbelief.tools.bench.shards import JOB as BENCH
from dbelief.tools.bench.shards import Shards

from .conftest import Operator, parameters, wait_for

pytestmark = pytest.mark.processes

JOB = """
name: shared
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 64, rule: {name: adagrad, rate: 0.05}, warm_start: null}
limits: {epochs: 2}
shards: 2
replicas: 1
"""


@pytest.mark.long
def test_shared_memory_does_not_change_the_model(operator: Operator) -> None:
    models = []
    for flags in ([], ["--no-shared-memory"]):
        operator.trained("shared", operator.write_job(JOB), *flags)
        folder = operator.folder / "runs" / "shared"
        models.append(parameters(folder))
        said = (folder / "logs" / "worker-0.log").read_text()
        assert ("shares memory with shards 0 and 1" in said) == (not flags)
        assert "no shared memory" not in said
        nothing_left()
    assert models[0] == models[1]


def nothing_left() -> None:
    wait_for(lambda: not list(FOLDER.glob("dbelief-*")), "the names of blocks to go")


_WORKER = """
import sys
import numpy as np
from dbelief.core.layout import SegmentSpan
from dbelief.core.placement import ShardPlacement, Placement
from dbelief.core.push import Pusher
from dbelief.rpc.client.shard_client import ShardedParameterClient

address, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
length = size // count
spans = tuple(SegmentSpan(k, k * length, length) for k in range(count))
places = (ShardPlacement(0, address, 1, ((0, count),)),)
client = ShardedParameterClient("bench", Placement(1, spans, places), pusher=Pusher(1, 2))
out = client.array(size)
while True:
    client.pull(out, np.full(count, -1, np.int64))
    print("pulled", flush=True)
"""


def test_killed_worker_leaves_no_memory_at_the_shard(tmp_path: Path) -> None:
    with Shards(tmp_path, 1 << 20) as shards:
        place = shards.placement.places[0]
        arguments = [place.address, str(1 << 20), str(len(shards.spans))]
        with subprocess.Popen([sys.executable, "-c", _WORKER, *arguments], stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            try:
                assert worker.stdout.readline() == b"pulled\n"
                assert mapped(shards.children[0].process)
            finally:
                worker.send_signal(signal.SIGKILL)
        wait_for(lambda: not mapped(shards.children[0].process), "the shard to let go of it")
    nothing_left()


def mapped(process: Process | None) -> bool:
    """Whether a process has a block mapped."""
    assert process is not None
    return "/memfd:dbelief" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.long
def test_stopped_shard_does_not_write_into_reused_memory(tmp_path: Path) -> None:
    size = 16 << 20
    with Shards(tmp_path, size) as shards:
        process = shards.children[0].process
        assert process is not None
        client = ShardedParameterClient(BENCH, shards.placement, shards.rule, Pusher(1, 2), 0.5)
        other = ShardedParameterClient(BENCH, shards.placement, shards.rule, Pusher(2, 3), 20.0)
        out, versions = client.array(size), np.full(len(shards.spans), -1, np.int64)
        client.pull(out, versions)
        before = pulled(other, size)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            versions[:] = -1
            with pytest.raises(Unavailable):
                client.pull(out, versions)  # the shard has the request, and answers it when it goes on
            out[:] = 8.0
        finally:
            os.kill(process.pid, signal.SIGCONT)
        for _ in range(3):
            assert pulled(other, size) == before
        np.testing.assert_array_equal(out, 8.0)
        client.pull(out, np.full(len(shards.spans), -1, np.int64))
        np.testing.assert_array_equal(out, 0.0)
        for one in (client, other):
            one.close()
    nothing_left()


def pulled(client: ShardedParameterClient, size: int) -> float:
    out = client.array(size)
    client.pull(out, np.full(len(client.placement.spans), -1, np.int64))
    return float(out.sum())
