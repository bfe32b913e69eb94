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
    dataset: Any = None,
    validation: Any = None,
    test: Any = None,
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
    dataset
        A materialised `ray.data.Dataset` that takes the place of `data.files`, in a job with `data: {source: parquet,
        ...}`. Ray tasks write it once as Parquet files, a block each, into `dataset-DIGEST` below the job's output,
        where it stays; a dataset with the same blocks is not written again. None: the job's own data.
    validation
        The like in place of `data.validation_files`. None: what the job says, such as a share of the units.
    test
        The like in place of `data.test_files`.
    overrides
        Fields to replace, dots written as double underscores: `strategy__batch=64`.

    Returns
    -------
    Run

    Raises
    ------
    UserError
        The job is invalid, Ray is not installed, or there is no cluster. A dataset is lazy, so that its rows may differ
        from one use to the next, or has columns, types or missing values that the job cannot train with.
    EvaluationFailed, RuntimeFailure
        As of `dbelief.train`.
    """
    from dbelief.launch.train import loaded
    from dbelief.launch.train import train as run

    counts = {"replicas": workers, "shards": shards}
    overrides |= {name: count for name, count in counts.items() if count is not None}
    sets = {"dataset": "data__files", "validation": "data__validation_files", "test": "data__test_files"}
    datasets = {"dataset": dataset, "validation": validation, "test": test}
    if given := {name: one for name, one in datasets.items() if one is not None}:
        from dbelief.launch.ray.dataset import written

        found = written(loaded(job, overrides | {sets[name]: [name] for name in given}), given)
        overrides |= {sets[name]: [str(where)] for name, where in found.items()}
    return run(job, quiet, "ray", **overrides)
