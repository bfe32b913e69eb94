"""What one step of a script does: gradients, differences or weights travel, as the job's strategy says.

    RuleStep          the gradient is pushed, and the shards' rule makes the step
    DifferenceStep    the optimiser steps; after every `n_push` steps the difference since the last fetch is added
    ElasticStep       the optimiser steps; after every `period` steps weights and centre move towards each other

Changes of buffers travel in the same push, and are added once; with elastic averaging buffers are weights.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dbelief.core.absent import EVERYTHING, Ranges
from dbelief.core.placement import Fetch
from dbelief.core.push import PARAMETERS, Push, PushResult
from dbelief.errors import NonFinite, UserError
from dbelief.job import AddRule, Downpour, Elastic, Job, SyncSgd
from dbelief.optim.gradients import check_finite
from dbelief.script.drawn import Stepped
from dbelief.script.user_code import located
from dbelief.training.schedule import learning_rate, total_samples
from dbelief.training.session import Session

from .loss_scaling import LossScaling
from .module_state import ModuleState

log = logging.getLogger(__name__)

_CHANGES = ("params", "lr", "initial_lr", "max_lr", "min_lr")
"""Of an optimiser's group: what it holds, and what changes with the rate."""


class Step(ABC):
    """One way of stepping.

    Attributes
    ----------
    values
        The vector that the module is kept in: float32, of the length of what is pushed.
    left_out
        Whether the script's `GradScaler` left out the last step: nothing was trained.
    """

    values: np.ndarray
    left_out: bool = False

    def __init__(self, session: Session, state: ModuleState, optimizer: torch.optim.Optimizer) -> None:
        self._session, self._state, self._optimizer = session, state, optimizer
        self._part = state.pushed
        self._scaling = LossScaling(optimizer)
        self._stepping = False
        optimizer.register_step_pre_hook(self._refuse)
        self._versions = np.full(len(session.parameters.placement.spans), -1, np.int64)
        self._sent_versions = self._versions.copy()
        self.clock = 0  # the last one that was fetched for

    def _refuse(self, *_: object) -> None:
        """Refuse a step that the script makes beside those of `run`."""
        if not self._stepping:
            with located():
                raise UserError("optimizer.step() was called: sync.step makes the step, with the other replicas")

    def _find_overflow(self, search: bool = False) -> bool:
        with located():
            self.left_out = self._scaling.leaves_out(search)
        return self.left_out

    def _make_step(self) -> None:
        """Have the optimiser step on the module, unless gradients have overflowed."""
        if self._find_overflow():
            return
        self._stepping = True
        try:
            self._optimizer.step()
        finally:
            self._stepping = False

    def _room(self) -> np.ndarray:
        return self._session.parameters.array(self._part.size)

    @abstractmethod
    def fetch(self, clock: int) -> None:
        """Fetch the parameters for a clock into the module."""

    @abstractmethod
    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """Make a step from the gradients of the module; None where nothing was pushed yet.

        Parameters
        ----------
        stepped, samples
            What the next push completes, and the samples behind it.
        clock, next_clock
            Of this step, and of the one that is computed next.
        meanwhile
            May be called while the shards apply a push.
        """

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """Push what steps up to `stepped` have left; None where nothing is."""
        return None

    def _push(self, stepped: Stepped, samples: int, clock: int, rate: float, absent: Ranges = ()) -> Push:
        session = self._session
        session.sequences[PARAMETERS] = session.next_sequence()
        return Push(
            session.pusher,
            session.sequences[PARAMETERS],
            np.float32(rate),
            samples,
            clock=clock,
            lease=stepped.lease.id,
            position=stepped.position,
            absent=absent,
        )

    def _send(
        self,
        sent: np.ndarray,
        into: np.ndarray,
        push: Push,
        next_clock: int,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> PushResult:
        """Push a vector, and fetch the parameters with it."""
        self._sent_versions[:] = self._versions
        fetch = Fetch(into, self._versions, next_clock)
        pushed = self._session.parameters.push(sent, self._sent_versions, push, fetch, meanwhile)
        self.clock = next_clock
        return pushed


class RuleStep(Step):
    """The gradient travels, with the optimiser's learning rate; the optimiser itself never steps."""

    def __init__(self, session: Session, state: ModuleState, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(session, state, optimizer)
        self.values = self._room()
        state.bind(self.values, (self._room(), self._room()))
        self._factor = RateFactor(session.job)
        self._warned = False
        self._held = _beside_rate(optimizer.param_groups[0])
        vars(optimizer)["_opt_called"] = True  # the shards step: no scheduler of torch is to warn that it does not

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`."""
        self._session.parameters.pull(self.values, self._versions, clock=clock)
        self._state.load()
        self.clock = clock

    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult:
        """See `Step.run`; the next gradients are cleared while the shards apply these."""
        gradient, absent, norm = self._gradient()
        if norm == 0.0 and not self._warned and not self.left_out:
            self._warned = True
            log.warning(
                "all gradients are 0: is loss.backward() called before sync.step, and zero_grad() not between them?"
            )
        self._check_unchanged()
        rate = self._optimizer.param_groups[0]["lr"] * self._factor(stepped.samples_before)
        push = self._push(stepped, samples, clock, rate, absent)

        def prepare() -> None:
            self._state.next_gradients()
            meanwhile()

        pushed = self._send(gradient, self.values, push, next_clock, prepare)
        self._state.load()
        return pushed

    def _gradient(self) -> tuple[np.ndarray, Ranges, float]:
        """What is pushed, what of it took no part, and its norm: of a step that is left out the changes of buffers."""
        gradient, absent = self._state.collect_gradients()
        if not self._find_overflow():
            try:
                return gradient, absent, check_finite(gradient, self._part)
            except NonFinite:
                if not self._find_overflow(search=True):
                    raise
        gradient = self._state.without_gradients()
        return gradient, EVERYTHING, check_finite(gradient, self._part)

    def _check_unchanged(self) -> None:
        """Check that only the rate has changed: it travels with each push, and the rest is the shards' rule."""
        now = _beside_rate(self._optimizer.param_groups[0])
        if now != self._held:
            name = next(name for name in now if now[name] != self._held.get(name))
            with located():
                raise UserError(
                    f"{type(self._optimizer).__name__} has {name} {now[name]} now, and the job's rule keeps "
                    f"{self._held.get(name)}: a scheduler may change the rate alone (cycle_momentum=False); or choose "
                    "rule: {name: add}, with which this optimiser steps itself"
                )


def _beside_rate(group: dict[str, Any]) -> dict[str, Any]:
    """What a group of an optimiser says, without its parameters, its rate, and what a scheduler of it notes."""
    return {name: value for name, value in group.items() if name not in _CHANGES}


class DifferenceStep(Step):
    """The optimiser steps on the module; the difference since the last fetch is added at the shards."""

    def __init__(self, session: Session, state: ModuleState, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(session, state, optimizer)
        self.values, self._fetched, self._difference = self._room(), self._room(), self._room()
        state.bind(self.values)
        strategy = session.job.strategy
        assert isinstance(strategy, Downpour | SyncSgd)
        self._every, self._done, self._samples = strategy.n_push, 0, 0

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`."""
        if self._done:
            return  # the difference of steps that are not pushed yet would be lost
        self._session.parameters.pull(self._fetched, self._versions, clock=clock)
        self.clock = clock
        self._take()

    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """See `Step.run`."""
        self._state.check_bound()
        self._make_step()
        self._state.drop_gradients()
        self._done += 1
        self._samples += samples
        ends = stepped.position == stepped.lease.samples  # nothing of a lease that has ended may stay behind
        if self._done % self._every and not ends:
            return None
        return self.flush(stepped, clock, next_clock)

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """See `Step.flush`."""
        if not self._done:
            return None
        self._state.store()
        np.subtract(self.values, self._fetched, out=self._difference)
        check_finite(self._difference, self._part, "difference")
        push = self._push(stepped, self._samples, clock, 1.0)
        self._done = self._samples = 0
        pushed = self._send(self._difference, self._fetched, push, next_clock)
        self._take()
        return pushed

    def _take(self) -> None:
        self.values[:] = self._fetched
        self._state.load()


class ElasticStep(Step):
    """The optimiser steps on the module's own weights, W' from W; then W' - a (W - C), and C + a (W - C) at the shards.

    W and the centre C are those before the step (You et al. 2017, equations 1 and 2).
    """

    def __init__(self, session: Session, state: ModuleState, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(session, state, optimizer)
        self.values, self._centre = self._room(), self._room()
        state.bind(self.values)
        strategy = session.job.strategy
        assert isinstance(strategy, Elastic)
        self._strategy, self._done, self._samples = strategy, 0, 0
        self._factor = RateFactor(session.job)
        self._began = False

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`: own weights begin at the centre, once."""
        if not self._began:
            self._session.parameters.pull(self.values, self._versions, clock=clock)
            self._state.load()
            self._began = True
        self.clock = clock

    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """See `Step.run`."""
        self._state.check_bound()
        self._done += 1
        self._samples += samples
        pushed = None
        if self._done % self._strategy.period == 0 or stepped.position == stepped.lease.samples:
            pushed = self._exchange(stepped, clock)
            self._done = self._samples = 0
        self._make_step()
        self._state.drop_gradients()
        if pushed is not None:
            self._move()
        return pushed

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """See `Step.flush`."""
        if not self._done:
            return None
        pushed = self._exchange(stepped, clock)
        self._done = self._samples = 0
        self._move()
        return pushed

    def _move(self) -> None:
        """Move towards the centre, from where the optimiser's step led."""
        self._state.store()
        self.values -= self._centre
        self._state.load()

    def _exchange(self, stepped: Stepped, clock: int) -> PushResult:
        """Exchange weights for the centre, and leave a (W - C) in the centre's vector."""
        self._state.store()
        check_finite(self.values, self._part, "weights")
        eta = self._strategy.rate * self._factor(stepped.samples_before)
        moving_rate = self._strategy.moving_rate(eta, self._session.job.replicas)
        push = self._push(stepped, self._samples, clock, moving_rate)
        pushed = self._session.parameters.exchange(self.values, self._centre, self._versions, push)
        np.subtract(self.values, self._centre, out=self._centre)
        self._centre *= np.float32(moving_rate)
        return pushed


class RateFactor:
    """Factor of the job's schedule at a number of samples: the optimiser has the rate itself."""

    def __init__(self, job: Job) -> None:
        self._job, self._base = job, job.strategy.rule.rate
        size = job.data.train if job.data.source == "script" else None
        self._total = total_samples(job.limits, size)

    def __call__(self, samples: int) -> float:
        """The factor after so many leased samples."""
        return learning_rate(self._job, samples, self._total) / self._base


def step_of(job: Job) -> type[Step]:
    """The way of stepping that a job's strategy asks for."""
    if isinstance(job.strategy, Elastic):
        return ElasticStep
    if isinstance(job.strategy, Downpour | SyncSgd) and isinstance(job.strategy.rule, AddRule):
        return DifferenceStep
    return RuleStep
