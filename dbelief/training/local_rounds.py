"""Rounds of DiLoCo at a replica: inner steps of its own, and what they have changed as the gradient of a round.

Douillard et al. 2023, algorithm 1. In a round of `steps` mini-batches a replica steps from the shards' parameters w by
the inner rule, to w_i, and pushes w - w_i. Shards hold it until all replicas have pushed theirs, and apply the outer
rule to the mean; the answer of the push are the parameters of the next round. The inner rule's state stays here: it
begins anew with a replica that is started again.

Fragments of the parameters may have their exchanges at different steps of a round: see `Rounds`. With a `delay` a push
travels while the next mini-batches are computed from w_i; what they have changed is added to what arrives. With `blend`
a share of the replica's own parameters stays. (Douillard et al. 2025: sections 2.1 to 2.3.) The last push of a lease is
waited for.

Models, threads and the network are the caller's:

    fetch into `fetched`;  begin(lease, first sequence)
    for each mini-batch:
        its gradient at `values` into `gradient`;  step(...)
        where `settles`:  wait for the exchange that travels;  merge()
        where `due`:  exchange();  send it, or let it travel;  if it was sent: merge()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dbelief.arrays.backend import Allocate, Backend, aligned_float32
from dbelief.core.absent import of_tensors
from dbelief.core.layout import RankPart, SegmentSpan
from dbelief.core.lease import DataLease
from dbelief.core.push import Push, Pusher, PushStats
from dbelief.core.rounds import Fragment, RoundClock, Rounds, cut
from dbelief.job import Diloco
from dbelief.optim import Rule, make_rule
from dbelief.optim.gradients import check_finite, clip_by_norm
from dbelief.optim.local_rule import LocalRule
from dbelief.optim.merge import merge

from .parameter_buffer import ParameterBuffer


@dataclass(frozen=True)
class DilocoSettings:
    """Training settings from the job file.

    Attributes
    ----------
    rounds
        Of a lease, and when fragments are exchanged.
    inner
        Rule of the replica's own steps.
    rate
        Its learning rate, by samples leased before.
    outer_rate
        Learning rate of the shards' steps.
    clip_norm
        Maximum norm of a mini-batch's gradient; None: unlimited.
    delay
        Mini-batches that are computed while a push travels.
    blend
        Share of its own parameters that a replica keeps where an answer arrives.
    weight
        Weight of a push in the mean of its round, by its samples and steps.
    """

    rounds: Rounds
    inner: Rule
    rate: Callable[[int], float]
    outer_rate: float
    clip_norm: float | None = None
    delay: int = 0
    blend: float = 0.0
    weight: Callable[[int, int], int] = lambda samples, steps: samples

    @classmethod
    def of(cls, strategy: Diloco, rate: Callable[[int], float]) -> Self:
        """The settings that a job's strategy names."""
        return cls(
            Rounds(strategy.batch, strategy.steps, strategy.fragments),
            make_rule(strategy.rule.name, strategy.rule.model_dump(exclude={"name", "rate"})),
            rate,
            strategy.outer.rate,
            strategy.clip_norm,
            strategy.delay,
            strategy.blend,
            strategy.weight,
        )


@dataclass(frozen=True)
class RoundExchange:
    """Pushes of some fragments of `LocalRounds.difference`, each with a fetch of what shards make of it.

    Attributes
    ----------
    pushes
        Each with the segments that it is of, as `Parameters.push` has them.
    steps
        Mini-batches of the lease before it.
    following
        Clock of the fetches; None at a lease's end: nothing is fetched.
    completes
        What is done when they are acknowledged; None: other fragments of the round follow.
    """

    pushes: Sequence[tuple[frozenset[int] | None, Push]]
    steps: int
    following: int | None
    completes: PushStats | None


