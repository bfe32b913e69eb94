"""Replicas of DiLoCo in threads of their own, logged as the programs log, and replayed: the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.layout import nominal_length
from dbelief.core.lease import DataLease
from dbelief.core.push import AppliedPush, Pusher, PushResult, PushStats
from dbelief.core.rounds import Rounds
from dbelief.errors import RuntimeFailure
from dbelief.job import Diloco, Job
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters
from dbelief.rpc.wire.payloads import AS_THEY_ARE
from dbelief.rundir.record import BatchRecorder, FetchedVersions, PushRecorder
from dbelief.tools.replay import replay_rounds, replay_run
from dbelief.tools.replay.codec_replay import CodecReplay
from dbelief.training.local_rounds import DilocoSettings, LocalRounds
from dbelief.training.phases import PhaseTimer
from dbelief.training.schedule import learning_rate, total_samples
from tests.equivalence.harness import HOST, Problem, in_threads, quadratic, serve, small_job, two_epochs, values_of
from worker.strategies.diloco import Diloco as Learner

BATCH, STEPS, REPLICAS = 5, 4, 3
STREAMED = {"fragments": 3, "delay": 1, "blend": 0.25, "clip_norm": 0.8, "weigh": "rate"}


def job_of(folder: Path, **strategy: Any) -> Job:
    """Two epochs of digits, at a rate that falls all the time."""
    inner, outer = {"name": "adamw", "rate": 0.01}, {"name": "nesterov", "rate": 0.7}
    named = {"name": "diloco", "batch": BATCH, "steps": STEPS, "inner": inner, "outer": outer}
    return small_job(folder, named | strategy, schedule={"kind": "poly", "power": 0.5}, limits={"epochs": 2})


def work(job: Job, problem: Problem, shards: InProcessParameters, number: int, folder: Path) -> None:
    """Train three leases of rounds that differ between replicas, and write the log."""
    assert isinstance(job.strategy, Diloco)
    total = total_samples(job.limits, len(problem.inputs) // 2)
    chosen = DilocoSettings.of(job.strategy, lambda before: learning_rate(job, before, total=total))
    pusher, log = Pusher(number, number + 11), BatchRecorder()

    def acknowledged(done: PushStats, pushed: PushResult) -> None:
        log.acknowledged(done.sequence)

    model, part = problem.make(), problem.layout.part(0)
    learner = Learner(model, part, HOST, shards, pusher, problem, chosen, PhaseTimer(), acknowledged, log.note)
    with closing(learner):
        first, clock, length = number * 100, 0, BATCH * STEPS
        for epoch, rounds in enumerate((2, 2, 1)):
            start = first + (length * 2 if epoch == 1 else 0)
            samples = length * rounds - number  # the last round is a short one
            learner.train(DataLease(epoch + 1, min(epoch, 1), start, start + samples, clock * 7, clock), clock + 1)
            clock += rounds
    log.write(folder / "record", pusher)


def trained(job: Job, folder: Path) -> np.ndarray:
    """Leave the logs of a run; the last parameters."""
    log, problem = PushRecorder(), two_epochs(job)
    nominal = nominal_length(len(problem.start), job.shards)
    rule = make_rule("nesterov", {})
    shards = serve(problem.start, rule, 3, nominal, replicas=REPLICAS, on_apply=log.note)
    in_threads(*(partial(work, job, problem, shards, number, folder) for number in range(REPLICAS)))
    log.write(folder / "record", 0)
    return values_of(shards)


@pytest.mark.parametrize("strategy", [{}, STREAMED])
def test_a_runs_folder_is_replayed(tmp_path: Path, strategy: dict[str, Any]) -> None:
    w = trained(job_of(tmp_path, **strategy), tmp_path)
    assert np.array_equal(replay_run(tmp_path), w)
    log = tmp_path / "record" / "shard-0.jsonl"
    log.write_text(log.read_text().replace(f", {BATCH * STEPS}]", f", {BATCH * STEPS + 1}]"))
    assert strategy or not np.array_equal(replay_run(tmp_path), w), "weights are those of the log"


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logged")
    trained(job_of(folder), folder)
    return folder


@pytest.mark.parametrize(
    ("log", "lost", "match"),
    [
        ("shard-0", "[0, 1, 12, 5,", "segment 0: push 5 of replica 1 in incarnation 12 was acknowledged, and the sh"),
        ("shard-0", "[0, ", "replica 0 in incarnation 11 fetched version 1 of segment 0, and .* ends at version 0"),
        ("replica-1-12", "", "segment 0: round 0 has push 1 of replica 1 in incarnation 12, and by the replicas' logs"),
        ("replica-2-13", '"step": 4', "lacks the fetch after 4 mini-batches of samples 200 to 238 of epoch 0"),
    ],
)
def test_a_log_that_is_not_whole_is_refused(logged: Path, tmp_path: Path, log: str, lost: str, match: str) -> None:
    (tmp_path / "record").mkdir()
    for path in (logged / "job.yaml", *(logged / "record").iterdir()):
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if path.stem != log or lost not in line]
        if kept:
            (tmp_path / path.relative_to(logged)).write_text("".join(kept))
    with pytest.raises(RuntimeFailure, match=match):
        replay_run(tmp_path)


def test_rounds_are_those_of_the_log_whoever_takes_part(tmp_path: Path) -> None:
    """B is late: its first push counts a half in the second round, and it goes on from there; A has a third alone."""
    problem = quadratic(9)
    start, spans, sgd = problem.start, serve(problem.start, make_rule("sgd", {}), nominal=99).placement.spans, 0.05
    chosen = DilocoSettings(Rounds(1, 1), make_rule("sgd", {}), lambda before: sgd, 1.0)
    a, b = Pusher(0, 1), Pusher(1, 2)

    def fetched(pusher: Pusher, versions: Sequence[int]) -> list[FetchedVersions]:
        lease, last = DataLease(0, 0, 3 * pusher.replica, 3 * pusher.replica + len(versions), 0), len(versions)
        return [FetchedVersions(pusher, lease, step, max(step, 1), (at,), last) for step, at in enumerate(versions)]

    applied = [
        AppliedPush(0, b, 2, 1.0, 3, 1),  # of another shard's log: segments move
        AppliedPush(0, a, 1, 1.0, 0, 1),
        AppliedPush(0, a, 2, 1.0, 1, 1),
        AppliedPush(0, b, 1, 1.0, 1, 0.5),
        AppliedPush(0, a, 3, 1.0, 2, 1),
    ]
    gradient, model, layout = problem.gradients(), problem.make(), problem.layout

    def compute(local: LocalRounds, epoch: int, begin: int, end: int) -> tuple[int, float, frozenset[str]]:
        model.loss_and_gradient(layout.views(local.values), problem.batch(0, begin, end), layout.views(local.gradient))
        return 1, 0.0, frozenset()

    found = replay_rounds(
        start,
        spans,
        make_rule("sgd", {}),
        applied,
        [*fetched(a, [0, 1, 2]), *fetched(b, [0, 2])],
        lambda pusher: LocalRounds(layout.part(0), HOST, spans, pusher, chosen),
        compute,
        CodecReplay(AS_THEY_ARE, spans),
    )

    def change(w: np.ndarray, sample: int) -> np.ndarray:
        difference: np.ndarray = w - (w - np.float32(sgd) * gradient(w, sample, sample + 1))
        return difference

    w, late = start - change(start, 0), change(start, 3)
    total = 1.5
    w = w - (change(w, 1) * np.float32(1 / total) + late * np.float32(0.5 / total))
    own, other = change(w, 2), change(w, 4)
    assert np.array_equal(found, w - own - other)
