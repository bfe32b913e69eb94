"""Imports of each role at its start: every process of a job pays their cost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    *("asyncio", "click", "cryptography", "cupy", "grpc", "llvmlite", "matplotlib", "mpi4py", "numba", "numpy"),
    *("pandas", "prometheus_client", "pydantic", "redis", "rich", "safetensors", "scipy", "sklearn"),
    *("threadpoolctl", "torch", "yaml"),
}
ALWAYS = {"asyncio", "click", "grpc", "numpy", "prometheus_client"}  # gRPC imports asyncio
ROLES = {
    "coordinator job.yaml --ready-file none/there": ALWAYS | {"pydantic", "yaml"},
    "ps --coordinator 127.0.0.1:1 --patience 0": ALWAYS,
    "worker --coordinator 127.0.0.1:1 --patience 0": ALWAYS | {"pydantic", "safetensors", "threadpoolctl", "yaml"},
}
"""Command lines that end when everything is imported, and what of `HEAVY` they may import until then."""


CODE = "import sys; from dbelief.cli.main import main; main(sys.argv[1:], prog_name='dbelief')"


def test_help_imports_nothing_but_click(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-c", CODE, "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert "Commands:" in done.stdout
    assert _imported(done.stderr) & HEAVY == {"click"}


@pytest.mark.parametrize("line", ROLES, ids=lambda line: line.split()[0])
def test_role_imports_only_what_it_uses(line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-c", CODE, *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    told = [row for row in done.stderr.splitlines() if not row.startswith("import time:")]
    assert done.returncode != 0
    assert re.search("none/there|127.0.0.1:1", told[-1]), told  # and not that a module is missing
    assert _imported(done.stderr) & HEAVY == ROLES[line]


def _imported(times: str) -> set[str]:
    """Top-level modules of what `-X importtime` writes."""
    return {row.rpartition("|")[2].strip().partition(".")[0] for row in times.splitlines()}
