"""Models that leave out parameters in some passes: workers' steps against those of each tensor alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.absent import Ranges, of_tensors
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import Pusher
from dbelief.core.rounds import Rounds
from dbelief.nn import Batch, LeavesOut
from dbelief.optim import apply_rule, make_rule
from dbelief.rpc.wire.payloads import AS_THEY_ARE
from dbelief.rundir.record import BatchRecorder, ComputedBatch, PushRecorder, read_record, read_rounds
from dbelief.tools.replay import replay, replay_rounds
from dbelief.tools.replay.codec_replay import CodecReplay
from dbelief.training.elastic_weights import ElasticWeights
from dbelief.training.local_rounds import DilocoSettings, LocalRounds
from dbelief.training.phases import PhaseTimer
from worker.pipeline.delayed_model import DelayedModel
from worker.strategies.diloco import Diloco

from .groups import BATCH, sgd, workers
from .harness import HOST, Problem, replica, serve, settings, values_of

RATE = 0.125
RULES: list[tuple[str, dict[str, float]]] = [("adam", {}), ("momentum", {"mu": 0.9, "weight_decay": 0.1})]
rules = pytest.mark.parametrize(("rule", "options"), RULES, ids=[name for name, _ in RULES])


class Branching:
    """Three tensors; bit k of a batch's first target is set where tensor k takes part."""

    sizes: Mapping[str, int] = {"a": 5, "b": 7, "c": 4}

    def __init__(self) -> None:
        self.absent: Collection[str] = ()

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {name: rng.standard_normal(size, dtype=np.float32) for name, size in self.sizes.items()}

    def loss_and_gradient(self, views: Mapping[str, Any], batch: Batch, out: Mapping[str, Any]) -> float:
        self.absent = [name for bit, name in enumerate(self.sizes) if not batch.targets[0] >> bit & 1]
        for name, own in out.items():
            own[:] = 0 if name in self.absent else views[name] + batch.inputs[:, : own.size].mean(axis=0)
        return 1.0


def branching(samples: int) -> Problem:
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((samples, 7), dtype=np.float32)
    return Problem(Branching, inputs, rng.integers(1, 8, samples))


def by_hand(problem: Problem, rule: str, options: Mapping[str, float], pushes: Sequence[Sequence[range]]) -> np.ndarray:
    """The parameters after pushes, each the sum of the gradients of mini-batches at the parameters before it."""
    model, layout, w = Branching(), problem.layout, problem.start
    views, formula, steps = layout.views(w), make_rule(rule, options), dict.fromkeys(Branching.sizes, 0)
    states = tuple(np.full_like(w, value) for value in formula.state.values())
    moments = [layout.views(state) for state in states]
    for batches in pushes:
        total, took = np.zeros_like(w), set[str]()
        for batch in batches:
            gradient = np.zeros_like(w)
            model.loss_and_gradient(views, problem.batch(0, batch.start, batch.stop), layout.views(gradient))
            took |= views.keys() - set(model.absent)
            total += gradient
        for name in took:
            steps[name] += 1
            own = tuple(moment[name] for moment in moments)
            apply_rule(formula, views[name], layout.views(total)[name], own, np.float32(RATE), steps[name])
    return w


@rules
def test_each_push_says_what_took_no_part(rule: str, options: dict[str, float]) -> None:
    problem = branching(40)
    parameters = serve(problem.start, make_rule(rule, options))
    with replica(problem, parameters, settings(RATE, batch=2)) as one:
        one.train(0, 20)
        one.train(20, 40)
    pushes = [[range(first, first + 2)] for first in range(0, 40, 2)]
    assert values_of(parameters).tobytes() == by_hand(problem, rule, options, pushes).tobytes()


@rules
def test_a_sum_of_mini_batches_leaves_out_what_none_of_them_had(rule: str, options: dict[str, float]) -> None:
    problem = branching(40)
    parameters = serve(problem.start, make_rule(rule, options))
    # Fetched as often, and without a step of its own: all of a push is computed from the same parameters.
    with replica(problem, parameters, settings(RATE, batch=2, n_fetch=2, n_push=2, local_rate=0.0)) as one:
        one.train(0, 40)
    pushes = [[range(first, first + 2), range(first + 2, first + 4)] for first in range(0, 40, 4)]
    assert values_of(parameters).tobytes() == by_hand(problem, rule, options, pushes).tobytes()


