"""Where mpiexec is, for tests that need an MPI."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

BESIDE = Path(sys.executable).with_name("mpiexec")
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIEXEC is None,
    reason="needs mpi4py and mpiexec: pip install mpi4py mpich",
)
