"""A benchmark's run ends its own processes and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.harness.runs import Run


@pytest.mark.processes
def test_the_pid_of_a_process_that_has_ended_may_be_anothers(tmp_path: Path) -> None:
    run = Run(tmp_path, "job")
    process = run.start_program("true", ["true"])
    process.wait()
    process.pid = os.getpid()  # the kernel gives pids again
    assert os.getpid() not in run.processes()
    assert run.end() == []


@pytest.mark.processes
def test_descendants_of_a_running_process_are_its_runs(tmp_path: Path) -> None:
    run = Run(tmp_path, "job")
    process = run.start_program("sleep", ["sleep", "60"])
    try:
        assert process.pid in run.processes()
    finally:
        process.kill()
        process.wait()
