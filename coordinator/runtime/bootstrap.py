"""Creation of a job's machine: new, from a snapshot set, or from the state of another coordinator."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from dbelief.checkpoint.set_files import COMMIT
from dbelief.checkpoint.set_storage import SetStorage, latest_valid, newest_count
from dbelief.data import sizes_and_units
from dbelief.data.streams.unit_order import Units
from dbelief.errors import DataError, JobError, SnapshotError, UserError
from dbelief.job import Job, load_job
from dbelief.process.runtime import runtime
from dbelief.rundir.place import RunPlace
from dbelief.rundir.summary import EARLIER, FILE, read_summary
from dbelief.url import Url

from ..core.states import DatasetSizes
from ..job.machine import JobMachine
from ..job.persistence import last_shard_epoch, load_unfinished, restore, training_started

log = logging.getLogger(__name__)


class Bootstrapped(NamedTuple):
    """A job's machine and the folder that its coordinator works in.

    `began_wall_s`: start of the run in seconds since 1970, where another coordinator started it; else None.
    """

    machine: JobMachine
    folder: Path
    began_wall_s: float | None = None


def start(
    job: Job,
    place: RunPlace,
    stored: Mapping[str, bytes],
    run_folder: Path | None,
    resume: bool,
    fresh: bool,
    now_s: float,
) -> Bootstrapped:
    """Start the job, or continue from the state in the registry.

    Parameters
    ----------
    place
        Of the run; the folder is claimed there.
    stored
        State of the job in the registry.
    run_folder
        An existing run folder; None: one is created, except where a run continues in its own.

    Raises
    ------
    UserError
        The unfinished run was started with another job file.
    """
    parts = None if resume or fresh else load_unfinished(stored)
    if parts is not None:
        run: dict[str, Any] = json.loads(stored["run"])
        found = place.find(run["folder"], run_folder, parts["state"]["run_id"])
        if found is not None:
            if run["job"] != job.to_yaml():
                raise UserError(
                    f"job {job.name} is unfinished (run folder {run['folder']}) and was started with another job file: "
                    "use that one, or --fresh to start anew"
                )
            machine = _taken_over(job, place.sets(found), parts, now_s)
            machine.earlier_wall_s = run.get("legs", 0.0)
            return Bootstrapped(machine, found, run["began"])
        log.warning(
            f"the unfinished run of job {job.name} was in {run['folder']}, which does not exist here: starting anew"
        )
    if resume or run_folder is not None:
        folder = place.prepare(resume, run_folder)
        machine = create_machine(job, place.sets(folder), resume)
        if resume:
            machine.trained = _reason_trained(machine, folder)
    else:
        machine = create_machine(job, place.sets(), resume)  # first: it checks the data, before a run is moved aside
        folder = place.prepare(resume)
    # A run that failed before its first set has issued epochs that no set contains.
    machine.shard_epoch = max(machine.shard_epoch, last_shard_epoch(stored) + 1)
    return Bootstrapped(machine, folder)


def _reason_trained(machine: JobMachine, folder: Path) -> str:
    """Why the earlier run in a folder had ended training, where it lacks only evaluations; "" where it trains on.

    It does with other limits than before, and from a set that is older than its end.
    """
    for name in (FILE, EARLIER):
        try:
            summary, before = read_summary(folder / name), load_job(folder / "job.yaml")
        except (DataError, JobError):  # it was killed, or another version wrote them
            continue
        ended = summary.unevaluated and before.limits == machine.job.limits
        if ended and summary.samples == machine.resumed_samples:
            return summary.reason
    return ""


def _taken_over(job: Job, sets: SetStorage, parts: Mapping[str, Any], now_s: float) -> JobMachine:
    machine = create_machine(job, sets, resume=parts["state"]["resumes"] and not training_started(parts))
    restore(machine, parts, now_s)
    log.info(
        f"taking over from another coordinator of job {job.name}, after {machine.progress.samples:,} samples"
        if training_started(parts)
        else f"taking over from another coordinator of job {job.name}, before training: all members join again"
    )
    return machine


def create_machine(job: Job, sets: SetStorage, resume: bool) -> JobMachine:
    """The job's machine, with the sizes of its data and a new run id."""
    sizes, read_as = sizes_and_units(job.data, job.folder)
    shape = DatasetSizes(*sizes, _block_ends(read_as, job.seed))
    run_id = runtime.random_id()
    if not resume:
        return JobMachine(job, shape, run_id=run_id)
    set_id, state, skipped = latest_valid(sets, job.name, job.strategy.at_shards.name)
    for one in skipped:
        log.warning(f"snapshot set {one.set_id} is damaged and was quarantined; restoring {set_id}: {one.reason}")
        sets.quarantine(one.set_id)
    _check_leases(state, sets.place(set_id))
    state["sets"] = newest_count(sets)  # no new set may reuse the folder of an incomplete one
    try:
        return JobMachine(job, shape, (set_id, state), state["shard_epoch"] + 1, run_id)
    except (KeyError, TypeError) as error:
        raise SnapshotError(f"{sets.place(set_id) / COMMIT}: holds no job state: {error!r}") from error


def _block_ends(read_as: Units | None, seed: int) -> Callable[[int], Sequence[int]] | None:
    """By epoch, the places at which a block of the training data ends; None where it is not read in blocks."""
    if read_as is None:
        return None

    @lru_cache(maxsize=4)
    def ends(epoch: int) -> list[int]:
        found: list[int] = read_as.order(seed, epoch).ends.tolist()
        return found

    return ends


def _check_leases(state: Mapping[str, Any], place: Path | Url) -> None:
    """Check that the ledgers of a set can settle its leases: those of earlier versions do not name them.

    Raises
    ------
    SnapshotError
        They cannot.
    """
    leases = state.get("leases", {})
    if "cadence" in leases and leases.get("held"):
        raise SnapshotError(
            f"{place}: an earlier version wrote it, whose ledgers do not name leases: resume the run with that "
            "version, or begin a new one from its parameters with `start_from`"
        )
