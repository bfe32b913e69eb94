"""Steps that a script makes by its own optimisers, counted by torch's hook: none of them is named to `Sync`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dbelief.errors import UserError

from .module_state import sum_of


class OwnSteps:
    """Steps of all optimisers of this process since the last mark.

    Parameters
    ----------
    trained
        Parameters of the module.
    """

    def __init__(self, trained: Iterable[torch.nn.Parameter]) -> None:
        self._trained = list(trained)
        self._made = made = [0]
        self._by_hand = self._began = False
        self._loaded: list[int] = []

        def count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            made[0] += 1

        weakref.finalize(self, register_optimizer_step_post_hook(count).remove)

    def loaded(self) -> None:
        """Note that parameters have been loaded, and not by a step."""
        if not (self._began or self._by_hand):
            self._loaded = self._sums()

    def _sums(self) -> list[int]:
        return [sum_of(own) for own in self._trained]

    def mark(self) -> bool:
        """Begin to count anew; whether the script has left out its step, as its `GradScaler` does after an overflow.

        Raises
        ------
        UserError
            It has made none so far, and the gradients are there for one.
        """
        made, self._made[0] = self._made[0], 0
        if made or self._by_hand:
            self._began = True
            return False
        if self._began:
            return True
        if self._sums() != self._loaded:  # a step without an optimiser
            self._by_hand = True
            return False
        gradients = [_values(own.grad) for own in self._trained if own.grad is not None]
        finite = all(bool(torch.isfinite(values).all()) for values in gradients)
        if finite and any(bool(values.any()) for values in gradients):
            raise UserError(
                "the module is as it was before: with rule: {name: add}, elastic averaging and diloco the script makes "
                "its own steps; call optimizer.step() and optimizer.zero_grad() before sync.step, which marks a step"
            )
        return True


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
