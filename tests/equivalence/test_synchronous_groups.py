"""Workers that exchange among themselves, against loops by hand: synchronous SGD and elastic averaging, forms 2 and 3.

Sources: Iandola et al. 2016 (FireCaffe), section 6; You et al. 2017, equations 1 and 2, algorithm 3, section 6.1.3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dbelief import job
from dbelief.core.lease import FetchPushSchedule
from dbelief.optim import make_rule
from dbelief.training.schedule import poly
from worker.strategies.elastic import ElasticSettings

from .by_hand import Range, Rate, Server, gap, minibatches
from .elastic import working
from .groups import BATCH, ETA, RULES, A, easgd, even, sgd, summed, workers
from .harness import Problem, network, quadratic, values_of

STEPS = 6
EACH = BATCH * STEPS
WAYS = ["server", "tree", "ring"]
UNEVEN = [(0, 22), (22, 31), (31, 31), (31, 48), (48, 52)]
"""Leases of 6, 3, 0, 5 and 1 mini-batches, the last of some of them short."""
PROBLEMS = pytest.mark.parametrize("make", [quadratic, network])


def equations(problem: Problem, leases: Sequence[Range], way: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Equations 1 and 2 in a loop: the centre after each step, and the weights at the end."""
    gradient, number, centre = problem.gradients(), np.float32, problem.start
    weights, centres = [centre.copy() for _ in leases], []
    turns = [minibatches([lease], BATCH) for lease in leases]
    for step in range(max(map(len, turns))):
        total, moved = summed(way, weights), []
        for w, turn in zip(weights, turns, strict=True):
            g = gradient(w, *turn[step]) if step < len(turn) else np.zeros_like(w)
            moved.append((w - g * number(ETA)) - (w - centre) * number(A))
        centre = centre + (total - number(len(weights)) * centre) * number(A)
        weights = moved
        centres.append(centre)
    return centres, weights


# -- elastic averaging -------------------------------------------------------------------------------------------


@PROBLEMS
@pytest.mark.parametrize(("count", "longest"), [(2, None), (3, None), (4, 0.5), (5, None)])
def test_three_forms_are_one(make: Callable[[int], Problem], count: int, longest: float | None) -> None:
    """Through the shards, which add in the order of replicas, and among the workers, where one adds in that order."""
    problem, leases, ends = make(EACH * count), even(count, EACH), []
    settings = ElasticSettings(FetchPushSchedule(BATCH), lambda samples: ETA, lambda rate: A, clip_norm=longest)
    with working(problem, settings, count, in_step=True) as (centre, replicas):
        for step in range(STEPS):
            for replica, (start, _) in zip(replicas, leases, strict=True):
                replica.train(start + step * BATCH, start + (step + 1) * BATCH)
        ends.append([values_of(centre).tobytes(), *(replica.weights.tobytes() for replica in replicas)])
    for form in (2, 3):
        with workers(problem, easgd(form, "server", clip_norm=longest), count) as group:
            group.train(*leases)
            ends.append([group.stored.tobytes(), *(one.weights.tobytes() for one in group.members)])
    assert ends[0] == ends[1] == ends[2]


