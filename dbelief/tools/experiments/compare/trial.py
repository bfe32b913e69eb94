"""One run of a comparison: trained as by `dbelief train`, copied while it runs, and evaluated after its end."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dbelief.arrays.backend import select_backend
from dbelief.data import Dataset, load
from dbelief.errors import DataError, DbeliefError, Interrupted, ModelError
from dbelief.evaluation.evaluate import evaluate
from dbelief.job import Comparison, Job, Trial
from dbelief.launch.local_cluster import LocalCluster
from dbelief.rundir.claim import RunInProgress, claimed
from dbelief.rundir.summary import Summary
from dbelief.training.initial_values import InitialValues
from dbelief.training.session import build_model

from .checkpointer import Watcher
from .record import Record, digest_of, key_of
from .time_to_target import Course


class Examiner:
    """Test accuracy of parameters, by the job's own model and data; the data are loaded once."""

    def __init__(self) -> None:
        self._data: tuple[str, Dataset] | None = None

    def data_of(self, job: Job) -> Dataset:
        """The job's data.

        Raises
        ------
        DataError
            They cannot be read, or have no test set.
        """
        if job.tables:
            raise DataError("tables: strategies are compared by copies of the parameters, which have no rows of tables")
        key = job.anchored().data.model_dump_json()
        if self._data is None or self._data[0] != key:
            self._data = key, load(job.data, job.folder)
        data = self._data[1]
        if data.test is None:
            raise DataError("data: there is no test set, by which strategies could be compared")
        return data

    def accuracy(self, job: Job, values: np.ndarray) -> float:
        """Share of correct answers on the test set with (N,) float32 parameters.

        Raises
        ------
        ModelError
            The model does not report correct answers.
        """
        data, backend = self.data_of(job), select_backend(job.computes_on)
        model, _ = build_model(job, data, backend)
        layout = InitialValues.of(job, model).layout
        assert data.test is not None
        accuracy = evaluate(model, layout.views(backend.to_device(values)), data.test, layout, backend).accuracy
        if accuracy is None:
            raise ModelError("this model has no right answers, by which strategies could be compared")
        return accuracy


def run_trial(trial: Trial, comparison: Comparison, folder: Path, examiner: Examiner) -> Record:
    """Train, and find the point where each target was reached.

    Parameters
    ----------
    folder
        Folder of the comparison. Copies of the parameters are stored there until they are evaluated.

    Raises
    ------
    Interrupted
        By a signal.
    RunInProgress
        Another command trains it. Any other failure is stored in the record.
    """
    kept = Record(
        label=trial.label,
        replicas=trial.replicas,
        wait_s=trial.wait_s,
        seed=trial.seed,
        digest=digest_of(trial, comparison),
    )
    copies = folder / f"copies.{trial.name}"
    with claimed(copies):
        try:
            summary, watcher = _train(trial, comparison, folder, copies / "now")
            course = Course(watcher.copies, lambda place: examiner.accuracy(trial.job, watcher.read(place)))
            return kept.model_copy(update=_measured(course, summary, comparison.targets))
        except (Interrupted, RunInProgress):
            raise
        except DbeliefError as error:
            return kept.model_copy(update={"failed": str(error)})
        finally:
            shutil.rmtree(copies, ignore_errors=True)  # on NFS the claim within, which is open, stays until later


def _train(trial: Trial, comparison: Comparison, folder: Path, copies: Path) -> tuple[Summary, Watcher]:
    job_file = folder / "jobs" / f"{trial.name}.yaml"
    shutil.rmtree(copies, ignore_errors=True)  # of a command that was killed
    copies.mkdir()
    job_file.parent.mkdir(exist_ok=True)
    job_file.write_text(trial.job.anchored().to_yaml())
    cluster = LocalCluster(trial.job, job_file, {}, False, lambda status: None, ["--compute-wait", f"{trial.wait_s:g}"])
    watcher = Watcher(cluster.folder, copies, comparison.every)
    with watcher:
        code, summary = cluster.run()
    if code == Interrupted.exit_code:
        raise Interrupted(f"{summary.reason}; the same command continues")
    if code:
        raise DbeliefError(summary.outcome)
    if not watcher.copies:
        raise DbeliefError("it ended before its parameters could be copied once")
    return summary, watcher


def _measured(course: Course, summary: Summary, targets: Sequence[float]) -> dict[str, object]:
    return {
        "accuracy": summary.test_accuracy,
        "metrics": summary.test_metrics,
        "samples": summary.samples,
        "seconds": course.copies[-1].seconds,
        "staleness": summary.staleness_mean,
        "phase_seconds": summary.phase_seconds,
        "copies": len(course.copies),
        "curve": course.curve,
        "reached": {key_of(target): course.reaches(target) for target in targets},
    }
