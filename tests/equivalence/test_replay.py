"""An asynchronous run, logged and replayed in one thread: the same bits."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from dbelief.arrays.backend import aligned
from dbelief.core.absent import Ranges
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import PARAMETERS, AppliedPush, Push, Pusher
from dbelief.errors import RuntimeFailure
from dbelief.optim import Rule, make_rule
from dbelief.rpc.in_process import InProcessParameters
from dbelief.rundir.record import BatchRecorder, ComputedBatch, PushRecorder, read_record
from dbelief.tools.replay import replay
from tests.equivalence.harness import Problem, network, quadratic, serve, values_of

RATE, BATCH, SAMPLES, REPLICAS = 0.05, 2, 150, 3
ADAGRAD = make_rule("adagrad", {})
PROBLEMS = {"quadratic": quadratic(SAMPLES), "network": network(SAMPLES)}


def again(
    problem: Problem,
    parameters: InProcessParameters,
    rule: Rule,
    applied: Sequence[AppliedPush],
    computed: Sequence[ComputedBatch],
) -> np.ndarray:
    gradient = problem.gradients()
    asked: list[ComputedBatch] = []

    def gradient_of(values: np.ndarray, row: ComputedBatch) -> tuple[np.ndarray, Ranges]:
        asked.append(row)
        return gradient(values, row.start, row.stop), ()

    w = replay(problem.start, parameters.placement.spans, rule, applied, computed, gradient_of)
    assert len(asked) == len({(row.pusher, row.sequence) for row in applied}), "one gradient for each push"
    return w


# -- segment by segment, in a drawn order ------------------------------------------------------------------------


def life(
    problem: Problem, parameters: InProcessParameters, pusher: Pusher, share: tuple[int, int], recorder: BatchRecorder
) -> Iterator[None]:
    """A replica that gives way to others after every segment it pulls or pushes, and pushes them in its own order."""
    gradient, values = problem.gradients(), aligned(len(problem.start), np.float32)
    spans = parameters.placement.spans
    home = {s.index: n for n, p in enumerate(parameters.placement.places) for s in parameters.placement.run(p)}
    versions = np.full(len(spans), -1, np.int64)
    lease = DataLease(1, 0, *share, samples_before=0)
    order = np.random.default_rng(pusher.incarnation).permutation(len(spans)).tolist()
    for step in range(lease.samples // BATCH):
        for span in spans:
            version, data = parameters.shards[home[span.index]].pull(PARAMETERS, span.index)
            assert data is not None
            values[span.start : span.stop], versions[span.index] = np.frombuffer(data, np.float32), version
            yield
        recorder.note(lease, step, step + 1, versions)
        start = lease.start + step * BATCH
        g = gradient(values, start, start + BATCH)
        push = Push(pusher, step + 1, np.float32(RATE / (step + 1)))
        for index in order:
            span = spans[index]
            parameters.shards[home[index]].push(push, index, g[span.start : span.stop], 0, int(versions[index]))
            yield
        recorder.acknowledged(step + 1)


def drawn(problem: Problem, rule: Rule, seed: int, folder: Path, aware: bool = False) -> InProcessParameters:
    """Run three lives to their end, each move of a drawn one; their logs are in `folder`."""
    of_shards = [PushRecorder() for _ in range(3)]
    places = serve(problem.start, rule, shards=3).placement.places
    shard_of = {index: place.shard for place in places for index in place.segments}
    parameters = serve(
        problem.start,
        rule,
        shards=3,
        on_apply=lambda row: of_shards[shard_of[row.segment]].note(row),
        staleness_aware=aware,
    )
    pushers = [Pusher(0, 1), Pusher(1, 2), Pusher(0, 7)]  # the last is a second life of the first
    of_replicas = [BatchRecorder() for _ in pushers]
    shares = [(0, 40), (40, 70), (70, 102)]
    lives = [life(problem, parameters, *row) for row in zip(pushers, shares, of_replicas, strict=True)]
    rng = np.random.default_rng(seed)
    while lives:
        one = lives[rng.integers(len(lives))]
        if next(one, one) is one:
            lives.remove(one)
    for number, recorder in enumerate(of_shards):
        recorder.write(folder, number)
    for pusher, of_replica in zip(pushers, of_replicas, strict=True):
        of_replica.write(folder, pusher)
    return parameters


@pytest.mark.parametrize("rule_name", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("aware", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_any_interleaving_of_segments_is_replayed(tmp_path: Path, seed: int, aware: bool, rule_name: str) -> None:
    """A rate that was divided by its staleness stands in the log as it was applied."""
    problem, rule = PROBLEMS["quadratic"], make_rule(rule_name, {})
    parameters = drawn(problem, rule, seed, tmp_path, aware)
    applied, computed = read_record(tmp_path, FetchPushSchedule(BATCH))
    assert np.array_equal(again(problem, parameters, rule, applied, computed), values_of(parameters))
    orders = [[(r.pusher, r.sequence) for r in applied if r.segment == s.index] for s in parameters.placement.spans]
    assert all(sorted(order) == sorted((row.pusher, row.sequence) for row in computed) for order in orders)
    assert all(order != orders[0] for order in orders[1:]), "all segments applied the pushes in one order"
    assert any(len(set(row.versions)) > 1 for row in computed), "no replica saw segments of different versions"
    assert any(row.rate != np.float32(RATE / row.sequence) for row in applied) == aware


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[InProcessParameters, list[AppliedPush], list[ComputedBatch]]:
    folder = tmp_path_factory.mktemp("record")
    parameters = drawn(PROBLEMS["quadratic"], ADAGRAD, 0, folder)
    return parameters, *read_record(folder, FetchPushSchedule(BATCH))


Whole = tuple[InProcessParameters, list[AppliedPush], list[ComputedBatch]]


def test_rows_of_segments_and_replicas_may_be_reordered(whole: Whole) -> None:
    parameters, applied, computed = whole
    by_segment = sorted(applied, key=lambda row: -row.segment)  # stable: each segment's own order stays
    w = again(PROBLEMS["quadratic"], parameters, ADAGRAD, by_segment, computed[::-1])
    assert np.array_equal(w, values_of(parameters))


def test_the_order_and_the_versions_decide_the_result(whole: Whole) -> None:
    """Else the equalities above would say nothing."""
    parameters, applied, computed = whole
    problem, w = PROBLEMS["quadratic"], values_of(parameters)
    one = computed[-1]
    newer = dataclasses.replace(one, versions=tuple(version - 1 for version in one.versions))
    assert not np.array_equal(again(problem, parameters, ADAGRAD, applied, [*computed[:-1], newer]), w)
    last = [row for row in applied if row.segment == 2][-8:]
    i = next(i for i in range(7) if last[i].pusher != last[i + 1].pusher)
    a, b = applied.index(last[i]), applied.index(last[i + 1])
    swapped = list(applied)
    swapped[a], swapped[b] = applied[b], applied[a]
    assert not np.array_equal(again(problem, parameters, ADAGRAD, swapped, computed), w)


def test_a_push_that_died_with_its_replica_may_be_torn(whole: Whole) -> None:
    """One segment has it, or none; its log says that it was not acknowledged."""
    parameters, applied, computed = whole
    problem, last, w = PROBLEMS["quadratic"], parameters.placement.spans[-1], values_of(parameters)
    dying = ComputedBatch(Pusher(5, 50), 1, 0, 120, 122, (0,) * (last.index + 1), acknowledged=False)
    nowhere = again(problem, parameters, ADAGRAD, applied, [*computed, dying])
    half = [*applied, AppliedPush(last.index, dying.pusher, 1, RATE)]
    torn = again(problem, parameters, ADAGRAD, half, [*computed, dying])
    assert np.array_equal(nowhere, w)
    assert np.array_equal(torn[: last.start], w[: last.start])
    assert (torn[last.start :] != w[last.start :]).all()


def test_a_shards_log_that_is_not_whole_is_refused_by_name(whole: Whole) -> None:
    parameters, applied, computed = whole
    of_2 = [row for row in applied if row.segment == 2]
    first, middle, last = (applied.index(of_2[i]) for i in (0, 20, -1))
    cases: list[tuple[list[AppliedPush], str]] = [
        (
            applied[:first] + applied[first + 1 :],
            r"segment 2: push 1 of replica . in incarnation . was acknowledged, and",
        ),
        (
            applied[:middle] + applied[middle + 1 :],
            r"segment 2: push (\d+) of replica . in incarnation . follows its push \d",
        ),
        (applied[:last] + applied[last + 1 :], r"segment 2: push \d+ of replica . .* and the shard's log lacks it"),
        (
            [row for row in applied if row.segment != 4],
            r"segment 4: push 1 of replica 0 in incarnation 1 was acknowledged",
        ),
        ([*applied, of_2[-1]], r"segment 2: push (\d+) of replica . in incarnation . follows its push \1 in the log"),
        ([*applied, of_2[0]._replace(segment=17)], r"names segment 17, the job has 8"),
    ]
    for rows, words in cases:
        with pytest.raises(RuntimeFailure, match=words):
            again(PROBLEMS["quadratic"], parameters, ADAGRAD, rows, computed)


def test_mismatched_replica_log_is_refused_by_name(whole: Whole) -> None:
    parameters, applied, computed = whole
    one = next(row for row in computed if row.pusher == Pusher(0, 7) and row.sequence == 9)
    itself = [(row.pusher, row.sequence) for row in applied if row.segment == 0].index((one.pusher, one.sequence)) + 1

    def computed_from(*versions: int) -> list[ComputedBatch]:
        changed = dataclasses.replace(one, versions=(*versions, *one.versions[len(versions) :]))
        return [changed if row is one else row for row in computed]

    cases: list[tuple[list[ComputedBatch], str]] = [
        (
            [row for row in computed if row is not one],
            "push 9 of replica 0 in incarnation 7, and no replica's log holds it",
        ),
        (computed_from(999), r"push 9 of .* from version 999 of segment 0, and the shard's log ends at version 51"),
        (
            computed_from(itself),
            rf"push 9 of .* version {itself} of segment 0, which by the shards' logs came after it",
        ),
        ([dataclasses.replace(row, versions=(0, 0)) for row in computed], "computed from 2 segments, the job has 8"),
    ]
    for rows, words in cases:
        with pytest.raises(RuntimeFailure, match=words):
            again(PROBLEMS["quadratic"], parameters, ADAGRAD, applied, rows)
