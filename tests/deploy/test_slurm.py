"""deploy/slurm's batch script: no word of warning from ShellCheck, and whole jobs of real processes.

Slurm is two small programs here, that start tasks on this machine as `srun` would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.dashboard import DEPLOY
from tests.faults.invariants import MARK, marked_processes
from tests.processes.conftest import wait_for

BATCH = DEPLOY / "slurm" / "dbelief.sbatch"
JOB = """
name: batch
model: {{layers: [{{dense: 16}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: adagrad, rate: 0.05}}}}
limits: {{epochs: {epochs}}}
shards: 1
replicas: 1
deadlines: {{beat_s: 4}}
"""
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
command = sys.argv[next(n for n, word in enumerate(sys.argv) if n and not word.startswith("--")):]
task = subprocess.Popen(command, start_new_session=True)
signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(task.pid, number))
sys.exit(task.wait())
"""
NODES = """#!/bin/sh
echo 127.0.0.1
"""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]
Submit = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """Start the batch script as Slurm would, on so many tasks; what still runs at the end is ended."""
    programs = tmp_path / "bin"
    programs.mkdir()
    own = Path(sys.executable).parent
    (programs / "python").symlink_to(sys.executable)
    texts = {
        "srun": SRUN,
        "scontrol": NODES,
        "squeue": NODES,
        "dbelief": f'#!/bin/sh\nexec {own}/python -P -m dbelief "$@"\n',
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def start(job: str, tasks: int, **variables: str) -> subprocess.Popen[bytes]:
        (tmp_path / "job.yaml").write_text(job)
        around = {
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_TASKS_PER_NODE": str(tasks),
            "SLURM_JOB_ID": str(os.getpid() % 20_000),
            "SLURM_JOB_NODELIST": "nodes",
            "SLURMD_NODENAME": "127.0.0.1",
            "DBELIEF_JOB": "job.yaml",
            "DBELIEF_SHARDS": "2",
        }
        with open(tmp_path / "batch.log", "wb") as log:
            return subprocess.Popen(
                ["bash", str(BATCH)], env=os.environ | around | variables, stdout=log, stderr=log, cwd=tmp_path
            )

    yield start
    for process in marked_processes(str(tmp_path)):
        os.kill(process, signal.SIGKILL)


def _told(folder: Path) -> str:
    logs = [folder / "batch.log", *folder.glob("runs/*/logs/*.log")]
    return "\n".join(f"{log.name}:\n{log.read_text()}" for log in logs if log.exists())


def test_the_batch_script_is_clean() -> None:
    check = [str(Path(sys.executable).with_name("shellcheck")), str(BATCH)]
    done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_script_outside_a_batch_job_is_refused(submit: Submit, tmp_path: Path) -> None:
    assert submit(JOB.format(epochs=1), 4, SLURM_TASKS_PER_NODE="some").wait(60) == 1
    assert "SLURM_TASKS_PER_NODE='some': 'some' is no number of tasks" in _told(tmp_path)


def test_too_few_tasks_are_reported(submit: Submit, tmp_path: Path) -> None:
    assert submit(JOB.format(epochs=1), 3).wait(60) == 2
    assert "3 tasks are too few" in _told(tmp_path)


@pytest.mark.long
def test_batch_job_trains_over_tls_with_the_jobs_exit_code(submit: Submit, tmp_path: Path) -> None:
    code = submit(JOB.format(epochs=4), 4).wait(200)
    assert code == 0, _told(tmp_path)
    summary = json.loads((tmp_path / "runs" / "batch" / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8
    logs = {log.name for log in tmp_path.glob("runs/batch/logs/*.log")}
    assert logs == {"coordinator.log", "ps-0.log", "ps-1.log", "worker-0.log"}
    assert "--insecure" not in _told(tmp_path)
    assert not (tmp_path / "runs/batch/credentials").exists(), "credentials stay behind"


@pytest.mark.long
def test_a_batch_job_with_a_mistake_in_it_ends_with_2(submit: Submit, tmp_path: Path) -> None:
    batch = submit(JOB.format(epochs=4).replace("relu", "rellu"), 4)
    assert batch.wait(200) == 2, _told(tmp_path)


@pytest.mark.long
def test_time_limit_writes_a_set_and_requeue_resumes(submit: Submit, tmp_path: Path) -> None:
    batch = submit(JOB.format(epochs=2_000), 4)
    events = tmp_path / "runs" / "batch" / "events.jsonl"
    wait_for(lambda: events.exists() and '"progress"' in events.read_text(), "training", 100)
    batch.send_signal(signal.SIGTERM)
    assert batch.wait(100) == 0, _told(tmp_path)
    reached = json.loads((tmp_path / "runs" / "batch" / "summary.json").read_text())["samples"]
    again = submit(JOB.format(epochs=2_000), 4, SLURM_RESTART_COUNT="1")

    def further() -> bool:
        lines = [json.loads(line) for line in events.read_text().splitlines() if '"progress"' in line]
        return bool(lines[-1]["samples"] > reached)

    wait_for(further, "the run to go on from there", 100)
    again.send_signal(signal.SIGTERM)
    assert again.wait(100) == 0, _told(tmp_path)
    assert json.loads((tmp_path / "runs" / "batch" / "summary.json").read_text())["samples"] >= reached
