"""Distributed arrays and partitioned models over MPI, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.comm.mpiexec import needs_mpi
from tests.worker.comm.test_mpi import run


@needs_mpi
@pytest.mark.processes
@pytest.mark.parametrize("case", ["arrays", "networks", "autoencoders", "stacks"])
def test_over_mpi(tmp_path: Path, case: str) -> None:
    code, ends, said = run(tmp_path, case)
    assert ends == ["done"] * 4, said
    assert code == 0
