"""Seeds of the simulation: record each, project it, and have the model judge its traces."""

from __future__ import annotations

import gc
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.simulation.cluster import Cluster
from tests.simulation.models.jobs import JOBS
from tests.simulation.plan.plan import Plan, draw_plan
from tests.simulation.pool import each_seed
from tests.simulation.seeds import scratch

from .acceptor import Acceptor, Verdict
from .projection import Trace, traces_of
from .recorder import Recorder

COVERED = tuple(name for name, job in JOBS.items() if job.replication > 1 and name != "sandblaster")
"""Jobs whose workers push or exchange numbered updates of replicated segments: Sandblaster's bundles have no number."""


@dataclass(frozen=True)
class Judged:
    """Outcome of one seed.

    Attributes
    ----------
    traces, accepted
        How many traces it has, and how many of them the model accepts.
    actions
        Events of all its traces, by kind.
    rejected
        Of the first trace that is not accepted, where and why; "" where there is none.
    cpu_s
        Processor time of the simulation and the projection, in seconds.
    judged_s
        Time of the acceptor, in seconds.
    """

    seed: int
    job: str
    traces: int
    accepted: int
    actions: dict[str, int] = field(default_factory=dict)
    rejected: str = ""
    cpu_s: float = 0.0
    judged_s: float = 0.0


def record(plan: Plan, folder: Path) -> tuple[Trace, ...]:
    """Run a plan; its traces."""
    cluster = Cluster(plan, folder, folder / "data.npz")
    recorder = Recorder(cluster._scheduler)
    with recorder.recording():
        cluster.run()
    return tuple(traces_of(recorder.log))


def describe(trace: Trace, verdict: Verdict) -> str:
    """Where a trace is rejected, and which action the model does not allow there."""
    event = trace.events[verdict.position]
    why = verdict.reason or "no run of the model has this action here"
    return f"segment {trace.segment}, {trace.pusher}, event {verdict.position}: {event}: {why}"


def judge_seed(seed: int, folder: Path, compiled: Path) -> Judged:
    """Run one seed and judge its traces."""
    began_s = time.process_time()
    plan = draw_plan(seed)
    traces = record(plan, folder)
    gc.collect()
    cpu_s, judging_s = time.process_time() - began_s, time.monotonic()
    acceptor = Acceptor(compiled)
    verdicts = [(trace, acceptor.judge(trace.events)) for trace in traces]
    rejected = next((describe(trace, verdict) for trace, verdict in verdicts if not verdict.accepted), "")
    return Judged(
        seed,
        plan.job,
        len(verdicts),
        sum(verdict.accepted for _, verdict in verdicts),
        dict(Counter(event.kind for trace in traces for event in trace.events)),
        rejected,
        cpu_s,
        time.monotonic() - judging_s,
    )


def judge_seeds(seeds: Sequence[int], processes: int, results: Path | None = None) -> Iterator[Judged]:
    """Judge seeds, and yield the outcome of each, those in the file `results` first.

    Parameters
    ----------
    results
        File of outcomes, a line of JSON each; new ones are appended, and seeds that are in it are not run again.
    """
    with scratch() as folder, tempfile.TemporaryDirectory() as compiled:
        Acceptor.compile(Path(compiled))
        call = partial(judge_seed, folder=folder, compiled=Path(compiled))
        yield from each_seed(seeds, call, processes, results, lambda fields: Judged(**fields))