@PROBLEMS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_forms_among_workers_give_the_equations_bits(make: Callable[[int], Problem], way: str, count: int) -> None:
    """Also where some have no data left: their gradient is 0, and they are drawn to the centre all the same."""
    problem = make(EACH * count)
    for leases in (even(count, EACH), UNEVEN[:count]):
        centres, weights = equations(problem, leases, way)
        for form in (2, 3):
            with workers(problem, easgd(form, way), count) as group:
                assert group.train(*leases) == 1
                np.testing.assert_array_equal(group.stored, centres[-1])
                for one, own in zip(group.members, weights, strict=True):
                    np.testing.assert_array_equal(one.copies, centres)
                    np.testing.assert_array_equal(one.weights, own)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_workers_plus_centre_change_by_gradients_only(count: int) -> None:
    """W_1 + … + W_P + C, in float64, beside - eta times the sum of gradients; without momentum."""
    problem, gradient = network(EACH * count), network(EACH * count).gradients()
    with workers(problem, easgd(3), count) as group:
        together = (count + 1) * problem.start.astype(np.float64)
        weights = [problem.start] * count
        for step in range(STEPS):
            leases = [(start + step * BATCH, start + (step + 1) * BATCH) for start, _ in even(count, EACH)]
            together -= ETA * sum(
                gradient(w, *lease).astype(np.float64) for w, lease in zip(weights, leases, strict=True)
            )
            group.train(*leases)
            weights = [one.weights for one in group.members]
            have = sum(w.astype(np.float64) for w in weights) + group.stored
            assert gap(have, together) < 1e-6, step


# -- synchronous SGD ---------------------------------------------------------------------------------------------


def by_hand(
    problem: Problem, leases: Sequence[Range], strategy: job.SyncSgd, rate: Rate | None = None
) -> list[np.ndarray]:
    """The parameters after each step: gradients weighted by samples, summed in the way's order, and applied once."""
    rule = strategy.rule
    server = Server(problem.start, make_rule(rule.name, rule.model_dump(exclude={"name", "rate"})))
    gradient, turns = problem.gradients(), [minibatches([lease], BATCH) for lease in leases]
    ends, samples = [], 0
    for step in range(max(map(len, turns))):
        present = [turn[step] if step < len(turn) else None for turn in turns]
        total = sum(part[1] - part[0] for part in present if part)
        weighted = [
            gradient(server.w, *part) * np.float32((part[1] - part[0]) / total) if part else np.zeros_like(server.w)
            for part in present
        ]
        joint = summed(strategy.reduction.way, weighted)
        norm = float(np.linalg.norm(joint.astype(np.float64)))
        if strategy.clip_norm is not None and norm > strategy.clip_norm:
            joint *= np.float32(strategy.clip_norm / norm)
        server.push(joint, rate(samples) if rate else rule.rate)
        ends.append(server.w.copy())
        samples += total
    return ends


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["name"]))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_all_copies_are_one_after_every_step(rule: dict[str, Any], way: str, count: int) -> None:
    """And are what one gets by hand, though leases differ, and some workers have no data."""
    problem = network(60)
    strategy, leases = sgd(rule, way), UNEVEN[:count]
    with workers(problem, strategy, count) as group:
        assert group.train(*leases) == 1
        expected = by_hand(problem, leases, strategy)
        for one in group.members:
            np.testing.assert_array_equal(one.copies, expected)
        np.testing.assert_array_equal(group.stored, expected[-1])
        assert len({tuple(one.has()) for one in group.members}) == 1, "velocities and the like too"
        told = [sum(done.samples for done in one.done) for one in group.members]
        assert told == [stop - start for start, stop in leases]
        for one, (start, stop) in zip(group.members, leases, strict=True):
            ends = [min(end, stop - start) for end in range(BATCH, stop - start + BATCH, BATCH)]
            assert [(done.lease, done.position, done.sequence) for done in one.done] == [(1, end, 0) for end in ends]


@PROBLEMS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_workers_match_one_with_a_larger_batch(make: Callable[[int], Problem], way: str, count: int) -> None:
    """Up to the order of adding: the loop has all samples of a step in one batch, and its sums in float64."""
    problem = make(EACH * count)
    w, gradient = problem.start.astype(np.float64), problem.gradients()
    for step in range(STEPS):
        batches = [(start + step * BATCH, start + (step + 1) * BATCH) for start, _ in even(count, EACH)]
        singles = [(k, k + 1) for start, stop in batches for k in range(start, stop)]
        w -= ETA * np.mean([gradient(w.astype(np.float32), *one).astype(np.float64) for one in singles], axis=0)
    with workers(problem, sgd(way=way), count) as group:
        group.train(*even(count, EACH))
        assert gap(group.stored, w) < 2e-6