def test_recorded_pushes_are_replayed_with_what_took_no_part(tmp_path: Path) -> None:
    problem, recorder, rule = branching(60), PushRecorder(), make_rule("adam", {})
    parameters = serve(problem.start, rule, 3, on_apply=recorder.note)
    chosen = settings(RATE, batch=2)
    with replica(problem, parameters, chosen, 0) as one, replica(problem, parameters, chosen, 1) as other:
        for first in range(0, 60, 12):
            one.train(first, first + 6)
            other.train(first + 6, first + 12)
        for each in (one, other):
            each.write_record(tmp_path)
    recorder.write(tmp_path, 0)
    applied, computed = read_record(tmp_path, FetchPushSchedule(2))
    model, layout = Branching(), problem.layout

    def gradient_of(values: np.ndarray, row: ComputedBatch) -> tuple[np.ndarray, Ranges]:
        out = np.empty_like(values)
        model.loss_and_gradient(layout.views(values), problem.batch(0, row.start, row.stop), layout.views(out))
        return out, of_tensors(layout.part(0), model.absent)

    w = replay(problem.start, parameters.placement.spans, rule, applied, computed, gradient_of)
    assert w.tobytes() == values_of(parameters).tobytes()


def test_recorded_rounds_are_replayed_with_what_took_no_part(tmp_path: Path) -> None:
    problem, recorder, log, rule = branching(48), PushRecorder(), BatchRecorder(), make_rule("adam", {})
    shards = serve(problem.start, rule, 3, replicas=1, on_apply=recorder.note)
    chosen = DilocoSettings(Rounds(2, 2, 2), rule, lambda before: RATE, RATE)
    layout, pusher, spans = problem.layout, Pusher(0, 1), shards.placement.spans
    part, phases = layout.part(0), PhaseTimer()
    learner = Diloco(
        problem.make(), part, HOST, shards, pusher, problem, chosen, phases, lambda done, pushed: None, log.note
    )
    for number in range(2):
        learner.train(DataLease(number + 1, 0, 24 * number, 24 * number + 24, 0, 6 * number), 6 * number + 1)
    log.write(tmp_path, pusher)
    recorder.write(tmp_path, 0)
    model = Branching()

    def compute(local: LocalRounds, epoch: int, start: int, stop: int) -> tuple[int, float, frozenset[str]]:
        batch, views = problem.batch(epoch, start, stop), layout.views(local.values)
        return len(batch), model.loss_and_gradient(views, batch, layout.views(local.gradient)), frozenset(model.absent)

    def again(pusher: Pusher) -> LocalRounds:
        return LocalRounds(part, HOST, spans, pusher, chosen)

    wire = CodecReplay(AS_THEY_ARE, spans)
    w = replay_rounds(problem.start, spans, rule, *read_rounds(tmp_path), again, compute, wire)
    assert w.tobytes() == values_of(shards).tobytes()
    assert w.tobytes() != problem.start.tobytes()


@rules
@pytest.mark.parametrize("way", ["tree", "ring"])
def test_a_group_leaves_out_what_no_worker_had(rule: str, options: dict[str, float], way: str) -> None:
    """And one that joins gets the counts of steps with the state."""
    problem = branching(64)
    with workers(problem, sgd({"name": rule, "rate": RATE, **options}, way, gives="sum"), 2) as group:
        group.train((0, 16), (16, 32))
        group.members[1].together.close()
        group.members[1] = group.new()
        group.train((32, 48), (48, 64))
        pushes = [
            [range(at, at + BATCH), range(at + 16, at + 16 + BATCH)]
            for block in (0, 32)
            for at in range(block, block + 16, BATCH)
        ]
        expected = by_hand(problem, rule, options, pushes)
        assert group.members[0].method.result.tobytes() == expected.tobytes()
        assert group.members[1].method.result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("nesterov", [False, True])
def test_own_velocity_of_elastic_averaging_stays_where_nothing_took_part(nesterov: bool) -> None:
    """But the centre moves all weights."""
    problem, centre = branching(1), np.zeros(16, np.float32)
    own = ElasticWeights(Branching(), problem.layout.part(0), HOST, mu=0.5, nesterov=nesterov)
    own.begin(problem.start)
    inputs = np.ones((1, 7), np.float32)
    own.compute(Batch(inputs, np.array([7])))
    own.step(0.25, 0.0, None)
    velocity, weights = own._velocity.copy(), own.values.copy()
    own.compute(Batch(inputs, np.array([1])))
    own.step(0.25, 0.5, centre.copy())
    np.testing.assert_array_equal(own._velocity[5:], velocity[5:])
    np.testing.assert_array_equal(own.values[5:], weights[5:] - np.float32(0.5) * weights[5:])
    assert not np.any(own._velocity[:5] == velocity[:5])


def test_a_delayed_model_leaves_out_what_its_model_does() -> None:
    model, problem = DelayedModel(Branching(), 0.0, lambda seconds: None), branching(1)
    assert isinstance(model, LeavesOut)
    out = problem.layout.views(problem.start)
    model.loss_and_gradient(problem.layout.views(problem.start), Batch(problem.inputs, np.array([2])), out)
    assert list(model.absent) == ["a", "c"]
