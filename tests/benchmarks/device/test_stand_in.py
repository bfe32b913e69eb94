"""The whole check of a device, on the stand-in for CuPy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.device.bounds import ALL_S, PARTS
from benchmarks.harness import checkout


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(3_600)
def test_every_part_runs_on_the_stand_in(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "benchmarks.device", "--stand-in", "--json", str(file)]
    done = subprocess.run(command, cwd=checkout.ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads(file.read_text())
    assert results["stand_in"]
    assert results["measured"]["device"] == "Stand-in 0"
    assert [row["name"] for row in results["parts"]] == list(PARTS)
    for row in results["parts"]:
        assert row["state"] == "ok" or (row["state"] == "skipped" and row["reason"]), row
    assert sum(row["processor_s"] for row in results["parts"]) <= ALL_S
