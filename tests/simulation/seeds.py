"""Seeds: run one, run many in several processes with their results in a file, and shrink the plan of one that fails."""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .cluster import Cluster, Outcome
from .models.jobs import JOBS
from .models.marks import write_data
from .plan.plan import GRPC, Plan, Ways, draw_plan
from .pool import each_seed

MEMORY = Path("/dev/shm")
COLLECT_EVERY = 16
"""Seeds between two collections of cycles, which take as long as a tenth of a seed."""


@dataclass(frozen=True)
class Result:
    """Figures of one seed.

    Attributes
    ----------
    kinds
        Kinds of faults that had an effect.
    cpu_s
        Processor time, in seconds.
    """

    seed: int
    job: str
    pushes: int
    batches: int
    kinds: tuple[str, ...]
    restores: int
    virtual_s: float
    steps: int
    trace: int
    cpu_s: float
    violations: tuple[str, ...]


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory, where there is one, with the data of all jobs."""
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        write_data(folder / "data.npz")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_plan(plan: Plan) -> Outcome:
    """Run a plan in a folder of its own."""
    with scratch() as folder:
        return Cluster(plan, folder, folder / "data.npz").run()


def run_seed(seed: int, folder: Path, ways: Ways = GRPC) -> Result:
    """Run the plan of a seed."""
    began_s = time.process_time()
    plan = replace(draw_plan(seed), ways=ways)
    outcome = Cluster(plan, folder, folder / "data.npz").run()
    if ways.shared_memory or seed % COLLECT_EVERY == 0:  # blocks of memory hold descriptors
        gc.collect()
    return Result(
        seed,
        plan.job,
        outcome.pushes,
        outcome.batches,
        outcome.kinds,
        outcome.restores,
        outcome.virtual_s,
        outcome.steps,
        outcome.trace,
        time.process_time() - began_s,
        outcome.violations,
    )


def run_seeds(seeds: Sequence[int], processes: int, results: Path | None = None, ways: Ways = GRPC) -> Iterator[Result]:
    """Run seeds, and yield the result of each, those in the file `results` first.

    Parameters
    ----------
    results
        File of results, a line of JSON each; new ones are appended, and seeds that are in it are not run again.
    ways
        Of messages, besides gRPC.
    """
    with scratch() as folder:
        yield from each_seed(seeds, partial(run_seed, folder=folder, ways=ways), processes, results, _from_fields)


def _from_fields(fields: dict[str, Any]) -> Result:
    return Result(**fields | {name: tuple(fields[name]) for name in ("kinds", "violations")})


def shrink(plan: Plan) -> Plan:
    """The plan with as few faults as still end in a violation: each is left out in turn."""
    number = 0
    while number < len(plan.faults):
        smaller = replace(plan, faults=plan.faults[:number] + plan.faults[number + 1 :])
        if run_plan(smaller).violations:
            plan = smaller
        else:
            number += 1
    return plan


def seeds_of(first: int, count: int, jobs: Collection[str] = ()) -> list[int]:
    """The next `count` seeds from `first`, of these jobs where there are any."""
    names = list(JOBS)
    found: list[int] = []
    while len(found) < count:
        if not jobs or names[first % len(names)] in jobs:
            found.append(first)
        first += 1
    return found
