"""Replays of delays in this process, and the events that drive them, as plain values."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.delay_traces import trace_of
from dbelief.arrays.backend import Backend
from dbelief.data import load
from dbelief.job import Job
from dbelief.simulate.replay.check import check_delays
from dbelief.simulate.replay.delays import FETCH, LOST, PUSH, ROUND, DelayTrace
from dbelief.simulate.replay.replayed_job import DelayReplay, kind_of
from dbelief.training.session import build_model, initial_values
from tests.equivalence.harness import HOST, small_job

Event = tuple[int, int]


def events_of(text: str) -> list[Event]:
    """Events of words such as F0 P0 L0 R: FETCH, PUSH and LOST of a replica, and ROUND."""
    kinds = {"F": FETCH, "P": PUSH, "L": LOST, "R": ROUND}
    return [(kinds[word[0]], int(word[1:] or -1)) for word in text.split()]


def job_of(folder: Path, strategy: dict[str, Any], **fields: Any) -> Job:
    """A small job of digits without a record, which a replay may train."""
    return small_job(folder, strategy, **{"record": False, **fields})


def replay_of(job: Job, trace: DelayTrace | str, replicas: int = 1, backend: Backend = HOST) -> DelayReplay:
    """A replay that has not begun; `trace`: or words for `events_of`."""
    if isinstance(trace, str):
        trace = trace_of(kind_of(job) or "", replicas, events_of(trace))
    check_delays(job, trace, "d.npz")
    job = job.model_copy(update={"replicas": trace.replicas})
    data = load(job.data, job.folder)
    model, _ = build_model(job, data, backend)
    return DelayReplay(job, trace, "d.npz", data, model, *initial_values(job, model), backend)


def trained(
    job: Job, trace: DelayTrace | str, replicas: int = 1, backend: Backend = HOST
) -> tuple[np.ndarray, DelayReplay]:
    """The parameters at the end of a replay, and the replay."""
    replay = replay_of(job, trace, replicas, backend)
    with closing(replay):
        for _ in replay.run():
            assert not replay.trouble
    return replay.shards.values(), replay
