"""What a replay counts, keeps and drops: staleness, copies of the parameters, samples of lost replicas."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.delay_traces import drawn, trace_of
from dbelief.arrays.backend import Backend
from dbelief.core.push import STALENESS
from dbelief.errors import DataError, JobError
from dbelief.job import Job
from dbelief.simulate.replay.delays import DOWNPOUR, ELASTIC, FETCH, LOST, PUSH, ROUNDS, DelayTrace
from dbelief.simulate.replay.replayed_job import DelayReplay
from tests.equivalence.delayed import replay_of, trained
from tests.jobs import CLASSES, dense, small_job

BATCH = 5
SGD: dict[str, Any] = {
    "name": "downpour",
    "batch": BATCH,
    "rule": {"name": "sgd", "rate": 0.01},
    "warm_start": None,
}
EASGD: dict[str, Any] = {"name": "async-easgd", "batch": BATCH, "rate": 0.01}
DILOCO: dict[str, Any] = {"name": "diloco", "batch": BATCH, "steps": 2, "inner": {"name": "sgd", "rate": 0.01}}
SAMPLES = 200


def job_of(strategy: dict[str, Any], **fields: Any) -> Job:
    """A job of few samples."""
    limits = {"samples": SAMPLES}
    return small_job(**{"model": dense(2), "data": CLASSES, "strategy": strategy, "limits": limits} | fields)


@st.composite
def traces(draw: st.DrawFn, loses: bool = False) -> DelayTrace:
    """Downpour at n_fetch = n_push = 1, in any order; `loses`: replicas are lost too."""
    replicas = draw(st.integers(1, 4))
    events: list[tuple[int, int]] = []
    fetched: set[int] = set()
    for number, lost in draw(st.lists(st.tuples(st.integers(0, replicas - 1), st.booleans()), max_size=30)):
        if number not in fetched:
            events.append((FETCH, number))
            fetched.add(number)
        else:
            events.append((LOST if lost and loses else PUSH, number))
            fetched.remove(number)
    last = 0
    events += [(FETCH, last)] * (last not in fetched) + [(PUSH, last)]
    return trace_of(DOWNPOUR, replicas, events)


def expected_staleness(trace: DelayTrace, pushes: int) -> list[int]:
    """Pushes of others between the fetch and the push of each replica, pass after pass."""
    found: list[int] = []
    while True:
        seen: dict[int, int] = {}
        for kind, number in trace.events():
            if kind == FETCH:
                seen[number] = len(found)
            elif kind == PUSH:
                found.append(len(found) - seen[number])
                if len(found) == pushes:
                    return found


@given(traces(loses=True))
def test_staleness_is_that_of_the_trace(trace: DelayTrace) -> None:
    _, replay = trained(job_of(SGD), trace)
    progress = replay.training.progress
    expected = expected_staleness(trace, progress.pushes)
    assert progress.staleness_sum == sum(expected)
    counts = Counter(min((bound for bound in STALENESS if bound >= late), default=None) for late in expected)
    assert replay.staleness.counts == [counts[bound] for bound in (*STALENESS, None)]


@given(traces(loses=True))
def test_each_sample_of_an_epoch_is_trained_once(trace: DelayTrace) -> None:
    """Whoever is lost: leases hold what is pushed only."""
    job = job_of(SGD, limits={"epochs": 3})
    replay = replay_of(job, trace)
    ranges: list[tuple[int, int, int]] = []
    replay._shared._batches = gather = _Noting(replay._shared._batches, ranges)
    with closing(replay):
        for _ in replay.run():
            pass
    epoch = replay.training.leases.epoch_samples
    assert gather.ranges == [
        (number, first, min(first + BATCH, epoch)) for number in range(3) for first in range(0, epoch, BATCH)
    ]
    assert replay.training.progress.samples == 3 * epoch


class _Noting:
    """Mini-batches, with a record of their ranges."""

    def __init__(self, batches: Any, ranges: list[tuple[int, int, int]]) -> None:
        self._batches, self.ranges = batches, ranges

    def expect(self, epoch: int, start: int, stop: int) -> None:
        self._batches.expect(epoch, start, stop)

    def __call__(self, epoch: int, start: int, stop: int) -> Any:
        self.ranges.append((epoch, start, stop))
        return self._batches(epoch, start, stop)


def test_what_a_lost_replica_has_not_pushed_is_trained_again() -> None:
    """It has computed four pushes from one fetch, and two of them are lost with it."""
    strategy = {**SGD, "n_fetch": 4}
    replay = replay_of(job_of(strategy, limits={"samples": 60}), "F0 P0 P0 L0 F1 P1 P1 P1 P1 F1", 2)
    ranges: list[tuple[int, int, int]] = []
    replay._shared._batches = _Noting(replay._shared._batches, ranges)
    steps = replay.run()
    with closing(replay):
        for _ in range(2):
            next(steps)
        assert len(ranges) == 4
        assert replay.training.progress.samples == 2 * BATCH
        next(steps)
        assert ranges[4:6] == ranges[2:4]
        assert replay.replicas_lost == 1
        for _ in steps:
            pass
    assert replay.training.progress.samples == 60
    assert replay.training.leases.finished


def test_a_pass_over_the_events_begins_anew() -> None:
    """Pushes that were computed for events which the file has not are leased again."""
    strategy = {**SGD, "n_fetch": 4}
    _, replay = trained(job_of(strategy, limits={"samples": 4 * BATCH}), "F0 P0 P0 P0")
    progress = replay.training.progress
    assert (progress.samples, progress.pushes, replay.passes) == (4 * BATCH, 4, 1)


def _copies(replay: DelayReplay) -> list[np.ndarray]:
    return [copy.buffer.host for replica in replay._replicas for copy in replica.copies]


def test_replicas_that_have_fetched_one_version_share_a_copy() -> None:
    trace = drawn(DOWNPOUR, 50, 60)
    replay = replay_of(job_of(SGD), trace)
    steps = replay.run()
    with closing(replay):
        next(steps)
        held = _copies(replay)
        assert len(held) == 49
        assert len({id(values) for values in held}) == 1
        for _ in range(20):
            next(steps)
        assert len({id(values) for values in _copies(replay)}) <= 21


def test_local_state_has_two_copies_of_the_parameters_at_most() -> None:
    """Of an elastic replica its weights and their velocity; what is used within a step is shared."""
    strategy = {"name": "async-measgd", "batch": BATCH, "rate": 0.01, "nesterov": True}
    _, replay = trained(job_of(strategy), drawn(ELASTIC, 4, 40))
    own = [replica.trainer._own for replica in replay._replicas]
    assert len({id(one.values) for one in own}) == len({id(one._velocity) for one in own}) == 4
    for name in ("_gradient", "_ahead"):
        assert len({getattr(one, name).__array_interface__["data"][0] for one in own}) == 1
    assert len(replay._scratch.arrays) == 4


def test_a_warm_start_is_one_replica_s() -> None:
    """The others' events pass; at its end they begin at a new fetch."""
    strategy = {**SGD, "warm_start": {"samples": 60}}
    replay = replay_of(job_of(strategy), "F0 F1 F2 P1 F1 P0 F0 P1 F1 P2 F2", 3)
    alone, steps = [], replay.run()
    with closing(replay):
        for _ in steps:
            alone.append(dict.fromkeys(replay.training.progress.replicas))
            if replay.warm_start_ended():
                break
        assert [list(one) for one in alone] == [[1]] * 12
        assert not any(replica.copies for replica in (replay._replicas[0], replay._replicas[2]))
        for _ in steps:
            replay.warm_start_ended()
    progress = replay.training.progress
    assert {number: own.samples > 0 for number, own in progress.replicas.items()} == {0: True, 1: True, 2: True}
    assert progress.staleness_sum / progress.pushes < 3


