"""Jobs on a Ray cluster, from a notebook or a script: `dbelief.ray.train("job.yaml", workers=8)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dbelief.launch.train import Run


def train(
    job: Path | str | Mapping[str, Any],
    workers: int | None = None,
    shards: int | None = None,
    quiet: bool = True,
    **overrides: Any,
) -> Run:
    """Run a job on the Ray cluster that this process is connected to, or could connect to.

    Each shard and each worker is a named actor; this process has the registry and the coordinator, and the run folder.

    Parameters
    ----------
    job
        Path of the job file; or its content as plain values.
    workers
        How many; None: as the job says.
    shards
        How many; None: as the job says.
    quiet
        Show nothing while it runs.
    overrides
        Fields to replace, dots written as double underscores: `strategy__batch=64`.

    Returns
    -------
    Run

    Raises
    ------
    UserError
        The job is invalid, Ray is not installed, or there is no cluster.
    EvaluationFailed, RuntimeFailure
        As of `dbelief.train`.
    """
    from dbelief.launch.train import train as run

    counts = {"replicas": workers, "shards": shards}
    overrides |= {name: count for name, count in counts.items() if count is not None}
    return run(job, quiet, "ray", **overrides)
