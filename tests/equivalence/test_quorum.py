"""DiLoCo with a quorum: replicas over shards have the bits of the algorithm by hand, in any order of events.

An event is a mini-batch of a replica, a push that reaches one segment, or an answer. Events are drawn at random: so
each segment has other pushes in its rounds, replicas come too late at some of them, and leave out rounds at others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from dbelief.core.layout import SegmentSpan, make_segments
from dbelief.core.lease import DataLease
from dbelief.core.push import PARAMETERS, Pusher
from dbelief.core.rounds import Rounds
from dbelief.optim import make_rule
from dbelief.training.local_rounds import DilocoSettings, LocalRounds, RoundExchange
from ps_server.replication.apply import apply
from ps_server.store.journal import JournalRecord
from ps_server.store.quorum import Quorum
from ps_server.store.segment import Segment
from ps_server.store.shard import Shard
from tests.equivalence.by_hand import Server, minibatches
from tests.equivalence.harness import HOST, network

PROBLEM = network(240)
NOMINAL, RATE, OUTER_RATE = 21, 0.05, 0.7
Events = Generator[None, bool, None]
"""A replica: it goes on by one event, of a push that travels where True is sent."""


@dataclass(frozen=True)
class Way:
    """What all replicas have in common."""

    replicas: int
    quorum: int
    stale: float
    steps: int
    fragments: int
    delay: int
    blend: float
    batches: tuple[int, ...]
    rounds: tuple[int, ...]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Way:
        replicas, steps = int(rng.integers(2, 5)), int(rng.integers(1, 5))
        fragments = int(rng.integers(1, min(steps, 3) + 1))
        batches = tuple(rng.integers(1, 4, replicas).tolist())
        return cls(
            replicas,
            int(rng.integers(1, replicas + 1)),
            float(rng.choice([0.0, 0.5, 0.75, 1.0])),
            steps,
            fragments,
            int(rng.integers(0, steps // fragments + 1)),
            float(rng.choice([0.0, 0.25])),
            batches,
            tuple(int(rng.integers(1, 60 // (steps * batch) + 1)) for batch in batches),
        )

    def leases(self, replica: int) -> list[DataLease]:
        """Two leases, the first of one round, or one; the last round is short."""
        batch = self.batches[replica]
        ends = [batch * self.steps, batch * self.steps * self.rounds[replica] - batch // 2]
        first, last = 60 * replica, 60 * replica + max(1, ends[-1])
        if self.rounds[replica] == 1:
            return [DataLease(1, 0, first, last, 0)]
        return [DataLease(1, 0, first, first + ends[0], 0), DataLease(2, 0, first + ends[0], last, 0, 1)]


# -- the system --------------------------------------------------------------------------------------------------


class Shards:
    """Two shards with their followers."""

    def __init__(self, way: Way, spans: Sequence[SegmentSpan]) -> None:
        quorum = Quorum(way.quorum, 0.0, way.stale)
        halves = spans[: len(spans) // 2], spans[len(spans) // 2 :]
        self.shards, self.followers = (
            [Shard(half, make_rule("nesterov", {}), 0, quorum=quorum) for half in halves] for _ in range(2)
        )
        for shard, follower in zip(self.shards, self.followers, strict=True):
            for index, segment in shard.segments.items():
                for one in segment, follower.segments[index]:
                    one.vectors[PARAMETERS][:] = PROBLEM.start[segment.span.start : segment.span.stop]
                    one.mark_written([PARAMETERS])
                segment.journal = self._copier(follower, follower.segments[index])
            shard.make_ready()
        self.members(1, range(way.replicas))

    def _copier(self, follower: Shard, copy: Segment) -> Callable[[JournalRecord], None]:
        def take(record: JournalRecord) -> None:
            apply(follower, copy, record)

        return take

    def members(self, epoch: int, replicas: Sequence[int]) -> None:
        for shard in self.shards:
            shard.set_membership(epoch, [(0, replicas)])

    def at(self, index: int) -> Shard:
        return next(shard for shard in self.shards if index in shard.segments)

    def pull(self, indices: Sequence[int], into: LocalRounds, replica: int, clock: int) -> None:
        for index in indices:
            segment = self.at(index).segment(index)
            self.at(index).record_clock([index], replica, clock)
            into.fetched.host[segment.span.start : segment.span.stop] = segment.vectors[PARAMETERS]

    def values(self, shards: Sequence[Shard]) -> np.ndarray:
        return np.concatenate([one.vectors[PARAMETERS] for shard in shards for one in shard.segments.values()])


def replica(shards: Shards, way: Way, number: int, local: LocalRounds) -> Events:
    """A replica's leases over the shards."""
    model, part = PROBLEM.make(), PROBLEM.layout.part(0)
    everything = range(sum(len(shard.segments) for shard in shards.shards))
    for place, lease in enumerate(way.leases(number)):
        shards.pull(everything, local, number, local.clock.of(lease.clock))
        local.begin(lease, place + 1)
        travelling: Events | None = None
        for start, stop in local.batches():
            model.loss_and_gradient(part.views(local.values), PROBLEM.batch(0, start, stop), part.views(local.gradient))
            local.step(stop - start, 0.0)
            if (yield) and travelling is not None:
                next(travelling, None)
            if local.settles and travelling is not None:
                yield from travelling
                travelling = None
                local.merge()
            if local.due:
                exchange = local.exchange()
                travelling = sent(shards, number, local, exchange, everything)
                if exchange.following is None or not way.delay:
                    yield from travelling
                    travelling = None
                    local.merge()