def test_a_replica_that_trains_alone_and_is_lost_is_replaced() -> None:
    strategy = {**SGD, "warm_start": {"samples": 60}}
    replay = replay_of(job_of(strategy), "F0 F1 P0 L0 F0 P1 F1", 2)
    steps = replay.run()
    with closing(replay):
        for _ in range(6):
            next(steps)
    assert replay.training.progress.warm_start.active
    own = replay.training.progress.replicas
    assert {number: one.pushes for number, one in own.items()} == {0: 1, 1: 5}
    assert replay.replicas_lost > 3


@pytest.mark.parametrize(
    ("strategy", "other"),
    [
        ({**SGD, "staleness": 4}, SGD),
        ({"name": "async-sgd", "batch": BATCH, "rate": 0.01}, SGD),
        (
            {"name": "async-msgd", "batch": BATCH, "rate": 0.01, "mu": 0.5},
            {**SGD, "rule": {"name": "caffe-momentum", "rate": 0.01, "mu": 0.5}},
        ),
        ({**DILOCO, "blend": 0.0}, DILOCO),
    ],
)
def test_strategies_that_compute_the_same_train_the_same(strategy: dict[str, Any], other: dict[str, Any]) -> None:
    """A bound on the staleness is the file's matter; asynchronous SGD is Downpour with nothing to choose."""
    trace = drawn(ROUNDS if other is DILOCO else DOWNPOUR, 4, 60)
    assert np.array_equal(trained(job_of(strategy), trace)[0], trained(job_of(other), trace)[0])