@pytest.mark.parametrize("count", [2, 4])
def test_a_sum_of_means_is_as_many_times_longer(count: int) -> None:
    """Bit for bit where the number of workers is a power of two: a sum at a rate is a mean at that many times it."""
    problem, ends = network(EACH * count), []
    for gives, rate in (("sum", 0.0625), ("mean", 0.0625 * count)):
        with workers(problem, sgd({"name": "sgd", "rate": rate}, gives=gives), count) as group:
            group.train(*even(count, EACH))
            ends.append(group.stored)
    np.testing.assert_array_equal(ends[0], ends[1])


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@pytest.mark.parametrize("way", WAYS)
def test_in_16_bits_copies_are_one_all_the_same(wire: str, way: str) -> None:
    problem, ends = network(60), []
    for sent in (wire, None):
        with workers(problem, sgd(RULES[0], way, reduction={"wire": sent, "chunk": 17}), 3) as group:
            group.train(*UNEVEN[1:4])
            for one in group.members:
                np.testing.assert_array_equal(one.copies, group.members[0].copies)
            ends.append(group.stored)
    assert 0 < gap(*ends) < 0.03


@pytest.mark.parametrize("strategy", [sgd(), easgd(2), easgd(3)], ids=["sync-sgd", "sync-easgd 2", "sync-easgd 3"])
def test_a_schedule_gives_all_workers_one_rate(strategy: job.SyncSgd | job.Elastic) -> None:
    """By the samples that all of them have had before the step."""

    def rate(samples: int) -> float:
        return poly(ETA, samples, power=0.5, total=200)

    with workers(network(60), strategy, 4, rate=rate) as group:
        group.train(*UNEVEN[:4])
        group.train(*even(4, BATCH))
        before = [0, 12, 24, 33, 41, 46, 48]  # by the leases: 4 + 4 + 0 + 4, then twice more, …
        for one in group.members:
            assert one.rates == [rate(samples) for samples in before]


def test_long_gradient_is_clipped_after_the_sum() -> None:
    problem, strategy = network(60), sgd(clip_norm=0.05)
    with workers(problem, strategy, 3) as group:
        group.train(*UNEVEN[:3])
        expected = by_hand(problem, UNEVEN[:3], strategy)
        for one in group.members:
            np.testing.assert_array_equal(one.copies, expected)
    assert gap(by_hand(problem, UNEVEN[:3], sgd())[0], expected[0]) > 0, "it was too long"


def test_machines_that_add_otherwise_clip_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker's BLAS has norms of its own."""
    dot = np.dot

    def others(a: Any, b: Any, *more: Any) -> Any:
        return dot(a, b, *more) * np.float32(1 + 1e-5 * int(threading.current_thread().name[-1]))

    monkeypatch.setattr(np, "dot", others)
    with workers(network(60), sgd(clip_norm=0.05), 3) as group:
        group.train(*UNEVEN[:3])
        for one in group.members:
            np.testing.assert_array_equal(one.copies, group.members[0].copies)


@pytest.mark.parametrize("form", [None, 3])
def test_workers_record_traffic_per_step_and_peer(form: int | None) -> None:
    """A tree of four: one vector for each edge, way and step; what they agree on at first is not counted."""
    problem = network(EACH * 4)
    with workers(problem, sgd() if form is None else easgd(form), 4) as group:
        group.train(*even(4, BATCH))
        group.train(*even(4, EACH))
        for rank, sources in enumerate([{1, 2}, {0}, {0, 3}, {2}]):
            traffic = group.traffic(rank)
            assert traffic.steps == 1 + STEPS
            assert set(traffic.taken) == sources
            for taken in traffic.taken.values():
                assert (taken.messages, taken.bytes) == (1 + STEPS, (1 + STEPS) * 4 * problem.layout.size)
                assert taken.seconds > 0
