"""A complete job as one call: `dbelief train` and `dbelief.train`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from dbelief.arrays.backend import select_backend
from dbelief.errors import RuntimeFailure
from dbelief.job import load_job
from dbelief.launch.local_cluster import LocalCluster, Pictures
from dbelief.launch.site import Site
from dbelief.monitor.format import plural
from dbelief.monitor.live_view import LiveView
from dbelief.monitor.status_table import taken
from dbelief.rundir.summary import Summary, read_summary
from dbelief.training.job_check import build_job

log = logging.getLogger(__name__)


def run_job(
    job_file: Path,
    overrides: Mapping[str, str],
    resume: bool = False,
    quiet: bool = False,
    page: str | None = None,
    shared_memory: bool = True,
    site: Site | None = None,
    pictures: Callable[[Path, str], Pictures] | None = None,
) -> int:
    """Run a job with a live view, and a status page at `page` (`host:port`); return the exit code.

    It runs at `site`; None: on this machine. `pictures`: see `LocalCluster`.
    """
    code, folder = _run_cluster(job_file, overrides, resume, quiet, page, shared_memory, site, pictures)
    log.info(verdict(read_summary(folder / "summary.json"), folder))
    return code


def _run_cluster(
    job_file: Path,
    overrides: Mapping[str, str],
    resume: bool,
    quiet: bool,
    page: str | None = None,
    shared_memory: bool = True,
    site: Site | None = None,
    pictures: Callable[[Path, str], Pictures] | None = None,
) -> tuple[int, Path]:
    """Exit code and run folder of a cluster's run."""
    job = load_job(job_file, overrides)
    build_job(
        job, select_backend("cpu"), resume
    )  # before a folder is created, an earlier run is moved, or a process is started
    with ExitStack() as stack:
        view = None if quiet else stack.enter_context(LiveView(Console(stderr=True)))
        show = view.update if view else lambda status: None
        cluster = LocalCluster(
            job,
            job_file,
            overrides,
            resume,
            show,
            page=page,
            shared_memory=shared_memory,
            site=site,
            pictures=pictures,
        )
        return cluster.run(), cluster.folder


def train(job: Path | str, quiet: bool = True, **overrides: Any) -> Summary:
    """Run a job file on this machine, as `dbelief train` does.

    Parameters
    ----------
    job
        Path of the job file.
    quiet
        Show nothing while it runs.
    overrides
        Fields to replace, dots written as double underscores: `strategy__batch=64`.

    Returns
    -------
    Summary
        The content of `runs/NAME/summary.json`.

    Raises
    ------
    UserError
        The job is invalid; the message names the error.
    RuntimeFailure
        The run did not end as planned; the message names the reason.
    """
    fields = {name.replace("__", "."): _as_yaml(value) for name, value in overrides.items()}
    code, folder = _run_cluster(Path(job), fields, resume=False, quiet=quiet)
    summary = read_summary(folder / "summary.json")
    if code:
        raise RuntimeFailure(f"job {summary.job}: {summary.reason}")
    return summary


def verdict(summary: Summary, folder: Path) -> str:
    """Outcome of a run, in one line."""
    parts = [summary.reason]
    if summary.test_accuracy is not None:
        parts.append(f"test accuracy {100 * summary.test_accuracy:.2f} %")
    elif summary.test_loss is not None:
        parts.append(f"test loss {summary.test_loss:.4g}")
    parts.append(taken(summary))
    if summary.died:
        lost = f"{plural(summary.pushes_lost, 'push', 'pushes')} lost, {summary.pushes_trained_twice} trained twice"
        parts.append(f"failed during the run: {', '.join(summary.died)} ({lost})")
    return f"{summary.job}: {', '.join(parts)}; see {folder}"


def _as_yaml(value: Any) -> str:
    """A field's new value as YAML text: None is null, a mapping a mapping."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
