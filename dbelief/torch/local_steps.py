"""Steps that a script makes by its own optimisers; what they have changed is exchanged with the shards.

    DifferenceStep    after every `n_push` steps the difference since the last fetch is added at the shards; with DiLoCo
                      their outer rule takes it, turned round, as the gradient of a round
    ElasticStep       after every `period` steps weights and centre move towards each other

At the end of a lease there is an exchange too: no sample of a lease that is done may be without its effect.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np

from dbelief.core.absent import Ranges, of_tensors
from dbelief.core.layout import Kind
from dbelief.core.push import PushResult
from dbelief.job import Diloco, Downpour, Elastic, SyncSgd
from dbelief.optim.gradients import check_finite
from dbelief.script.drawn import Stepped
from dbelief.script.user_code import located
from dbelief.training.session import Session

from .module_state import ModuleState
from .own_steps import OwnSteps
from .step import RateFactor, Step


class LocalStep(Step):
    """Marks the steps of a script, and exchanges after every `every` of them."""

    def __init__(self, session: Session, state: ModuleState, every: int) -> None:
        super().__init__(session, state)
        self.values = self._room()
        state.bind(self.values)
        self._own = OwnSteps(state.trained())
        self._every, self._done, self._samples = every, 0, 0

    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """See `Step.run`."""
        self._state.check_bound()
        with located():
            self.left_out = self._own.mark()
        self._done += 1
        self._samples += samples
        ends = stepped.position == stepped.lease.samples
        return self.flush(stepped, clock, next_clock) if ends or self._is_due(stepped) else None

    def _is_due(self, stepped: Stepped) -> bool:
        return self._done >= self._every

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """See `Step.flush`."""
        if not self._done:
            return None
        samples, self._done, self._samples = self._samples, 0, 0
        self._state.store()
        pushed = self._exchange(stepped, samples, clock, next_clock)
        self._load()
        return pushed

    def _load(self) -> None:
        self._state.load()
        self._own.loaded()

    @abstractmethod
    def _exchange(self, stepped: Stepped, samples: int, clock: int, next_clock: int) -> PushResult:
        """Push what `values` holds, and leave there what the module goes on with."""


class DifferenceStep(LocalStep):
    """The difference since the last fetch is pushed, and the script goes on with what shards make of it.

    DiLoCo pushes at the end of a round, however many batches of the script that is.
    """

    def __init__(self, session: Session, state: ModuleState) -> None:
        strategy = session.job.strategy
        assert isinstance(strategy, Downpour | SyncSgd | Diloco)
        super().__init__(session, state, strategy.n_push)
        self._fetched, self._difference = self._room(), self._room()
        self._round, self._rate, self._turned = 0, 1.0, self._difference[:0]
        if isinstance(strategy, Diloco):
            self._round, self._rate = strategy.clock_samples, strategy.outer.rate
            trained = sum(box.size for box in self._part.boxes if box.kind is Kind.TRAINED)
            self._turned = self._difference[:trained]  # buffers behind it are added

    def _is_due(self, stepped: Stepped) -> bool:
        return stepped.position % self._round == 0 if self._round else super()._is_due(stepped)

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`."""
        if self._done:
            return  # the difference of steps that are not pushed yet would be lost
        self._session.parameters.pull(self._fetched, self._versions, clock=clock)
        self.clock = clock
        self.values[:] = self._fetched
        self._load()

    def _exchange(self, stepped: Stepped, samples: int, clock: int, next_clock: int) -> PushResult:
        np.subtract(self.values, self._fetched, out=self._difference)
        np.negative(self._turned, out=self._turned)
        check_finite(self._difference, self._part, "difference")
        push = self._push(stepped, samples, clock, self._rate, self._unchanged())
        pushed = self._send(self._difference, self._fetched, push, next_clock)
        self.values[:] = self._fetched
        return pushed

    def _unchanged(self) -> Ranges:
        """Trained tensors that no step of a round has changed: the velocity of the outer rule is not to move them."""
        if not self._round:
            return ()
        views = self._part.views(self._difference)
        return of_tensors(self._part, [box.name for box in self._part.boxes if not views[box.name].any()])


class ElasticStep(LocalStep):
    """W - a (W - C) in the script, and C + a (W - C) at the shards; W has all steps of the script so far.

    You et al. 2017, equations 1 and 2, with the exchange after the step, and not beside it: a step is computed at the
    weights that have moved.
    """

    def __init__(self, session: Session, state: ModuleState) -> None:
        strategy = session.job.strategy
        assert isinstance(strategy, Elastic)
        super().__init__(session, state, strategy.period)
        self._centre = self._room()
        self._strategy, self._factor, self._begun = strategy, RateFactor(session.job), False

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`: own weights begin at the centre, once."""
        if not self._begun:
            self._session.parameters.pull(self.values, self._versions, clock=clock)
            self._load()
            self._begun = True
        self.clock = clock

    def _exchange(self, stepped: Stepped, samples: int, clock: int, next_clock: int) -> PushResult:
        check_finite(self.values, self._part, "weights")
        eta = self._strategy.rate * self._factor(stepped.samples_before)
        moving_rate = self._strategy.moving_rate(eta, self._session.job.replicas)
        push = self._push(stepped, samples, clock, moving_rate)
        pushed = self._session.parameters.exchange(self.values, self._centre, self._versions, push)
        np.subtract(self.values, self._centre, out=self._centre)
        self._centre *= np.float32(moving_rate)
        self.values -= self._centre
        return pushed
