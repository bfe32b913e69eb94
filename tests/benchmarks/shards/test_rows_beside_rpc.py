"""Trainers of rows beside torch RPC: the jobs, and the step of its server, which is that of the job's rule."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.shards import rows_beside_rpc
from benchmarks.workers import dlrm
from dbelief.job import build_job
from dbelief.optim import make_row_rule


def test_all_are_jobs(tmp_path: Path) -> None:
    job = build_job(rows_beside_rpc.job_of(5_120), tmp_path, "job")
    assert (job.tables["rows"].width, job.shards) == (16, 1)
    assert build_job(dlrm.job_of(1_000, 2, 3), tmp_path, "job").seed == 3


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_step_of_the_peer_is_that_of_the_rule() -> None:
    torch = pytest.importorskip("torch", reason="the torch extra is not installed")
    from benchmarks.shards import rows_peer

    server, keys, weights = rows_peer.Rows(50), [3, 9, 3], torch.arange(48.0).view(3, 16) - 20
    w = server.bag.weight.detach().numpy().copy()
    gradient, state = np.zeros_like(w), np.zeros_like(w)
    np.add.at(gradient, keys, weights.numpy())
    rule = make_row_rule("adagrad", {"eps": rows_peer.EPS})
    rule.apply_reference(np, w, gradient, (state,), np.float32(rows_peer.RATE), 1)
    drawn: Any = SimpleNamespace(
        keys=lambda step: torch.tensor(keys).view(-1, 1), loss=lambda rows: (rows * weights).sum()
    )
    rows_peer.by_distinct_keys(SimpleNamespace(rpc_sync=lambda: server), drawn)(0)
    np.testing.assert_allclose(server.bag.weight.detach().numpy(), w, rtol=1e-6, atol=1e-7)