class LocalRounds:
    """Parameters of a replica, or of one rank of it, and the state of its round. Not thread-safe.

    Parameters
    ----------
    spans
        The job's segment table.
    pusher
        Of all pushes.
    allocate
        Allocates what pushes and fetches travel from and to, where that is on the host.
    total
        Sum over the ranks of the replica, if there are several: see `clip_by_norm`.

    Attributes
    ----------
    backend
        Of the arrays on the device.
    values, gradient
        (n,) float32 on the device: its own parameters, and the gradient of the next step.
    difference
        (n,) float32 on the device: what pushes send. It changes when the answer is merged, and without a delay with
        the next gradient too.
    fetched
        Has to hold what a fetch brings, on the host, when `begin` or `merge` is called.
    due
        Fragments to be exchanged after the last step; none as soon as `exchange` has been called.
    clock
        Of its rounds; set where the answers to all pushes of a round are there.
    """

    def __init__(
        self,
        part: RankPart,
        backend: Backend,
        spans: Sequence[SegmentSpan],
        pusher: Pusher,
        settings: DilocoSettings,
        allocate: Allocate = aligned_float32,
        total: Callable[[float], float] = lambda squares: squares,
    ) -> None:
        self.backend = backend
        self._part, self._pusher = part, pusher
        self._settings, self._total = settings, total
        self._fragments = cut(spans, (part.start, part.stop), settings.rounds.fragments)
        self._rounds = replace(settings.rounds, fragments=len(self._fragments))
        self.fetched = ParameterBuffer.make(part, len(spans), backend, allocate)
        self.values = backend.zeros(part.size, allocate)
        self.gradient = backend.zeros(part.size, allocate)
        # Without a delay what a round has changed is sent from the gradient's place.
        self.difference = backend.zeros(part.size, allocate) if settings.delay else self.gradient
        self._sent = backend.zeros(part.size, allocate) if settings.delay else None  # values at the last push
        self._inner = LocalRule(settings.inner, part, backend)
        self._begun = False
        self.clock = RoundClock()
        self._lease = DataLease(0, 0, 0, 0, 0)
        self._before = self._position = 0  # samples of the lease before and after the last step
        self._behind = 0  # steps since the last exchange
        self._done = self._closing = PushStats()
        self._travelling: Sequence[Fragment] = ()  # fetched by the last exchange, and not merged
        self.due: Sequence[Fragment] = ()

    def begin(self, lease: DataLease, first_sequence: int) -> None:
        """Begin a lease with the parameters of its first round; the others come with the answers of pushes.

        `first_sequence`: number of its first round's pushes.
        """
        if self._sent is not None:
            self._sent[:] = self.values
        self._merge(self._fragments, self._settings.blend if self._begun else 0.0)
        self._begun = True
        self._lease, self._position, self._behind = lease, 0, 0
        self._done = self._closing = PushStats(sequence=first_sequence, lease=lease.id)

    def batches(self) -> Iterator[tuple[int, int]]:
        """Half-open ranges of the lease's mini-batches in the permutation of its epoch."""
        lease, batch = self._lease, self._rounds.batch
        for start in range(lease.start, lease.stop, batch):
            yield start, min(start + batch, lease.stop)

    def step(self, samples: int, loss: float, left_out: Set[str] = frozenset()) -> None:
        """Make an inner step by `gradient`.

        Parameters
        ----------
        samples, loss
            Of its mini-batch; the mean loss.
        left_out
            Names of the tensors that took no part.
        """
        clip_by_norm(self.backend.xp, self.gradient, self._settings.clip_norm, self._total)
        self._before, self._position = self._position, self._position + samples
        rate = self._settings.rate(self._lease.samples_before + self._before)
        self._inner.apply(self.values, self.gradient, np.float32(rate), left_out)
        for fragment in self._fragments:
            fragment.stepped(samples, left_out)
        done = self._done
        done.samples, done.steps, done.position = done.samples + samples, done.steps + 1, self._position
        done.loss_sum += loss * samples
        self._behind += 1
        due = self._rounds.due(self._before, self._position, self._lease.samples)
        self.due = [self._fragments[number] for number in due]

    @property
    def settles(self) -> bool:
        """Whether there is an answer that has to be merged before another step or exchange."""
        return bool(self._travelling) and (bool(self.due) or self._behind >= self._settings.delay)

    def exchange(self) -> RoundExchange:
        """Have in `difference` what the due fragments have changed, as a gradient; the pushes of it.

        Raises
        ------
        NonFinite
            A difference is not finite; names the tensor.
        """
        due, last = self.due, self._position == self._lease.samples
        if due[0] is self._fragments[0]:  # what is done up to here is, as soon as the round's last fragment is
            self._closing, self._done = self._done, PushStats(sequence=self._done.sequence + 1, lease=self._lease.id)
        clock = self.clock.of(self._lease.clock + self._before // self._rounds.samples)
        pushes = [(fragment.within, self._push(fragment, clock)) for fragment in due]
        for fragment in due:
            if self._sent is not None:
                for own in fragment.pieces:
                    self._sent[own] = self.values[own]
            fragment.pushed()
        self._behind, self.due = 0, ()
        self._travelling = () if last else due
        completes = self._closing if due[-1] is self._fragments[-1] else None
        steps = -(-self._position // self._rounds.batch)
        return RoundExchange(pushes, steps, None if last else clock + 1, completes)

    def _push(self, fragment: Fragment, clock: int) -> Push:
        """Have in `difference` what a fragment has changed, and the push of it."""
        for own in fragment.pieces:
            with np.errstate(all="ignore"):  # values that are not finite are reported below
                self.backend.xp.subtract(self.fetched.device[own], self.values[own], out=self.difference[own])
            check_finite(self.difference[own], self._part, "difference", own.start)
        return Push(
            self._pusher,
            self._closing.sequence,
            np.float32(self._settings.outer_rate),
            self._settings.weight(fragment.samples, fragment.steps),
            clock=clock,
            lease=self._closing.lease,
            position=self._position,
            absent=of_tensors(self._part, fragment.untouched or ()),
        )

    def merge(self) -> None:
        """Go on from what the last exchange has brought, once, with what was computed since."""
        arrived, self._travelling = self._travelling, ()
        self._merge(arrived, self._settings.blend)

    def _merge(self, fragments: Sequence[Fragment], blend: float) -> None:
        for fragment in fragments:
            for own in fragment.pieces:
                self.fetched.to_device(own)
                sent = self._sent[own] if self._sent is not None else None
                room = self.difference[own]  # what was sent from there has arrived
                merge(self.backend.xp, self.values[own], self.fetched.device[own], sent, room, blend)
