"""Replicas of several ranks as an operator starts them: by threads of one process, and by mpiexec."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.worker.comm.mpiexec import MPIEXEC, needs_mpi

from .conftest import DBELIEF, Operator, Role, a_free_address, wait_for

pytestmark = pytest.mark.processes


JOB = """
name: ranks
model: {{layers: [{{dense: 32}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: {rule}, rate: {rate}}}, warm_start: null}}
limits: {{epochs: {epochs}}}
deadlines: {{beat_s: 5}}
shards: 2
replicas: {replicas}
grid: [2]
"""


def job(epochs: int = 12, replicas: int = 1, rule: str = "adagrad", rate: str = "0.03") -> str:
    return JOB.format(epochs=epochs, replicas=replicas, rule=rule, rate=rate)


def mpi(operator: Operator, address: str, ranks: int = 2, *more: str) -> Role:
    assert MPIEXEC is not None
    launcher = (MPIEXEC, "-n", str(ranks))
    return operator.start("mpi", "worker", "--comm", "mpi", "--coordinator", address, *more, launcher=launcher)


def a_rank(words: str) -> int:
    """The process id of a rank, by what its command line holds."""

    def look() -> int | None:
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if words in line and "mpi" in line and line[1] == "-P":
                return int(entry.name)
        return None

    return wait_for(look, "a rank")


@needs_mpi
def test_dead_rank_ends_its_replica_only(operator: Operator) -> None:
    operator.compute_wait_s = 0.02
    coordinator, address = operator.coordinator(operator.write_job(job(epochs=4, replicas=2)))
    shards = operator.members(address, 2, 1)
    replica = mpi(operator, address)
    operator.until_joined("ranks", 2)
    operator.until_samples("ranks", 500)
    os.kill(a_rank(address), signal.SIGKILL)
    assert replica.ends() != 0
    # mpiexec sends SIGTERM to the other rank, which may leave the job in time.
    operator.until_died("ranks", ends=("died", "left"))
    assert coordinator.ends() == 0
    assert [member.ends() for member in shards] == [0, 0, 0]
    summary = operator.summary("ranks")
    assert summary["samples"] == 4 * 1257
    assert summary["test_accuracy"] > 0.94
    assert len(summary["died"]) <= 1


@needs_mpi
@pytest.mark.long
@pytest.mark.parametrize("way", ["threads", "mpi"])
def test_failure_of_one_rank_ends_the_job_with_a_reason(way: str, operator: Operator) -> None:
    coordinator, address = operator.coordinator(operator.write_job(job(rule="sgd", rate="1.0e+30")))
    operator.members(address, 2, 0)
    metrics = ("--metrics", a_free_address())  # one rank serves those of all
    replica = mpi(operator, address, 2, *metrics) if way == "mpi" else operator.members(address, 0, 1)[0]
    assert coordinator.ends() == 1
    # Not always 1 for mpiexec, which kills ranks that are still exiting after the first one's error.
    assert replica.ends() == 1 if way == "threads" else replica.ends() != 0
    reason = operator.summary("ranks")["reason"]
    assert "gradient of 'dense" in reason, reason
    assert re.search(r", after [\d,]+ samples of this replica; try a lower rate or clip_norm", reason), reason


@pytest.mark.long
@needs_mpi
def test_ranks_that_are_not_the_jobs_are_refused(operator: Operator) -> None:
    _, address = operator.coordinator(operator.write_job(job()))
    threads = operator.start("threads", "worker", "--coordinator", address, "--ranks", "3")
    assert threads.ends() == 2
    assert "Error: 3 ranks, and the job's grid has 2: --ranks 2, or leave it out" in threads.log.read_text()
    processes = mpi(operator, address, 3)
    # Not always 2: the first rank that exits by an error makes mpiexec kill those that are still exiting.
    assert processes.ends() != 0
    assert processes.log.read_text().count("Error: 3 ranks, and the job's grid has 2: mpiexec -n 2") == 3


@needs_mpi
def test_a_rank_that_cannot_begin_ends_the_others(operator: Operator) -> None:
    lost = ("worker", "--comm", "mpi", "--coordinator", "127.0.0.1:1", "--patience")
    replica = mpi(operator, "127.0.0.1:1", 1, "--patience", "600", ":", "-n", "1", *DBELIEF, *lost, "0")
    assert replica.ends() == 1
    assert "coordinator at 127.0.0.1:1 did not answer within 0 s" in replica.log.read_text()