def test_a_blend_keeps_a_share_of_a_replica_s_own_parameters() -> None:
    trace = drawn(ROUNDS, 3, 60)
    without, blended = (trained(job_of({**DILOCO, "blend": blend}), trace)[0] for blend in (0.0, 0.5))
    assert not np.array_equal(without, blended)
    assert np.isfinite(blended).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("strategy", "kind", "each"),
    [
        (SGD, DOWNPOUR, (1, 1)),
        ({**SGD, "n_fetch": 2}, DOWNPOUR, (1, 2)),
        ({**EASGD, "period": 2}, ELASTIC, (1, 1)),
        (DILOCO, ROUNDS, (1, 1)),
    ],
)
def test_replicas_on_a_device_train_as_on_the_host(
    cuda: Backend, strategy: dict[str, Any], kind: str, each: tuple[int, int]
) -> None:
    trace = drawn(kind, 4, 60, each=each)
    on_host, _ = trained(job_of(strategy), trace)
    on_device, _ = trained(job_of(strategy), trace, backend=cuda)
    np.testing.assert_allclose(on_device, on_host, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("strategy", "events", "words"),
    [
        ({**SGD, "n_push": 2}, "F0 F0 P0", "event 1: replica 0 fetches more often than it pushes with n_fetch 1 and"),
        ({**SGD, "n_push": 2, "n_fetch": 2}, "F0 P0 P0 F0", "event 2: replica 0 pushes more often than it fetches"),
        ({**SGD, "n_fetch": 2}, "F0 P0 F0 P0", "event 2: replica 0 fetches more often than it pushes with n_fetch 2"),
        (DILOCO, "F0 F1 P0 R F0 P1 R", "event 5: replica 1 pushes after the end of its round, and strategy.quorum is"),
        (DILOCO, "F0 P0 F0 P0 R", "event 3: replica 0 pushes twice in one round"),
    ],
)
def test_a_file_of_another_job_is_refused_by_event(strategy: dict[str, Any], events: str, words: str) -> None:
    if "n_push" in strategy and "n_fetch" not in strategy:
        events = "F0 F0 F0 P0"
        words = words.replace("event 1", "event 2")
    replay = replay_of(job_of(strategy), events, 2)
    with closing(replay), pytest.raises(DataError) as found:
        list(replay.run())
    assert str(found.value).startswith(f"d.npz: {words}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"strategy": {**DILOCO, "delay": 1}}, "strategy.delay must be 0: a push takes effect as a whole"),
        ({"strategy": {**DILOCO, "fragments": 2}}, "strategy.fragments must be 1: a push takes effect as a whole"),
        ({"strategy": {**SGD, "staleness": 0}}, "strategy.name must not be downpour with staleness 0: there are"),
        ({"strategy": {"name": "hogwild-sgd", "rate": 1.0}}, "strategy.name must not be hogwild-sgd: there are delays"),
        ({"strategy": {"name": "sync-sgd", "rule": SGD["rule"]}}, "strategy.name must not be sync-sgd: there are"),
        ({"strategy": {**EASGD, "name": "easgd"}}, "strategy.name must not be easgd: there are delays for downpour"),
        ({"strategy": {**SGD, "n_push": 2, "n_fetch": 3}}, "strategy.n_fetch, 3, must divide n_push, 2, or the other"),
        ({"strategy": {**SGD, "n_push": 2, "literal": True}}, "strategy.literal must be false"),
        ({"record": True}, "record must be false: the file has the order"),
        ({"wire": {"push": "fp16"}}, "wire must be left out: nothing travels"),
        ({"track": ["mlflow"]}, "track must be []: `dbelief track RUN` gives the run to trackers"),
        ({"output": "s3://bucket/runs"}, "output must be a folder"),
        ({"scale": "auto"}, "scale must be null: the file has the replicas"),
        ({"strategy": EASGD}, "d.npz is of strategy downpour, and that of async-easgd is elastic"),
    ],
)
def test_jobs_without_delays_are_refused_by_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError) as found:
        replay_of(job_of(**{"strategy": SGD} | fields), drawn(DOWNPOUR, 2, 4))
    assert str(found.value).startswith(f"job small: delays: {words}")


def test_more_replicas_than_a_job_may_have_are_refused() -> None:
    with pytest.raises(JobError, match="has 1,025 replicas, and at most 1,024 are replayed"):
        replay_of(job_of(SGD), drawn(DOWNPOUR, 1025, 1))


@pytest.mark.parametrize("strategy", [SGD, EASGD, DILOCO])
def test_a_thousand_replicas_train(strategy: dict[str, Any], tmp_path: Path) -> None:
    kind = {"downpour": DOWNPOUR, "async-easgd": ELASTIC, "diloco": ROUNDS}[strategy["name"]]
    quorum = 900 if kind == ROUNDS else None
    trace = drawn(kind, 1000, 1500, quorum=quorum)
    chosen = strategy | ({"quorum": quorum} if quorum else {})
    _, replay = trained(job_of(chosen, limits={"samples": 1500 * BATCH}), trace)
    assert replay.training.progress.samples == 1500 * BATCH
    assert len(replay.training.progress.replicas) > 700
