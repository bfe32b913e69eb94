"""Ranks on CUDA devices, or sharing one: the numbers of one rank on the host."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.nn import Batch, Network, build_network
from dbelief.partition import Grid
from worker.comm import Communicator
from worker.comm.threads import run_ranks
from worker.partition import build_partitioned

pytestmark = pytest.mark.gpu

LAYERS = [("conv", {"maps": 4, "kernel": 3}), ("relu", {}), ("max_pool", {"size": 2}), ("dense", {"units": 3})]


def network(backend: Backend) -> Network:
    return build_network(LAYERS, "softmax_cross_entropy", features=(14, 14, 2), outputs=3, backend=backend)


def test_a_grid_of_threads_is_one_rank(cuda: Backend) -> None:
    rng, host = np.random.default_rng(0), select_backend("cpu")
    inputs, targets = rng.standard_normal((5, 14, 14, 2), dtype=np.float32), rng.integers(0, 3, 5)
    whole = network(host)
    tensors = dict(whole.parameters(np.random.default_rng(1)))
    expected = {name: np.empty_like(values) for name, values in tensors.items()}
    loss = whole.loss_and_gradient(tensors, Batch(inputs, targets), expected)

    def rank(comm: Communicator) -> float:
        cuda.bind_device(comm.rank)
        cut = build_partitioned(network(cuda), comm, Grid(2, 2))
        part = cut.layout.part(comm.rank)
        own = cuda.to_device(part.flatten(tensors, np.empty(part.size, np.float32)))
        gradient = cuda.xp.empty(part.size, np.float32)
        batch = Batch(cuda.to_device(inputs), cuda.to_device(targets))
        found = cut.loss_and_gradient(part.views(own), batch, part.views(gradient))
        wanted = part.flatten(expected, np.empty(part.size, np.float32))
        np.testing.assert_allclose(cuda.to_host(gradient), wanted, rtol=1e-4, atol=1e-5)
        return found

    assert run_ranks(4, rank, xp=cuda.xp) == pytest.approx([loss] * 4, rel=1e-5)
