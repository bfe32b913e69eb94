"""A replica that a test moves step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.core.messages import Assignment, EvaluationLease, ProgressReport, Stop, WorkRequest
from coordinator.scheduling.sizing import cadence
from dbelief.core.layout import Layout
from dbelief.core.lease import DataLease
from dbelief.core.push import PARAMETERS, Push, Pusher
from dbelief.core.sample_form import SampleForm
from dbelief.errors import Moved, Unavailable

if TYPE_CHECKING:
    from tests.coordinator.world import World

SLOTS = 1024
"""Numbers in a segment: the least that a job cuts."""
LAYOUT = Layout.of({"counts": np.zeros((4, SLOTS), np.float32)})
_tokens = itertools.count(1)


def next_token() -> int:
    """A token that nobody had."""
    return next(_tokens)


class Replica:
    """One life of a replica (or client), that does what real ones do, one small step at a time.

    Attributes
    ----------
    mute
        Died, or cut off: it neither beats nor works.
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
        self.told = ProgressReport(0)
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
        """Ask for work, and take it up."""
        next_sequence = self.sequences.get(PARAMETERS, 0) + 1
        work = self.world.machine.lease(WorkRequest(self.number, self.incarnation, next_sequence), self.world.now_s)
        if isinstance(work, DataLease):
            assert work.first_sequence == next_sequence
            self.lease, self.told, self._unsent = work, ProgressReport(work.id), None
        elif isinstance(work, EvaluationLease):
            self.evaluation = work
        return work

    def work(self) -> DataLease:
        """Ask for work that must be training."""
        work = self.ask()
        assert isinstance(work, DataLease), work
        return work

    def push(self, only: int | None = None) -> bool:
        """Make the next push of the lease, or go on with it; whether it is acknowledged.

        `only`: how many segments it reaches now.
        """
        assert self.lease is not None
        rhythm = cadence(self.world.job)
        before = rhythm.samples_in(self.lease.samples, self.told.pushes)
        after = rhythm.samples_in(self.lease.samples, self.told.pushes + 1)
        clock = self.lease.clock + rhythm.steps(after) - 1
        if self._unsent is None:
            if not self._may_fetch(clock):
                return False
            self.sequences[PARAMETERS] = self.sequences.get(PARAMETERS, 0) + 1
            self._unsent = sorted(index for _, _, held in self.world.places() for index in held)
            self._sent.clear()
            self._began_in = self._placement_epoch
        self._unsent = sorted({*self._unsent, *self._gone()})
        if self._unsent:
            first = self.lease.epoch * self.world.shape.train + self.lease.start
            gradient = np.zeros(SLOTS, np.float32)
            gradient[first + before : first + after] = 1.0
            self._unsent = self._send(gradient, after - before, clock, self._unsent, only)
        rounds = [segment.rounds for segment in self.world.segments]
        if self._unsent or (self._lockstep and (len(rounds) < 4 or min(rounds) <= clock)):
            return False  # a push in lockstep is acknowledged when its round is applied
        self._unsent = None
        self._pushed_in[PARAMETERS] = self._began_in
        new, steps = after - before, rhythm.steps(after) - rhythm.steps(before)
        t = self.told
        self.told = ProgressReport(
            t.lease, t.pushes + 1, t.samples + new, t.steps + steps, t.loss_sum + new, t.staleness_sum, t.lost
        )
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
        rhythm = cadence(self.world.job)
        return self.lease.clock + rhythm.steps(rhythm.samples_in(self.lease.samples, self.told.pushes))

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

    def _send(self, gradient: np.ndarray, samples: int, clock: int, unsent: list[int], only: int | None) -> list[int]:
        sequence = self.sequences[PARAMETERS]
        push = Push(Pusher(self.number, self.incarnation), sequence, samples=samples, clock=clock)
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
        self.told = replace(self.told, lost=self.told.lost + lost)
        return unsent

    def tell(self) -> None:
        """Report the lease's progress, as the service does."""
        self.world.machine.record_contact(self.number, self.incarnation, self.world.now_s)
        self.world.machine.report_progress(self.number, self.incarnation, self.told, self.world.now_s)

    def train(self, pushes: int | None = None, tell: bool = True) -> None:
        """Make so many pushes of the lease (all that are left), and report them."""
        assert self.lease is not None
        left = cadence(self.world.job).pushes(self.lease.samples) - self.told.pushes
        for _ in range(left if pushes is None else pushes):
            assert self.push()
        if tell:
            self.tell()
        if pushes is None or pushes == left:
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
        elif self.push():
            self.tell()
            if self.told.samples == self.lease.samples:
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