def sent(shards: Shards, number: int, local: LocalRounds, exchange: RoundExchange, everything: Sequence[int]) -> Events:
    """The pushes of an exchange, and its fetches."""
    latest = 0
    for within, push in exchange.pushes:
        indices = sorted(within) if within is not None else everything
        for index in indices:
            span = shards.at(index).segment(index).span
            shards.at(index).push(push, index, local.difference[span.start : span.stop])
            yield
        while any(shards.at(index).segment(index).rounds <= push.clock for index in indices):
            yield
        latest = max(latest, *(shards.at(index).open_round([index]) for index in indices))
        if exchange.following is not None:
            shards.pull(indices, local, number, exchange.following)
    if exchange.completes is not None and local.clock.answered(exchange.pushes[-1][1].clock, latest):
        for index in everything:
            shards.at(index).record_clock([index], number, local.clock.next)


# -- by hand -----------------------------------------------------------------------------------------------------


@dataclass
class Held:
    """One segment: pushes by (clock, replica), with what they have changed, and the weight of it."""

    server: Server
    way: Way
    members: set[int]
    open: int = 0
    waiting: dict[tuple[int, int], tuple[np.ndarray, int]] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    late: int = 0

    def push(self, clock: int, number: int, difference: np.ndarray, weight: int) -> None:
        self.late += clock < self.open
        if clock >= self.open or self.way.stale:
            self.waiting[clock, number] = difference, weight
        self.has_passed(number, clock)

    def has_passed(self, number: int, clock: int) -> None:
        self.passed[number] = max(clock, self.passed.get(number, 0))
        self.close()

    def close(self) -> None:
        while True:
            here = {number for clock, number in self.waiting if clock == self.open}
            missing = {one for one in self.members if self.passed.get(one, 0) <= self.open} - here
            if not self.members and not any(clock < self.open for clock, _ in self.waiting):
                return
            passed = {one for one in self.members if self.passed.get(one, 0) > self.open}
            if missing and len(here | passed) < self.way.quorum:
                return
            taken = sorted(key for key in self.waiting if key[0] <= self.open)
            pushed = [self.waiting.pop(key) for key in taken]
            ages = [self.open - clock for clock, _ in taken]
            weights = [
                weight * math.prod([self.way.stale] * age) for (_, weight), age in zip(pushed, ages, strict=True)
            ]
            if pushed:
                mean = np.zeros_like(self.server.w)
                for (difference, _), weight in zip(pushed, weights, strict=True):
                    mean += difference * np.float32(weight / sum(weights))
                self.server.push(mean, OUTER_RATE)
            self.open += 1


