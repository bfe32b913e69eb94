"""One way of stepping: what `sync.step` does with a module, as the job's strategy says.

    RuleStep          with a rule of the shards, `sync.step` makes the step: see `rule_step`
    DifferenceStep    the script makes its steps; the difference since the last fetch is added: see `local_steps`
    DilocoStep        the same, and an outer rule of the shards takes it as a gradient
    ElasticStep       the script makes its steps; weights and centre move towards each other: see `local_steps`

Changes of buffers travel in the same push, and are added once; with elastic averaging buffers are weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from dbelief.core.absent import Ranges
from dbelief.core.placement import Fetch
from dbelief.core.push import PARAMETERS, Push, PushResult
from dbelief.job import Job
from dbelief.script.drawn import Stepped
from dbelief.training.schedule import learning_rate, total_samples
from dbelief.training.session import Session

from .module_state import ModuleState


class Step(ABC):
    """One way of stepping.

    Attributes
    ----------
    values
        The vector that the module is kept in: float32, of the length of what is pushed.
    left_out
        Whether the script's `GradScaler` left out the last step: nothing was trained.
    travels
        Whether an exchange is under way, or its answer is not merged.
    may_fetch
        Whether no step of the script would be lost by a fetch.
    """

    values: np.ndarray
    left_out: bool = False
    travels: bool = False
    may_fetch: bool = True

    def __init__(self, session: Session, state: ModuleState) -> None:
        self._session, self._state = session, state
        self._part = state.pushed
        self._versions = np.full(len(session.parameters.placement.spans), -1, np.int64)
        self._sent_versions = self._versions.copy()
        self.clock = 0  # the last one that was fetched for

    def _room(self) -> np.ndarray:
        return self._session.parameters.array(self._part.size)

    @abstractmethod
    def fetch(self, clock: int) -> None:
        """Fetch the parameters for a clock into the module."""

    @abstractmethod
    def run(
        self, stepped: Stepped, samples: int, clock: int, next_clock: int, meanwhile: Callable[[], None]
    ) -> PushResult | None:
        """Make a step from the gradients of the module, or mark the one that the script made.

        Returns what the oldest push under way has answered; None where none has: nothing is pushed, or it travels.

        Parameters
        ----------
        stepped, samples
            What the next push completes, and the samples behind it.
        clock, next_clock
            Of this step, and of the one that is computed next.
        meanwhile
            May be called while the shards apply a push.
        """

    def scale_gradients(self, factor: float) -> None:
        """Multiply the gradients of the next step, where they are not the script's own."""
        return

    def drop_rows(self) -> None:
        """Drop the gradients of rows of tables."""
        return

    def close(self) -> None:
        """End at the script's good end, when all exchanges are answered."""
        return

    def flush(self, stepped: Stepped, clock: int, next_clock: int) -> PushResult | None:
        """Push what steps up to `stepped` have left; None where nothing is, or where it travels."""
        return None

    def answer(self, wait: bool) -> PushResult | None:
        """The answer of the exchange under way, once: None where there is none, or, without `wait`, none yet."""
        return None

    def merge(self) -> None:
        """Continue from what the last exchange has brought, whose answer was given; else nothing is done."""
        return

    def _push(
        self, stepped: Stepped, samples: int, clock: int, rate: float, absent: Ranges = (), further: bool = False
    ) -> Push:
        """The next push of the steps up to `stepped`; `further`: of other segments, with the number of the last one."""
        session = self._session
        if not further:
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
        within: frozenset[int] | None = None,
        rows: Mapping[int, np.ndarray] | None = None,
    ) -> PushResult:
        """Push a vector, or some segments of it, and rows of tables; fetch the segments' parameters with it."""
        self._sent_versions[:] = self._versions
        fetch = Fetch(into, self._versions, next_clock)
        parameters, sent_versions = self._session.parameters, self._sent_versions
        pushed = parameters.push(sent, sent_versions, push, fetch, meanwhile, within=within, rows=rows)
        self.clock = next_clock
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
