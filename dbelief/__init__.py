"""dbelief trains gradient-based models on machines that are slow, mixed, far apart, or may vanish.

    dbelief.train("job.yaml")            a whole job on this machine
    dbelief.connect("host:port")         a member of a job, for a loop of one's own
    dbelief.errors                       everything that can go wrong, by name

Importing this package imports nothing else: gRPC, NumPy and the rest come with the first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dbelief.launch.train import train
    from dbelief.training.client import Client, connect

__all__ = ["Client", "connect", "train"]

_HOMES = {"Client": "dbelief.training.client", "connect": "dbelief.training.client", "train": "dbelief.launch.train"}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: a role's process must set up before gRPC is imported."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dbelief' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
