"""Steps that the shards make by their rule: the gradient travels, with the optimiser's learning rate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dbelief.core.absent import EVERYTHING, Ranges
from dbelief.core.push import PushResult
from dbelief.errors import NonFinite, UserError
from dbelief.optim.gradients import check_finite
from dbelief.script.drawn import Stepped
from dbelief.script.user_code import located
from dbelief.sparse.row_gradients import packed_gradients
from dbelief.sparse.table_reader import TableReader
from dbelief.training.session import Session

from .embedding import EmbeddingBag, row_gradients
from .loss_scaling import LossScaling
from .module_state import ModuleState
from .step import RateFactor, Step

log = logging.getLogger(__name__)

_CHANGES = ("params", "lr", "initial_lr", "max_lr", "min_lr")
"""Of an optimiser's group: what it holds, and what changes with the rate."""


class RuleStep(Step):
    """Pushes the gradient; the optimiser itself never steps."""

    def __init__(
        self,
        session: Session,
        state: ModuleState,
        optimizer: torch.optim.Optimizer,
        embeddings: Iterable[EmbeddingBag] = (),
    ) -> None:
        super().__init__(session, state)
        self._optimizer, self._scaling = optimizer, LossScaling(optimizer)
        optimizer.register_step_pre_hook(_refuse)
        self.values = self._room()
        state.bind(self.values, (self._room(), self._room()))
        self._factor = RateFactor(session.job)
        placement = session.parameters.placement
        self._reader = TableReader.of_job(session.job, session.parameters, placement.dense, self._versions)
        session.caches = self._reader.caches
        self._embeddings, self._row_scale = list(embeddings), 1.0
        for module in self._embeddings:
            module.attach(self._reader)
        self._warned = False
        self._held = _beside_rate(optimizer.param_groups[0])
        vars(optimizer)["_opt_called"] = True  # the shards step: no scheduler of torch is to warn that it does not

    def fetch(self, clock: int) -> None:
        """See `Step.fetch`."""
        self._session.parameters.pull(self.values, self._versions, clock=clock)
        self._state.load()
        self.clock = self._reader.clock = clock

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
        factor = self._factor(stepped.samples_before)
        rate = self._optimizer.param_groups[0]["lr"] * factor
        push, rows = self._push(stepped, samples, clock, rate, absent), self._rows()
        if rows is not None:
            push = replace(push, row_factor=factor)

        def prepare() -> None:
            self._state.next_gradients()
            meanwhile()

        pushed = self._send(gradient, self.values, push, next_clock, prepare, rows=rows)
        self._reader.stepped(next_clock)
        self._state.load()
        return pushed

    def _rows(self) -> dict[int, np.ndarray] | None:
        """Packed gradients of the rows of the job's tables; None where it has none."""
        if not self._session.job.tables:
            return None
        if self.left_out:
            self.drop_rows()
            return {}
        scale, self._row_scale = self._row_scale, 1.0
        return packed_gradients(row_gradients(self._embeddings), self._reader, scale)

    def drop_rows(self) -> None:
        """See `Step.drop_rows`."""
        for module in self._embeddings:
            module.take()

    def close(self) -> None:
        """See `Step.close`."""
        for name, cache in self._reader.caches.items():
            if cache.reads:
                log.info(f"table {name!r}: {cache.hits / cache.reads:.1%} of {cache.reads:,} keys were in the cache")

    def scale_gradients(self, factor: float) -> None:
        """See `Step.scale_gradients`."""
        self._state.scale_gradients(factor)
        self._row_scale = factor

    def _find_overflow(self, search: bool = False) -> bool:
        with located():
            self.left_out = self._scaling.leaves_out(search)
            if self._scaling.scales and self._session.job.tables:
                raise UserError(
                    "a GradScaler, and the job has tables: it does not unscale the gradients of their rows; use "
                    "bfloat16 in autocast, which needs no scaler"
                )
        return self.left_out

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
                    "rule: {name: add}, with which the script makes its own steps"
                )


def _beside_rate(group: dict[str, Any]) -> dict[str, Any]:
    """What a group of an optimiser says, without its parameters, its rate, and what a scheduler of it notes."""
    return {name: value for name, value in group.items() if name not in _CHANGES}


def _refuse(*_: object) -> None:
    """Refuse a step that the script makes beside those of the shards."""
    with located():
        raise UserError(
            "optimizer.step() was called: sync.step makes the step, with the other replicas, where the job has a rule "
            "of the shards; with rule: {name: add}, elastic averaging or diloco the script makes its own"
        )
