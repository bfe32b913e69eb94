"""Steps that a script's `GradScaler` leaves out, because a gradient in half precision overflowed.

The scaler belongs to the script, which calls `scaler.unscale_(optimizer)` before `sync.step`, and `scaler.update()`
after it. It has the outcome under the identity of the optimiser, from where `scaler.step` reads it too. No call of the
script names it to `Sync`: it is sought among the objects of the process, at the first step and where a gradient is not
finite.
"""

from __future__ import annotations

import gc
from weakref import ReferenceType, ref

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from dbelief.errors import UserError


class LossScaling:
    """The scalers of one optimiser; usually one, or none."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._scalers: list[ReferenceType[GradScaler]] | None = None

    def leaves_out(self, search: bool = False) -> bool:
        """Whether a scaler has found that the gradients of this step overflowed.

        Parameters
        ----------
        search
            Seek scalers again: a script may make one after its first step.

        Raises
        ------
        UserError
            At the first step: a scaler has scaled the loss, and the gradients are not unscaled.
        """
        if self._scalers is None or search or any(scaler() is None for scaler in self._scalers):
            first, self._scalers = self._scalers is None, [ref(one) for one in _scalers()]
            if first and self._scalers:
                self._check_unscaled()
        return any(self._overflowed(scaler()) for scaler in self._scalers)

    @property
    def scales(self) -> bool:
        """Whether the script had a scaler when they were sought last."""
        return bool(self._scalers)

    def _overflowed(self, scaler: GradScaler | None) -> bool:
        # By `get`: the mapping makes a row for each key that is read.
        state = scaler and scaler._per_optimizer_states.get(id(self._optimizer))
        if not state or state["stage"] is not OptState.UNSCALED:
            return False
        return any(bool(found) for found in state["found_inf_per_device"].values())

    def _check_unscaled(self) -> None:
        for scaler in (known() for known in self._scalers or ()):
            if scaler is None or scaler._scale is None or scaler._per_optimizer_states:
                continue
            if scaler._get_growth_tracker() == 0 and scaler.get_scale() == scaler._init_scale:  # not updated yet
                raise UserError(
                    f"gradients are multiplied by the scale of a GradScaler, {scaler.get_scale():g}: call "
                    "scaler.unscale_(optimizer) before sync.step, and scaler.update() after it"
                )


def _scalers() -> list[GradScaler]:
    """All scalers of this process that are enabled."""
    found = [one for one in gc.get_objects() if issubclass(type(one), GradScaler)]
    return [one for one in found if one.is_enabled()]
