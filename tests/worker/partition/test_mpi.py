"""Distributed arrays and partitioned models over MPI, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.comm.mpiexec import needs_mpi
from tests.worker.comm.test_mpi import run


@needs_mpi
@pytest.mark.processes
def test_over_mpi(tmp_path: Path) -> None:
    code, ends, said = run(tmp_path, "arrays+networks+autoencoders+stacks")  # one start of four processes for all
    assert ends == ["done"] * 4, said
    assert code == 0
