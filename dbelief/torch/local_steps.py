"""Steps that a script makes by its own optimisers; what they have changed is exchanged with the shards.

    DifferenceStep    after every `n_push` steps the difference since the last fetch is added at the shards; with DiLoCo
                      their outer rule takes it, turned round, as the gradient of a round
    ElasticStep       after every `period` steps weights and centre move towards each other

At the end of a lease there is an exchange too: no sample of a lease that is done may be without its effect. With a
delay the script computes while an exchange travels, also into the next lease.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np

from dbelief.core.absent import Ranges, of_tensors
from dbelief.core.layout import Kind
from dbelief.core.push import PushResult
from dbelief.job import Diloco, Downpour, Elastic, SyncSgd
from dbelief.optim.gradients import check_finite
from dbelief.process.runtime import runtime
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
        self._every, self._done, self._samples = every, 0, 0
        self._delay, self._behind = delay, 0  # since the exchange under way was begun
        self._sent = self._room() if delay else self.values
        self._exchanging: Future[PushResult] | None = None
        self._brought = False  # by an exchange, and not merged

    @property
    def may_fetch(self) -> bool:  # type: ignore[override]
        """See `Step`: steps that are not pushed yet would be lost."""
        return not self._done

    @property
    def travels(self) -> bool:  # type: ignore[override]
        """See `Step`."""
        return self._brought or self._exchanging is not None

    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """See `Step.run`."""
        self._state.check_bound()
        with located():
            self.left_out = self._own.mark()
        self._done += 1
        self._behind += self._travelled(samples)
        self._samples += samples
        due = stepped.position == stepped.lease.samples or self._is_due(stepped)
        before = None
        if due or self._behind >= self._delay:
            before = self.answer(wait=True)
            self.merge()
        return (self.flush(stepped, clock, next_clock) if due else None) or before

    def _is_due(self, stepped: Stepped) -> bool:
        return self._done >= self._every

    def _travelled(self, samples: int) -> int:
        """What a step of so many samples is of the delay."""
        return 1

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """See `Step.flush`; no exchange may be under way."""
        if not self._done:
            return None
        samples, self._done, self._samples = self._samples, 0, 0
        self._state.store()
        exchange = self._exchange(stepped, samples, clock, next_clock)
        if not self._delay:
            pushed = exchange()
            self._brought = True
            self.merge()
            return pushed
        self._sent[:] = self.values
        self._exchanging, self._behind = _begun(exchange), 0
        return None

    def answer(self, wait: bool) -> PushResult | None:
        """See `Step.answer`."""
        if self._exchanging is None or not (wait or self._exchanging.done()):
            return None
        exchanging, self._exchanging = self._exchanging, None
        pushed = exchanging.result()  # bounded: every exchange has a deadline
        self._brought = True
        return pushed

    def merge(self) -> None:
        """See `Step.merge`."""
        if self._brought:
            self._brought = False
            if self._delay:
                self._state.store()
            self._merge()
            self._load()

    def _load(self) -> None:
        self._state.load()
        self._own.loaded()

    @abstractmethod
    def _exchange(self, stepped: Stepped, samples: int, clock: int, next_clock: int) -> Callable[[], PushResult]:
        """Prepare to exchange what `values` holds; what is returned makes the exchange, perhaps on another thread."""

    @abstractmethod
    def _merge(self) -> None:
        """Have in `values` what the exchange of `_sent` has brought, and the steps since then."""


class DifferenceStep(LocalStep):
    """The difference since the last fetch is pushed, and the script goes on with what shards make of it.

    DiLoCo pushes at the end of a round, however many batches of the script that is.
    """

    def __init__(self, session: Session, state: ModuleState) -> None:
        strategy = session.job.strategy
        assert isinstance(strategy, Downpour | SyncSgd | Diloco)
        super().__init__(session, state, strategy.n_push, _delay(strategy))
        self._fetched, self._difference = self._room(), self._room()
        self._round, self._rate, self._turned = 0, 1.0, self._difference[:0]
        if isinstance(strategy, Diloco):
            self._round, self._rate = strategy.clock_samples, strategy.outer.rate
            trained = sum(box.size for box in self._part.boxes if box.kind is Kind.TRAINED)
            self._turned = self._difference[:trained]  # buffers behind it are added

    def _is_due(self, stepped: Stepped) -> bool:
        return stepped.position % self._round == 0 if self._round else super()._is_due(stepped)

    def _travelled(self, samples: int) -> int:
        return samples if self._round else 1

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`."""
        self._session.parameters.pull(self._fetched, self._versions, clock=clock)
        self.clock = clock
        self.values[:] = self._fetched
        self._load()

    def _exchange(self, stepped: Stepped, samples: int, clock: int, next_clock: int) -> Callable[[], PushResult]:
        np.subtract(self.values, self._fetched, out=self._difference)
        np.negative(self._turned, out=self._turned)
        check_finite(self._difference, self._part, "difference")
        push = self._push(stepped, samples, clock, self._rate, self._unchanged())
        self.clock = next_clock
        return lambda: self._send(self._difference, self._fetched, push, next_clock)

    def _merge(self) -> None:
        if self._sent is self.values:
            self.values[:] = self._fetched
        else:  # first the difference: where nothing has changed since, this is what was fetched, to the bit
            np.subtract(self.values, self._sent, out=self.values)
            np.add(self.values, self._fetched, out=self.values)

    def _unchanged(self) -> Ranges:
        """Trained tensors that no step of a round has changed: the velocity of the outer rule is not to move them."""
        if not self._round:
            return ()
        views = self._part.views(self._difference)
        return of_tensors(self._part, [box.name for box in self._part.boxes if not views[box.name].any()])


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

    def _exchange(self, stepped: Stepped, samples: int, clock: int, next_clock: int) -> Callable[[], PushResult]:
        check_finite(self.values, self._part, "weights")
        eta = self._strategy.rate * self._factor(stepped.samples_before)
        self._moving_rate = self._strategy.moving_rate(eta, self._session.job.replicas)
        push = self._push(stepped, samples, clock, self._moving_rate)
        self.clock = next_clock
        return lambda: self._session.parameters.exchange(self._sent, self._centre, self._versions, push)

    def _merge(self) -> None:
        np.subtract(self._sent, self._centre, out=self._centre)
        self._centre *= np.float32(self._moving_rate)
        self.values -= self._centre


def _begun(exchange: Callable[[], PushResult]) -> Future[PushResult]:
    """Begin an exchange on a thread that ends with the process: that of a script that fails does not wait for it."""
    future: Future[PushResult] = Future()

    def run() -> None:
        try:
            future.set_result(exchange())
        except BaseException as error:
            future.set_exception(error)

    runtime.spawn(run, "exchange")
    return future


def _delay(strategy: Downpour | SyncSgd | Diloco | Elastic) -> int:
    """Steps that a script makes while an exchange travels; of DiLoCo their samples."""
    if isinstance(strategy, Diloco):
        return strategy.delay * strategy.batch
    return strategy.n_push if isinstance(strategy, Downpour | Elastic) and strategy.overlap else 0
