"""What a run has measured of the job that is planned: its parameters, and the time of a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dbelief.job import load_job
from dbelief.monitor.status import JobLocation, get_status
from dbelief.rundir.summary import Summary


@dataclass(frozen=True)
class Measured:
    """Figures of a run.

    Attributes
    ----------
    parameters
        Number of parameters; None where the shards of a run in progress have not begun.
    samples
        Of the run's mini-batches.
    step_s
        Seconds that a replica computed a mini-batch, with waits for data, a mean over the run; None where none was
        reported, and of a run in progress.
    """

    parameters: int | None
    samples: int
    step_s: float | None


def measured(run: Path) -> Measured:
    """Figures of a run folder, from its summary, or from the coordinator of a run in progress.

    Raises
    ------
    RuntimeFailure
        The coordinator does not answer, and there is no summary.
    UserError
        It is no run folder.
    """
    samples = load_job(run / "job.yaml").samples_at_once
    found = get_status(JobLocation.of(str(run)))
    if isinstance(found, Summary):
        times = found.phase_seconds.values()
        spent_s = sum(one.get("compute", 0.0) + one.get("data", 0.0) for one in times)
        return Measured(found.parameters or None, samples, spent_s / found.steps if spent_s and found.steps else None)
    shards = [member for member in found["members"] if member["role"] == "ps" and not member["follows"]]
    return Measured(sum(member["parameters"] for member in shards) or None, samples, None)