def by_hand(segments: Sequence[Held], spans: Sequence[SegmentSpan], way: Way, number: int, w: np.ndarray) -> Events:
    """The same replica in NumPy; `w` has its parameters."""
    gradient, inner = PROBLEM.gradients(), Server(PROBLEM.start, make_rule("momentum", {}))
    inner.w = w  # steps change it in place
    count = min(way.fragments, len(spans))
    dealt = [list(range(f, len(spans), count)) for f in range(count)]
    ends = [-(-(f + 1) * way.steps // count) for f in range(count)]
    fetched, left = PROBLEM.start.copy(), PROBLEM.start.copy()
    since, following, begun = [0] * count, 0, False

    def merge(fragments: Sequence[int], blend: float) -> None:
        for f in fragments:
            for index in dealt[f]:
                own = slice(spans[index].start, spans[index].stop)
                arrived = fetched[own] + (w[own] - left[own]) if way.delay else fetched[own].copy()
                takes = np.float32(1 - blend)
                w[own] = w[own] + takes * (arrived - w[own]) if takes < 1 else arrived

    def fetch(indices: Sequence[int], clock: int) -> None:
        for index in indices:
            segments[index].has_passed(number, clock)
            fetched[spans[index].start : spans[index].stop] = segments[index].server.w

    def travel(changed: np.ndarray, fragments: Sequence[int], clock: int, last: bool, weights: Sequence[int]) -> Events:
        nonlocal following
        latest = 0
        for f, weight in zip(fragments, weights, strict=True):
            for index in dealt[f]:
                own = slice(spans[index].start, spans[index].stop)
                segments[index].push(clock, number, changed[own], weight)
                yield
            while any(segments[index].open <= clock for index in dealt[f]):
                yield
            latest = max(latest, *(segments[index].open for index in dealt[f]))
            if not last:
                fetch(dealt[f], clock + 1)
        if fragments[-1] == count - 1:
            following = max(following, clock + 1, latest)
            if latest > clock + 1:
                for one in segments:
                    one.has_passed(number, following)

    for lease in way.leases(number):
        fetch(range(len(spans)), max(lease.clock, following))
        left[:] = w
        merge(range(count), way.blend if begun else 0.0)
        begun, travelling, brings = True, None, list[int]()
        behind, batches = 0, minibatches([(lease.start, lease.stop)], way.batches[number])
        for step, (start, stop) in enumerate(batches):
            inner.push(gradient(w, start, stop), RATE)
            since, behind = [samples + stop - start for samples in since], behind + 1
            if (yield) and travelling is not None:
                next(travelling, None)
            last, in_last = stop == lease.stop, step // way.steps == (len(batches) - 1) // way.steps
            due = [f for f in range(count) if last or (step % way.steps + 1 == ends[f] and not in_last)]
            if travelling is not None and (due or behind >= way.delay):
                yield from travelling
                travelling = None
                merge(brings, way.blend)
            if due:
                clock = max(lease.clock + step // way.steps, following)
                weights = [since[f] for f in due]
                travelling, brings, behind = travel(fetched - w, due, clock, last, weights), due, 0
                for f in due:
                    since[f] = 0
                    for own in (slice(spans[index].start, spans[index].stop) for index in dealt[f]):
                        left[own] = w[own]
                if last or not way.delay:
                    yield from travelling
                    travelling = None
                    merge([] if last else due, way.blend)


# -- both ----------------------------------------------------------------------------------------------------------


def run(replicas: Sequence[Events], seed: int, leaves: Callable[[list[int]], None]) -> None:
    """Let events happen in an order that is drawn, some replicas ten times as often, until all are done."""
    order, working = np.random.default_rng(seed), dict(enumerate(replicas))
    speeds = order.choice([1, 1, 10], len(replicas))
    for one in replicas:
        next(one)
    for _ in range(100_000):
        if not working:
            return
        odds = speeds[list(working)]
        number = int(order.choice(list(working), p=odds / odds.sum()))
        try:
            working[number].send(bool(order.integers(2)))
        except StopIteration:
            del working[number]
            leaves(list(working))
    raise AssertionError(f"replicas {sorted(working)} still wait")


SPANS = make_segments([(0, len(PROBLEM.start))], NOMINAL)


def of_shards(way: Way, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Parameters at the end: of the shards, and of each replica."""
    shards, epochs, part = Shards(way, SPANS), iter(range(2, 100)), PROBLEM.layout.part(0)
    local = []
    for number, batch in enumerate(way.batches):
        rounds, inner = Rounds(batch, way.steps, way.fragments), make_rule("momentum", {})
        settings = DilocoSettings(rounds, inner, lambda samples: RATE, OUTER_RATE, None, way.delay, way.blend)
        local.append(LocalRounds(part, HOST, SPANS, Pusher(number, number + 1), settings))
    working = [replica(shards, way, number, one) for number, one in enumerate(local)]
    run(working, seed, lambda left: shards.members(next(epochs), left))
    values = shards.values(shards.shards)
    assert np.array_equal(shards.values(shards.followers), values), "followers differ from their leaders"
    return values, [one.values for one in local]


def of_formulas(way: Way, seed: int) -> tuple[np.ndarray, list[np.ndarray], int]:
    """The same by hand; and how many pushes came too late."""
    outer, members = make_rule("nesterov", {}), set(range(way.replicas))
    segments = [Held(Server(PROBLEM.start[one.start : one.stop], outer), way, members) for one in SPANS]
    values = [PROBLEM.start.copy() for _ in members]

    def leaves(left: list[int]) -> None:
        members.intersection_update(left)
        for one in segments:
            one.close()

    run([by_hand(segments, SPANS, way, number, w) for number, w in enumerate(values)], seed, leaves)
    return np.concatenate([one.server.w for one in segments]), values, sum(one.late for one in segments)


@pytest.mark.parametrize("seed", range(50))
def test_it_has_the_bits_of_the_algorithm_by_hand(seed: int) -> None:
    way = Way.drawn(np.random.default_rng(seed))
    found, of_replicas = of_shards(way, seed)
    wanted, by_hand_, _ = of_formulas(way, seed)
    assert np.array_equal(found, wanted)
    assert all(map(np.array_equal, of_replicas, by_hand_))
    assert not np.array_equal(found, PROBLEM.start)


def test_the_schedules_have_late_pushes() -> None:
    ways = [(Way.drawn(np.random.default_rng(seed)), seed) for seed in range(10)]
    late = [of_formulas(way, seed)[2] for way, seed in ways if way.quorum < way.replicas]
    assert sum(count > 0 for count in late) >= 3
