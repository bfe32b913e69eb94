"""Steps that a script makes by its own optimisers; what they have changed is exchanged with the shards.

    DifferenceStep    after every `n_push` steps the difference since the last fetch is added at the shards
    DilocoStep        in every round their outer rule takes it, turned round, as a gradient
    ElasticStep       after every `period` steps weights and centre move towards each other

At the end of a lease there is an exchange too: no sample of a lease that is done may be without its effect. With a
delay the script computes while an exchange travels, also into the next lease.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dbelief.core.absent import of_tensors
from dbelief.core.layout import Kind
from dbelief.core.placement import report_clock
from dbelief.core.push import Push, PushResult, together
from dbelief.core.rounds import Fragment, RoundClock, Rounds, cut
from dbelief.job import AddRule, Diloco, Downpour, Elastic, Job, SyncSgd
from dbelief.optim.gradients import check_finite
from dbelief.optim.merge import merge
from dbelief.process.begun import Begun
from dbelief.script.drawn import Stepped
from dbelief.script.user_code import located
from dbelief.training.session import Session

from .module_state import ModuleState
from .own_steps import OwnSteps
from .step import RateFactor, Step


class LocalStep(Step):
    """Marks the steps of a script, and exchanges after every `every` of them.

    With a `delay` an exchange is made on a thread of its own, of a copy of the values, while the script makes so many
    more steps at most (or steps of so many samples, see `_travelled`); then `_merge` joins what it brings with what
    they have changed.
    """

    def __init__(self, session: Session, state: ModuleState, every: int, delay: int = 0) -> None:
        super().__init__(session, state)
        self.values = self._room()
        state.bind(self.values)
        self._own = OwnSteps(state.trained())
        self._every = every
        self._fragments = [Fragment([slice(0, len(self.values))])]
        self._delay, self._behind = delay, 0  # since the exchange under way was begun
        self._sent = self._room() if delay else self.values
        self._exchanging: Begun[PushResult | None] | None = None
        self._exchanged: Sequence[Fragment] = ()  # by the last one
        self._brought: Sequence[Fragment] = ()  # the same, until it is merged

    @property
    def may_fetch(self) -> bool:  # type: ignore[override]
        """See `Step`: steps that are not pushed yet would be lost."""
        return not any(fragment.steps for fragment in self._fragments)

    @property
    def travels(self) -> bool:  # type: ignore[override]
        """See `Step`."""
        return bool(self._brought) or self._exchanging is not None

    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """See `Step.run`."""
        self._state.check_bound()
        with located():
            self.left_out = self._own.mark()
        self._behind += self._travelled(samples)
        for fragment in self._fragments:
            fragment.stepped(samples)
        due = self._due(stepped, samples)
        before = None
        if due or self._behind >= self._delay:
            before = self.answer(wait=True)
            self.merge()
        return (self._begin(due, stepped, clock, next_clock) if due else None) or before

    def _due(self, stepped: Stepped, samples: int) -> Sequence[Fragment]:
        """What is exchanged after a step."""
        is_due = self._fragments[0].steps >= self._every or stepped.position == stepped.lease.samples
        return self._fragments if is_due else ()

    def _travelled(self, samples: int) -> int:
        """What a step of so many samples is of the delay."""
        return 1

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """See `Step.flush`; no exchange may be under way."""
        return None if self.may_fetch else self._begin(self._fragments, stepped, clock, next_clock)

    def _begin(self, due: Sequence[Fragment], stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """Begin an exchange; what it answers at once."""
        self._state.store()
        exchange = self._exchange(due, stepped, clock, next_clock)
        for fragment in due:
            fragment.pushed()
        if not self._delay:
            pushed = exchange()
            self._brought = due
            self.merge()
            return pushed
        for own in _pieces_of(due):
            self._sent[own] = self.values[own]
        self._exchanging, self._exchanged, self._behind = Begun(exchange, "exchange"), due, 0
        return None

    def answer(self, wait: bool) -> PushResult | None:
        """See `Step.answer`."""
        if self._exchanging is None or not (wait or self._exchanging.done()):
            return None
        exchanging, self._exchanging = self._exchanging, None
        pushed = exchanging.result()  # bounded: every exchange has a deadline
        self._brought = self._exchanged
        return pushed

    def merge(self) -> None:
        """See `Step.merge`."""
        if self._brought:
            fragments, self._brought = self._brought, ()
            if self._delay:
                self._state.store()
            for own in _pieces_of(fragments):
                self._merge(own)
            self._load()

    def _load(self) -> None:
        self._state.load()
        self._own.loaded()

    @abstractmethod
    def _exchange(
        self, due: Sequence[Fragment], stepped: Stepped, clock: int, next_clock: int
    ) -> Callable[[], PushResult | None]:
        """Prepare to exchange what `values` holds of these fragments.

        What is returned makes the exchange, perhaps on another thread; it returns None where later exchanges complete
        the same steps.
        """

    @abstractmethod
    def _merge(self, own: slice) -> None:
        """Have in `values` what the exchange of `_sent` has brought, and the steps since then."""


class DifferenceStep(LocalStep):
    """The difference since the last fetch is pushed, and the script goes on with what shards make of it."""

    def __init__(self, session: Session, state: ModuleState) -> None:
        strategy = session.job.strategy
        assert isinstance(strategy, Downpour | SyncSgd | Diloco)
        super().__init__(session, state, strategy.n_push, _delay(strategy))
        self._fetched, self._difference = self._room(), self._room()
        self._blend = 0.0

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`."""
        self._session.parameters.pull(self._fetched, self._versions, clock=clock)
        self.clock = clock
        merge(np, self.values, self._fetched, None, self._difference, self._blend)
        self._load()

    def _exchange(
        self, due: Sequence[Fragment], stepped: Stepped, clock: int, next_clock: int
    ) -> Callable[[], PushResult | None]:
        np.subtract(self.values, self._fetched, out=self._difference)
        check_finite(self._difference, self._part, "difference")
        push = self._push(stepped, due[0].samples, clock, 1.0)
        self.clock = next_clock
        return lambda: self._send(self._difference, self._fetched, push, next_clock)

    def _merge(self, own: slice) -> None:
        sent = self._sent[own] if self._delay else None
        merge(np, self.values[own], self._fetched[own], sent, self._difference[own], self._blend)


