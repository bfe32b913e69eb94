"""Distributed training of gradient-based models on machines that are slow, heterogeneous, remote or unreliable.

    dbelief.train("job.yaml")            a complete job on this machine
    dbelief.ray.train("job.yaml")        the same on a Ray cluster
    dbelief.join()                       a PyTorch script as a replica of a job, with dbelief.torch
    dbelief.integrations                 the same for trainers of transformers, Lightning and accelerate
    dbelief.connect("host:port")         a member of a job, for a custom training loop
    dbelief.load_model("runs/NAME")      the trained model of a run, for predictions
    dbelief.load_tables("runs/NAME")     the rows of its tables, to read them by key
    dbelief.read_about("runs/NAME")      what its script said of the samples: a vocabulary, names of classes
    dbelief.errors                       all error classes

Importing this package sets up its log and imports nothing else: gRPC, NumPy and the rest are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dbelief.process.log  # noqa: F401

if TYPE_CHECKING:
    from dbelief import integrations as integrations
    from dbelief import ray as ray
    from dbelief import torch as torch
    from dbelief.launch.train import train
    from dbelief.script.job import join
    from dbelief.sparse.saved.loaded_tables import load_tables
    from dbelief.training.client import Client, connect
    from dbelief.training.trained_model import load_model, read_about

__all__ = ["Client", "connect", "join", "load_model", "load_tables", "read_about", "train"]

_HOMES = {
    "Client": "dbelief.training.client",
    "connect": "dbelief.training.client",
    "join": "dbelief.script.job",
    "load_model": "dbelief.training.trained_model",
    "load_tables": "dbelief.sparse.saved.loaded_tables",
    "read_about": "dbelief.training.trained_model",
    "train": "dbelief.launch.train",
}


def __getattr__(name: str) -> Any:
    """Import an attribute on first access: a role's process must set its environment before gRPC is imported."""
    if name in ("integrations", "join", "torch"):  # a script has no command that does so before gRPC is imported
        from dbelief.rpc.grpc_settings import set_switches

        set_switches()
    if name == "torch":
        return _torch()
    from importlib import import_module

    if name in ("integrations", "ray"):
        return import_module(f"dbelief.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dbelief' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def _torch() -> Any:
    """The package `dbelief.torch`, which needs an extra."""
    from importlib import import_module

    try:
        return import_module("dbelief.torch")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from dbelief.errors import ModelError

        raise ModelError(f"dbelief.torch needs torch: pip install 'dbelief[torch]' ({error})") from error
