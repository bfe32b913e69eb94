"""A replica that a test moves step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.core.messages import Assignment, EvaluationLease, ProgressReport, Stop, WorkRequest
from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Moved, Unavailable
from dbelief.job import Diloco, Job, Sandblaster

if TYPE_CHECKING:
    from tests.coordinator.world import World

SLOTS = 1024
"""Numbers in a segment: the least that a job cuts."""
LAYOUT = Layout.of({"counts": np.zeros((4, SLOTS), np.float32)})
_tokens = itertools.count(1)


def next_token() -> int:
    """A token that nobody had."""
    return next(_tokens)


def schedule(job: Job) -> FetchPushSchedule:
    """When the replicas of this job fetch and push."""
    strategy = job.strategy
    assert not isinstance(strategy, Sandblaster | Diloco), "it has another schedule"
    return FetchPushSchedule(strategy.batch, strategy.n_fetch, strategy.n_push, strategy.literal)


class Replica:
    """One life of a replica (or client), that does what real ones do, one small step at a time.

    Attributes
    ----------
    mute
        Died, or cut off: it neither beats nor works.
    totals
        Its acknowledged pushes, as totals since it joined: what it reports.
    position
        Samples of its lease, from the first, that are pushed and acknowledged, or skipped.
    last_lease
        The last lease that it has received, as it says.
    """

    def __init__(
        self,
        world: World,
        requested: int | None = None,
        kind: str = "replica",
        layout: Layout = LAYOUT,
        source: str = "",
        token: int | None = None,
        samples: SampleForm | None = None,
    ) -> None:
        self.world = world
        self.kind = kind
        self.token = token or next_token()
        member = world.machine.join(
            kind,
            self.token,
            f"r{self.token}",
            "",
            world.now_s,
            layout,
            source_digest=source,
            requested_number=requested,
            samples=samples,
        )
        self.number, self.incarnation = member.number, member.incarnation
        self.mute = False
        self.sequences: dict[str, int] = {}
        self.lease: DataLease | None = None
        self.evaluation: EvaluationLease | None = None
        self.totals = ProgressReport()
        self.position = 0
        self._skipped: set[int] = set()  # samples of its lease, from the first
        self.last_lease = 0
        self._unsent: list[int] | None = None  # segments that the push under way has not reached; None: there is none
        self._sent: dict[int, tuple[int, int]] = {}  # segments of the push under way: the shard and life they went to
        self._pushed_in: dict[str, int] = {}  # by vector: epoch of the placement that the last push began in
        self._began_in = 0
        world.replicas.append(self)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.number} life {self.incarnation}>"

    # -- initial values ----------------------------------------------------------------------------------

    def is_initialiser(self) -> bool:
        """Whether a beat would tell it to push initial values."""
        return self.world.machine.initialises(self.number, self.incarnation)

    def initialise(self, segments: Iterable[int] | None = None) -> None:
        """Push zeros to these segments; to all of them, and say so, where none are named."""
        self.assign(PARAMETERS, np.zeros((4, SLOTS), np.float32), segments)
        if segments is None:
            placement = self.world.machine.placement
            assert placement is not None
            self.world.machine.initialised(self.incarnation, placement.epoch, self.world.now_s)

    def assign(self, vector: str, values: np.ndarray, segments: Iterable[int] | None = None) -> None:
        """Store values under a name."""
        self.sequences[vector] = self.sequences.get(vector, 0) + 1
        push = Push(Pusher(self.number, self.incarnation), self.sequences[vector], vector=vector, assign=True)
        push = replace(push, base=self._base(vector))
        for _, shard, held in self.world.served():
            for index in held:
                if segments is None or index in segments:
                    shard.push(push, index, values[index])
        self._pushed_in[vector] = self._placement_epoch

    @property
    def _placement_epoch(self) -> int:
        placement = self.world.machine.placement
        assert placement is not None
        return placement.epoch

    def _base(self, vector: str) -> int | None:
        """What a push into this vector says of the ones before, where segments may have another place than then."""
        sequence = self.sequences[vector]
        return sequence if sequence > 1 and self._pushed_in.get(vector) != self._placement_epoch else None

    # -- work --------------------------------------------------------------------------------------------

    def ask(self) -> Assignment:
        """Report all that is acknowledged, ask for work, and take it up.

        The reply with a lease of which no push has begun counts as lost: it asks for the same one again.
        """
        if self.kind == "replica":
            self.totals = replace(self.totals, sequence=self.sequences.get(PARAMETERS, 0))
            self.world.machine.report_progress(self.number, self.incarnation, self.totals, self.world.now_s)
        request = WorkRequest(self.number, self.incarnation, last_lease=self.last_lease)
        work = self.world.machine.lease(request, self.world.now_s)
        if isinstance(work, DataLease):
            self.lease, self.position, self._unsent = work, 0, None
            self._skipped.clear()
        elif isinstance(work, EvaluationLease):
            self.evaluation = work
        return work

    def work(self) -> DataLease:
        """Ask for work that must be training."""
        work = self.ask()
        assert isinstance(work, DataLease), work
        return work

    @property
    def begun(self) -> bool:
        """Whether it has begun to push or skip samples of its lease."""
        return self.lease is not None and self.last_lease == self.lease.id

    @property
    def finished(self) -> bool:
        """Whether all of its lease is pushed and acknowledged, or skipped."""
        assert self.lease is not None
        return self.position == self.lease.samples

    def _next_push(self) -> tuple[int, list[int]]:
        """The step that the next push, or the one under way, ends with, and its samples, from the lease's first."""
        assert self.lease is not None
        rhythm, samples = schedule(self.world.job), list[int]()
        steps = rhythm.steps(self.lease.samples)
        for step in range(rhythm.steps(self.position), steps):
            first = step * rhythm.batch
            samples += set(range(first, min(first + rhythm.batch, self.lease.samples))) - self._skipped
            if samples and rhythm.pushes_after(step, steps):
                return step, samples
        raise AssertionError("nothing is left to push")

    @property
    def undecided(self) -> int:
        """The first sample of its lease that it may still skip: no push has it."""
        if self._unsent is None:
            return self.position
        return self._position_after(self._next_push()[0])

    def _position_after(self, step: int) -> int:
        assert self.lease is not None
        return min((step + 1) * schedule(self.world.job).batch, self.lease.samples)

    def skip(self, start: int, stop: int) -> None:
        """Report samples of its lease as skipped, and do not train them."""
        assert self.lease is not None
        assert self.undecided <= start <= stop <= self.lease.samples
        skipped = [(self.lease.id, start, stop)]
        self.world.machine.skip_samples(self.number, self.incarnation, skipped)
        self.last_lease = self.lease.id
        self._skipped.update(range(start, stop))
        if self._unsent is None and self._skipped.issuperset(range(self.position, self.lease.samples)):
            self.position = self.lease.samples

    def push(self, only: int | None = None) -> bool:
        """Make the next push of the lease, or go on with it; whether it is acknowledged.

        `only`: how many segments it reaches now.
        """
        assert self.lease is not None
        last, samples = self._next_push()
        clock, position = self.lease.clock + last, self._position_after(last)
        if self._unsent is None:
            if not self._may_fetch(clock):
                return False
            self.sequences[PARAMETERS] = self.sequences.get(PARAMETERS, 0) + 1
            self.last_lease = self.lease.id
            self._unsent = sorted(index for _, _, held in self.world.places() for index in held)
            self._sent.clear()
            self._began_in = self._placement_epoch
        self._unsent = sorted({*self._unsent, *self._gone()})
        if self._unsent:
            first = self.lease.epoch * self.world.shape.train + self.lease.start
            gradient = np.zeros(SLOTS, np.float32)
            gradient[[first + sample for sample in samples]] = 1.0
            push = Push(
                Pusher(self.number, self.incarnation),
                self.sequences[PARAMETERS],
                samples=len(samples),
                clock=clock,
                lease=self.lease.id,
                position=position,
            )
            self._unsent = self._send(gradient, push, self._unsent, only)
        rounds = [segment.rounds for segment in self.world.segments]
        if self._unsent or (self._lockstep and (len(rounds) < 4 or min(rounds) <= clock)):
            return False  # a push in lockstep is acknowledged when its round is applied
        self._unsent = None
        self._pushed_in[PARAMETERS] = self._began_in
        t, self.position = self.totals, position
        self.totals = replace(
            t,
            lease=self.lease.id,
            position=position,
            sequence=self.sequences[PARAMETERS],
            pushes=t.pushes + 1,
            samples=t.samples + len(samples),
            steps=t.steps + len({sample // schedule(self.world.job).batch for sample in samples}),
            loss_sum=t.loss_sum + len(samples),
        )
        if self._skipped.issuperset(range(position, self.lease.samples)):
            self.position = self.lease.samples
        return True

    def _gone(self) -> list[int]:
        """Segments of the push under way that have to be sent again: they went to a life that is over by now.

        Where a push waits for its round, whatever is not at the place that it went to.
        """
        places = {index: number for number, _, held in self.world.served() for index in held}
        return [
            index
            for index, (number, life) in self._sent.items()
            if index in places and (life != self.world.lives[number] or (self._lockstep and places[index] != number))
        ]

    @property
    def passed(self) -> int:
        """With a lease, how many clocks it has pushed whole."""
        assert self.lease is not None
        return self.lease.clock + schedule(self.world.job).steps(self.position)

    def _may_fetch(self, clock: int) -> bool:
        """Whether every shard answers the fetch for the push's last mini-batch at once; all are asked together."""
        served = self.world.served()
        try:
            for _, shard, held in served:
                shard.record_clock(held, self.number, clock)
            if self.world.dead & self.world.machine.members.needed and self.world.job.strategy.staleness is not None:
                return False
            for _, shard, held in served:
                shard.wait_for_clock(held, clock, 0.0)
        except (Unavailable, Moved):
            return False
        return True

    @property
    def _lockstep(self) -> bool:
        return self.world.job.strategy.staleness == 0

    def _send(self, gradient: np.ndarray, push: Push, unsent: list[int], only: int | None) -> list[int]:
        served = self.world.served()
        push = replace(push, base=self._base(PARAMETERS))
        now, lost = set(unsent[:only]), 0
        for number, shard, held in served:
            for index in now & set(held):
                try:
                    taken = shard.push(push, index, gradient)
                except Moved:  # asked again later, where it lives by then
                    continue
                lost = max(lost, taken.lost)
                self._sent[index] = number, self.world.lives[number]
                unsent = [other for other in unsent if other != index]
        self.totals = replace(self.totals, lost=self.totals.lost + lost)
        return unsent

    def tell(self) -> None:
        """Report its progress, as the service does."""
        self.world.machine.record_contact(self.number, self.incarnation, self.world.now_s)
        self.world.machine.report_progress(self.number, self.incarnation, self.totals, self.world.now_s)

    def train(self, pushes: int | None = None, tell: bool = True) -> None:
        """Make so many pushes of the lease (all that are left), and report them."""
        made = 0
        while not self.finished and made != pushes:
            assert self.push()
            made += 1
        assert pushes in (None, made)
        if tell:
            self.tell()
        if self.finished:
            self.lease = None

    def evaluate(self, loss: float | None = None, accuracy: float | None = None, store: bool = True) -> str:
        """Report the evaluation at hand, and store its parameters where told to; under which name."""
        assert self.evaluation is not None
        lease, self.evaluation = self.evaluation, None
        if loss is None:
            loss, accuracy = self.world.score(lease)
        machine, now_s = self.world.machine, self.world.now_s
        if any(lease.vector not in segment.vectors for segment in self.world.segments):
            return ""  # it died with a shard
        values = self.world.vector(lease.vector)
        keep_as = machine.evaluated(self.number, self.incarnation, lease.id, loss, accuracy, now_s)
        if keep_as and store:
            self.assign(keep_as, values)
            machine.evaluation_stored(lease.id, now_s)
        return keep_as

    def turn(self) -> None:
        """Live one small step: ask, push, report, evaluate or leave."""
        if self.mute:
            return
        if self.evaluation is not None:
            self.evaluate()
        elif self.lease is None:
            if isinstance(self.ask(), Stop):
                self.leave()
        elif self.finished or self.push():
            self.tell()
            if self.finished:
                self.lease = None

    # -- ends --------------------------------------------------------------------------------------------

    def leave(self, reason: str = "asked to end") -> None:
        """Say goodbye."""
        self.mute = True
        self.world.machine.leave(self.kind, self.number, self.incarnation, reason, self.world.now_s)

    def die(self) -> None:
        """Fall silent until the machine has noticed."""
        self.mute = True
        self.world.tick(self.world.job.deadlines.beat_s + 1.0)
