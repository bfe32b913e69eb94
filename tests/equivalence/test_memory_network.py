"""A whole job whose processes are threads, over a network in memory: every call goes through the transport's seam."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file

from dbelief.rpc.transport import use_transport
from tests.memory_network import MemoryNetwork

from .in_process import whole_job

JOB = """
name: small
model: {{layers: [{{dense: 16}}, relu, {{dense: 10}}], loss: softmax_cross_entropy}}
data: {{source: digits}}
strategy: {{{strategy}}}
limits: {{epochs: 1}}
shards: 2
replicas: {replicas}
"""
SYNCHRONOUS = "name: sync-sgd, rule: {name: momentum, rate: 0.05}, batch: 64"
ELASTIC = "name: async-easgd, rate: 0.1, batch: 64"


def no_socket(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a call went past the transport")


@pytest.mark.parametrize(("strategy", "replicas"), [(SYNCHRONOUS, 1), (ELASTIC, 1)], ids=["synchronous", "elastic"])
def test_job_in_memory_has_the_bits_of_grpc(
    strategy: str, replicas: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = JOB.format(strategy=strategy, replicas=replicas)
    (tmp_path / "grpc").mkdir()
    (tmp_path / "memory").mkdir()
    expected = load_file(whole_job(text, tmp_path / "grpc", monkeypatch) / "model.safetensors")
    with use_transport(MemoryNetwork()), monkeypatch.context() as patch:
        for door in ("server", "insecure_channel", "secure_channel"):
            patch.setattr(grpc, door, no_socket)
        trained = load_file(whole_job(text, tmp_path / "memory", monkeypatch) / "model.safetensors")
    assert trained.keys() == expected.keys()
    assert all(np.array_equal(trained[name], expected[name]) for name in expected)
