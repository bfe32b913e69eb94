"""Trainers of other libraries as replicas of a job; the framework makes its own steps, `dbelief.torch.Sync` marks them.

    JobTrainer        in place of the `Trainer` of Hugging Face transformers; TrainerMixin: for a subclass of one
    JobCallback       a callback of a Lightning `Trainer`
    AccelerateSync    for a loop with an `Accelerator`

Each is imported on first use: it needs its library, of the extra `trainers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accelerate_sync import AccelerateSync
    from .job_callback import JobCallback
    from .job_trainer import JobTrainer, TrainerMixin

__all__ = ["AccelerateSync", "JobCallback", "JobTrainer", "TrainerMixin"]

_HOMES = {
    "AccelerateSync": "accelerate_sync",
    "JobCallback": "job_callback",
    "JobTrainer": "job_trainer",
    "TrainerMixin": "job_trainer",
}


def __getattr__(name: str) -> Any:
    """Import a class with the library that it needs."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dbelief.integrations' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"dbelief.integrations.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("accelerate", "lightning", "torch", "transformers"):
            raise
        from dbelief.errors import ModelError

        raise ModelError(
            f"dbelief.integrations.{name} needs {error.name}: pip install 'dbelief[trainers]' ({error})"
        ) from error
