"""Distributed training of gradient-based models on machines that are slow, heterogeneous, remote or unreliable.

    dbelief.train("job.yaml")            a complete job on this machine
    dbelief.connect("host:port")         a member of a job, for a custom training loop
    dbelief.load_model("runs/NAME")      the trained model of a run, for predictions
    dbelief.errors                       all error classes

Importing this package sets up its log and imports nothing else: gRPC, NumPy and the rest are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dbelief.process.log  # noqa: F401

if TYPE_CHECKING:
    from dbelief.launch.train import train
    from dbelief.training.client import Client, connect
    from dbelief.training.trained_model import load_model

__all__ = ["Client", "connect", "load_model", "train"]

_HOMES = {
    "Client": "dbelief.training.client",
    "connect": "dbelief.training.client",
    "load_model": "dbelief.training.trained_model",
    "train": "dbelief.launch.train",
}


def __getattr__(name: str) -> Any:
    """Import an attribute on first access: a role's process must set its environment before gRPC is imported."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dbelief' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
