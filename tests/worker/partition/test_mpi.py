"""The distributed array over MPI, by real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.comm.test_mpi import needs_mpi, run


@needs_mpi
@pytest.mark.processes
def test_forty_arrays(tmp_path: Path) -> None:
    code, ends, said = run(tmp_path, "arrays")
    assert ends == ["done"] * 4, said
    assert code == 0
