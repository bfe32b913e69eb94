"""A complete job as one call: `dbelief train` and `dbelief.train`."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from dbelief.arrays.backend import select_backend
from dbelief.errors import EvaluationFailed, JobError, RuntimeFailure
from dbelief.job import Job, ScriptModel, build_job, load_job
from dbelief.launch.backends import Where
from dbelief.launch.local_cluster import LocalCluster, Pictures
from dbelief.launch.site import LoopbackSite, Site
from dbelief.monitor.format import plural
from dbelief.monitor.live_view import LiveView
from dbelief.monitor.status_table import taken
from dbelief.process.terminal.console import format_error
from dbelief.rundir.folder import check_start
from dbelief.rundir.summary import Summary, outcome_text
from dbelief.training.job_check import assemble_job
from dbelief.url import Url

if TYPE_CHECKING:
    from dbelief.training.trained_model import TrainedModel

log = logging.getLogger(__name__)


class _Ended(NamedTuple):
    """How a cluster's run has ended: its exit code, its summary, and where its files are."""

    code: int
    summary: Summary
    where: Path | Url


def run_job(
    job_file: Path,
    overrides: Mapping[str, str],
    resume: bool = False,
    quiet: bool = False,
    page: str | None = None,
    shared_memory: bool = True,
    site: Site | None = None,
    pictures: Callable[[Path, str], Pictures] | None = None,
    script: Sequence[str] = (),
) -> int:
    """Run a job with a live view, and a status page at `page` (`host:port`); return the exit code.

    It runs at `site`; None: on this machine. `pictures`, `script`: see `LocalCluster`.
    """
    more: dict[str, Any] = {"page": page, "shared_memory": shared_memory, "site": site, "pictures": pictures}
    run = _run_cluster(job_file, overrides, resume, quiet, script, **more)
    log.info(verdict(run.summary, run.where))
    return run.code


def _run_cluster(
    job_file: Path,
    overrides: Mapping[str, str],
    resume: bool = False,
    quiet: bool = False,
    script: Sequence[str] = (),
    **more: Any,
) -> _Ended:
    """Run a cluster to its end; `more`: of `LocalCluster`."""
    job = load_job(job_file, overrides)
    if job.delays is not None:
        return _run_with_delays(job, resume, quiet, script, **more)
    # Before a folder is created, an earlier run is moved, or a process is started.
    if script:
        _check_script(job, job_file, resume)
    else:
        data, *_ = assemble_job(job, select_backend("cpu"), resume)
        for note in data.notes if data is not None else ():
            log.warning(note)
    with ExitStack() as stack:
        view = None if quiet else stack.enter_context(LiveView(Console(stderr=True)))
        show = view.update if view else lambda status: None
        cluster = LocalCluster(job, job_file, overrides, resume, show, script=script, **more)
        code, summary = cluster.run()
        return _Ended(code, summary, cluster.where)


def _run_with_delays(
    job: Job,
    resume: bool,
    quiet: bool,
    script: Sequence[str],
    page: str | None = None,
    shared_memory: bool = True,
    site: Site | None = None,
    pictures: Callable[[Path, str], Pictures] | None = None,
) -> _Ended:
    """Train a job with delays in this process; arguments as of `LocalCluster`."""
    from dbelief.simulate.replay.check import refuse_options
    from dbelief.simulate.replay.run import DelayedJob

    elsewhere = site is not None and not isinstance(site, LoopbackSite)
    given = {"--resume": resume, "--on": elsewhere, "--page": page is not None, "--no-shared-memory": not shared_memory}
    refuse_options(job, {**given, "dbelief run": bool(script)})

    def draw(folder: Path, title: str) -> None:
        try:
            if pictures is not None:
                pictures(folder, title).draw()
        except Exception as error:  # matplotlib's own too, as of a broken font
            log.error(f"{format_error(error)}; `dbelief report {folder}` draws them later")

    delayed = DelayedJob.of(job)
    with ExitStack() as stack:
        view = None if quiet else stack.enter_context(LiveView(Console(stderr=True)))
        return _Ended(*delayed.run(view.update if view else lambda status: None, draw))


def _check_script(job: Job, job_file: Path, resume: bool) -> None:
    """Check what can be known of a job for scripts before one has joined.

    Raises
    ------
    JobError
        It is a job with a model of its own.
    UserError
        See `check_start`.
    """
    if not isinstance(job.model, ScriptModel):
        raise JobError(
            f"{job_file}: model: must be {{source: script}}, and data: {{source: script, train: N}}, for a script that "
            "brings both; `dbelief train` runs this job"
        )
    if not resume:
        check_start(job)


