"""The loss that a script gives to `sync.step`: one number, the mean over the batch."""

from __future__ import annotations

import torch

from dbelief.errors import UserError


def checked_loss(loss: torch.Tensor | float, reduction: str | None) -> float:
    """The loss as a number.

    Raises
    ------
    UserError
        It has several numbers; or it is visibly a sum, and no reduction says so.
    """
    if not isinstance(loss, torch.Tensor):
        return float(loss)
    if loss.numel() != 1:
        raise UserError(f"the loss has shape {tuple(loss.shape)}, must be one number: the mean over the batch")
    if reduction is None and _is_sum(loss):
        raise UserError(
            "the loss is a sum over the batch, whose gradients grow with its size: give its mean, or "
            "sync.step(..., reduction='sum'), which divides by the samples"
        )
    return float(loss.detach())


def _is_sum(loss: torch.Tensor) -> bool:
    """Whether the last operation of a loss is a sum, as far as autograd tells."""
    made = loss.grad_fn
    if made is None:
        return False
    try:
        return type(made).__name__ == "SumBackward0" or made._saved_reduction == 2
    except (AttributeError, RuntimeError):
        return False