class DilocoStep(DifferenceStep):
    """Each fragment is pushed once in a round, by samples, however many batches of the script a round has.

    Pushes of a round have one number. Their steps, up to the first of them, are done when the last one is acknowledged.
    """

    def __init__(self, session: Session, state: ModuleState) -> None:
        super().__init__(session, state)
        strategy = session.job.strategy
        assert isinstance(strategy, Diloco)
        self._strategy = strategy
        self._fragments = cut(session.parameters.placement.spans, (0, len(self.values)), strategy.fragments)
        self._rounds = Rounds(strategy.batch, strategy.steps, len(self._fragments))
        self._trained = sum(box.size for box in self._part.boxes if box.kind is Kind.TRAINED)
        self._results: list[PushResult] = []  # of the round's fragments so far
        self._exchanges = False  # before the first exchange nothing is the replica's own
        self._clock = RoundClock()

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`; after an exchange, which has brought those of its clock, only for a later one."""
        clock = self._clock.of(clock)
        if clock > self.clock or not self._exchanges:
            super().fetch(clock)

    def _due(self, stepped: Stepped, samples: int) -> Sequence[Fragment]:
        due = self._rounds.due(stepped.position - samples, stepped.position, stepped.lease.samples)
        return [self._fragments[number] for number in due]

    def _travelled(self, samples: int) -> int:
        return samples

    def _exchange(
        self, due: Sequence[Fragment], stepped: Stepped, clock: int, next_clock: int
    ) -> Callable[[], PushResult | None]:
        clock = self._clock.of(clock)
        pushes = [self._push_of(fragment, stepped, clock) for fragment in due]
        completes = due[-1] is self._fragments[-1]
        # A fetch for a later clock would wait for others, who wait for this round's other fragments.
        self.clock = following = max(next_clock, clock + 1) if len(self._fragments) == 1 else clock + 1
        self._blend, self._exchanges = self._strategy.blend, True

        def exchange() -> PushResult | None:
            for fragment, push in zip(due, pushes, strict=True):
                pushed = self._send(self._difference, self._fetched, push, following, within=fragment.within)
                self._results.append(pushed)
            if not completes:
                return None
            results, self._results = self._results, []
            round_ = together(results)
            if self._clock.answered(clock, round_.clock):  # no shard is to wait for this replica before that
                report_clock(self._session.parameters, self._clock.next)
            return round_

        return exchange

    def _push_of(self, fragment: Fragment, stepped: Stepped, clock: int) -> Push:
        """Have in `_difference` what a fragment has changed, turned round, and the push of it."""
        held: set[str] = set()
        moved: set[str] = set()
        for own in fragment.pieces:
            difference = np.subtract(self._fetched[own], self.values[own], out=self._difference[own])
            check_finite(difference, self._part, "difference", own.start)
            summed = difference[max(0, self._trained - own.start) :]
            np.negative(summed, out=summed)  # buffers are behind what is trained, and are added
            for name, some in self._part.pieces(self._difference, own):
                held.add(name)
                if some.any():
                    moved.add(name)
        # Tensors that no step has changed are left out: the velocity of the outer rule is not to move them.
        absent = of_tensors(self._part, held - moved)
        weight = self._strategy.weight(fragment.samples, fragment.steps)
        return self._push(stepped, weight, clock, self._strategy.outer.rate, absent, fragment is not self._fragments[0])


class ElasticStep(LocalStep):
    """W - a (W - C) in the script, and C + a (W - C) at the shards; W has all steps of the script so far.

    You et al. 2017, equations 1 and 2, with the exchange after the step, and not beside it: a step is computed at the
    weights that have moved. With `overlap` W is what it was when the exchange began.
    """

    def __init__(self, session: Session, state: ModuleState) -> None:
        strategy = session.job.strategy
        assert isinstance(strategy, Elastic)
        super().__init__(session, state, strategy.period, _delay(strategy))
        self._centre, self._moving_rate = self._room(), 0.0
        self._strategy, self._factor, self._begun = strategy, RateFactor(session.job), False

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`: own weights begin at the centre, once."""
        if not self._begun:
            self._session.parameters.pull(self.values, self._versions, clock=clock)
            self._load()
            self._begun = True
        self.clock = clock

    def _exchange(
        self, due: Sequence[Fragment], stepped: Stepped, clock: int, next_clock: int
    ) -> Callable[[], PushResult | None]:
        check_finite(self.values, self._part, "weights")
        eta = self._strategy.rate * self._factor(stepped.samples_before)
        self._moving_rate = self._strategy.moving_rate(eta, self._session.job.replicas)
        push = self._push(stepped, due[0].samples, clock, self._moving_rate)
        self.clock = next_clock
        return lambda: self._session.parameters.exchange(self._sent, self._centre, self._versions, push)

    def _merge(self, own: slice) -> None:
        np.subtract(self._sent, self._centre, out=self._centre)
        self._centre *= np.float32(self._moving_rate)
        self.values -= self._centre


Exchange = type[DifferenceStep] | type[ElasticStep]
"""How a script's own steps are exchanged."""


def exchange_of(job: Job) -> Exchange | None:
    """How the script's own steps are exchanged; None where the shards make its steps by their rule."""
    if isinstance(job.strategy, Elastic):
        return ElasticStep
    if isinstance(job.strategy, Diloco):
        return DilocoStep
    if isinstance(job.strategy, Downpour | SyncSgd) and isinstance(job.strategy.rule, AddRule):
        return DifferenceStep
    return None


def _pieces_of(fragments: Sequence[Fragment]) -> Iterator[slice]:
    """The ranges of these fragments."""
    return (own for fragment in fragments for own in fragment.pieces)


def _delay(strategy: Downpour | SyncSgd | Diloco | Elastic) -> int:
    """Steps that a script makes while an exchange travels; of DiLoCo their samples."""
    if isinstance(strategy, Diloco):
        return strategy.delay * strategy.batch
    return strategy.n_push if isinstance(strategy, Downpour | Elastic) and strategy.overlap else 0
