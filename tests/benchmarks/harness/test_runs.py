"""A benchmark's run ends its own processes and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


@pytest.mark.processes
def test_a_benchmark_that_is_terminated_ends_its_processes() -> None:
    program = """
import time
from benchmarks.harness.runs import temporary_run
with temporary_run("job") as run:
    print(run.start_program("sleep", ["sleep", "60"]).pid, flush=True)
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        child = int(benchmark.stdout.readline())
        benchmark.terminate()
        assert benchmark.wait(30) == 128 + signal.SIGTERM
    assert not Path(f"/proc/{child}").exists()