@dataclass(frozen=True)
class Run:
    """A run that has ended as planned.

    Attributes
    ----------
    folder : Path or str
        The run folder, `runs/NAME`, or its URL.
    summary : Summary
        The content of its `summary.json`.
    """

    folder: Path | Url
    summary: Summary

    def load_model(self) -> TrainedModel:
        """The trained model: `dbelief.load_model(run.folder)`.

        Returns
        -------
        TrainedModel

        Raises
        ------
        DataError, ModelError
            As `dbelief.load_model`.
        """
        from dbelief.training.trained_model import load_model

        return load_model(self.folder)


def train(
    job: Path | str | Mapping[str, Any],
    quiet: bool = True,
    on: str = "local",
    hosts: Path | str | None = None,
    **overrides: Any,
) -> Run:
    """Run a job on this machine, or with members on others, as `dbelief train` does.

    Parameters
    ----------
    job
        Path of the job file; or its content as plain values, whose relative paths start from the current folder.
    quiet
        Show nothing while it runs.
    on
        Where members run: "local", "ssh", "ray", or within a batch job of Slurm "slurm".
    hosts
        With "ssh": the file that lists hosts.
    overrides
        Fields to replace, dots written as double underscores: `strategy__batch=64`.

    Returns
    -------
    Run

    Raises
    ------
    UserError
        The job is invalid; the message names the error.
    EvaluationFailed
        The model is trained and written, and its last validation or test failed; its attribute `run` is the `Run`.
    RuntimeFailure
        The run did not end as planned; the message names the reason.
    """
    fields = _as_fields(overrides)
    where = Where(on, Path(hosts) if hosts is not None else None)
    if isinstance(job, Mapping):
        with _written(loaded(job, overrides)) as file:
            run = _placed(where, file, {name: fields[name] for name in ("replicas",) if name in fields}, quiet)
    else:
        run = _placed(where, Path(job), fields, quiet)
    if run.code == EvaluationFailed.exit_code:
        raise EvaluationFailed(f"job {run.summary.job}: {run.summary.outcome}", Run(run.where, run.summary))
    if run.code:
        raise RuntimeFailure(f"job {run.summary.job}: {run.summary.reason}")
    return Run(run.where, run.summary)


def loaded(job: Path | str | Mapping[str, Any], overrides: Mapping[str, Any]) -> Job:
    """The job that `train` runs with these arguments.

    Raises
    ------
    JobError
    """
    fields = _as_fields(overrides)
    if isinstance(job, Mapping):
        return build_job(job, Path.cwd(), overrides=fields)
    return load_job(Path(job), fields)


def _placed(where: Where, job_file: Path, fields: Mapping[str, str], quiet: bool) -> _Ended:
    place = where.place(None, job_file, fields)
    return _run_cluster(job_file, place.overrides, place.resume, quiet, site=place.site)


@contextmanager
def _written(job: Job) -> Iterator[Path]:
    """A job file, which exists within the `with` block: the roles' processes load it."""
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(job.anchored().to_yaml())
        yield file


def verdict(summary: Summary, folder: Path | Url) -> str:
    """Outcome of a run, in one line."""
    parts = [summary.reason]
    if summary.test_accuracy is not None:
        parts.append(f"test accuracy {100 * summary.test_accuracy:.2f} %")
    elif summary.test_loss is not None:
        parts.append(f"test loss {summary.test_loss:.4g}")
    elif summary.validation_accuracy is not None:
        parts.append(f"validation accuracy {100 * summary.validation_accuracy:.2f} %")
    elif summary.validation_loss is not None:
        parts.append(f"validation loss {summary.validation_loss:.4g}")
    parts.append(taken(summary))
    if summary.died:
        lost = f"{plural(summary.pushes_lost, 'push', 'pushes')} lost, {summary.pushes_trained_twice} trained twice"
        parts.append(f"failed during the run: {', '.join(summary.died)} ({lost})")
    failed = outcome_text("", summary.evaluation_failed)
    rest = "repeats the evaluation" if summary.trained else "trains on"
    kept = f"; {failed}; the model is written, and --resume {rest}" if failed else ""
    return f"{summary.job}: {', '.join(parts)}; see {folder}{kept}"


def _as_fields(overrides: Mapping[str, Any]) -> dict[str, str]:
    """Arguments by name as dotted fields and YAML text."""
    return {name.replace("__", "."): _as_yaml(value) for name, value in overrides.items()}


def _as_yaml(value: Any) -> str:
    """A field's new value as YAML text: None is null, a mapping a mapping."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
