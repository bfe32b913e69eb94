"""Resources that Slurm allocated to a batch job: its nodes, the tasks on each, and the nodes that remain."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dbelief.errors import RuntimeFailure, UserError

DEADLINE_S = 60.0
"""Time limit for a Slurm command, in seconds; the controller may be busy, or in failover to its backup."""

_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")

Run = Callable[[Sequence[str]], str]


def run(command: Sequence[str]) -> str:
    """Output of a Slurm command.

    Raises
    ------
    RuntimeFailure
        The command cannot be run, failed, or did not end within `DEADLINE_S`.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except OSError as error:
        raise RuntimeFailure(f"{command[0]}: {error.strerror or error}") from error
    except subprocess.TimeoutExpired:
        raise RuntimeFailure(f"{command[0]} did not answer within {DEADLINE_S:g} s") from None
    if done.returncode:
        raise RuntimeFailure(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
    return done.stdout


@dataclass(frozen=True)
class Allocation:
    """The nodes of one batch job.

    Attributes
    ----------
    job
        Slurm's number of the job.
    tasks
        Tasks by node, in Slurm's order; the batch script runs on the first node.
    restarts
        How often the job was requeued.
    gpus
        GPUs of each worker; 0: the job has none.
    """

    job: str
    tasks: Mapping[str, int]
    restarts: int = 0
    gpus: int = 0
    run: Run = run

    @classmethod
    def of(cls, environment: Mapping[str, str], run: Run = run) -> Allocation:
        """The allocation that the environment of a batch script describes.

        Raises
        ------
        UserError
            The process is not in a batch job.
        RuntimeFailure
            Slurm's commands fail.
        """
        try:
            job, nodes, tasks = (environment[f"SLURM_{name}"] for name in ("JOB_ID", "JOB_NODELIST", "TASKS_PER_NODE"))
        except KeyError as error:
            raise UserError(f"no batch job of Slurm: {error.args[0]} is not set; see deploy/slurm") from None
        names = _names(nodes, run)
        counts = dict(zip(names, task_counts(tasks), strict=True))
        each = int(environment.get("SLURM_GPUS_PER_TASK", "1"))
        gpus = each if environment.get("SLURM_JOB_GPUS") else 0
        return cls(job, counts, int(environment.get("SLURM_RESTART_COUNT", "0")), gpus, run)

    @property
    def first(self) -> str:
        """The node that the batch script runs on."""
        return next(iter(self.tasks))

    def left(self) -> list[str]:
        """Nodes that Slurm has not marked as down: it removes a failed node from a job that has `--no-kill`.

        Raises
        ------
        RuntimeFailure
            Slurm's commands fail.
        """
        nodes = self.run(["squeue", "--noheader", f"--jobs={self.job}", "--states=all", "--format=%N"]).strip()
        return _names(nodes, self.run) if nodes else []


def _names(nodes: str, run: Run) -> list[str]:
    return run(["scontrol", "show", "hostnames", nodes]).split()


def task_counts(text: str) -> list[int]:
    """Task counts from Slurm's notation: "2(x3),1" is 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        if found is None:
            raise RuntimeFailure(f"SLURM_TASKS_PER_NODE={text!r}: {part!r} is no number of tasks")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts
