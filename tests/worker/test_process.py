"""A process's ranks: as many as the job's grid has, on any engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from dbelief.errors import UserError
from dbelief.telemetry.metrics import Metrics
from worker.comm import Communicator
from worker.comm.threads import Group, ThreadEngine
from worker.process import Options, run


@pytest.mark.parametrize("processes", [False, True])
def test_ranks_insisted_on_are_the_jobs_or_nothing_begins(processes: bool) -> None:
    deadlines = SimpleNamespace(join_s=1.0, progress_s=1.0)
    task: Any = SimpleNamespace(job=SimpleNamespace(grid=(2,), deadlines=deadlines))
    comm = Communicator(ThreadEngine(Group(2), 0)) if processes else None
    with pytest.raises(UserError, match="3 ranks, and the job's grid has 2: --ranks 2, or leave it out"):
        run(task, Options(ranks=3), Metrics("worker"), comm)
