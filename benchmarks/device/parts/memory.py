"""Memory that the pool of the device holds after each step of a replica: from the second step on it must not grow.

The stand-in runs operations late and at random, and its pool has the memory of those that wait: there it must not grow
in the second half of the steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.device.findings import Findings
from dbelief.arrays.backend import Backend, select_backend
from dbelief.core.layout import Layout, RankPart, make_segments, nominal_length
from dbelief.nn import Batch, build_network
from dbelief.nn.model import Model
from dbelief.optim import make_rule
from dbelief.telemetry.gpu import devices
from dbelief.training.parameter_buffer import ParameterBuffer
from dbelief.worker.pipeline.buffers import GradientBuffer

LENET: list[tuple[str, dict[str, Any]]] = [
    ("image", {"height": 28, "width": 28}),
    ("conv", {"maps": 20, "kernel": 5}),
    ("max_pool", {"size": 2}),
    ("conv", {"maps": 50, "kernel": 5}),
    ("max_pool", {"size": 2}),
    ("dense", {"units": 500}),
    ("relu", {}),
    ("dense", {"units": 10}),
]
DENSE: list[tuple[str, dict[str, Any]]] = [("dense", {"units": 256}), ("relu", {}), ("dense", {"units": 10})]
NETWORKS = {"LeNet": LENET, "784-256-10": DENSE}
BATCH, STEPS = 64, 200
SMALL_BATCH, SMALL_STEPS = 4, 16
SECOND = 2


class Steps:
    """Steps of one replica, with the buffers of its worker: fetched parameters, gradient, local Adagrad, and push.

    Parameters
    ----------
    samples
        Of a mini-batch, which is drawn anew for each step.
    """

    def __init__(self, model: Model, samples: int, backend: Backend) -> None:
        layout = Layout.of(model.parameters(np.random.default_rng(0)))
        part: RankPart = layout.part(0)
        spans = make_segments([(0, part.size)], nominal_length(part.size, 1))
        self._ranges = [(span.start, span.stop) for span in spans]
        self._model, self._backend, self._samples = model, backend, samples
        self._copy = ParameterBuffer.make(part, len(spans), backend)
        self._gradient = GradientBuffer.make(part, len(spans), backend)
        layout.flatten(model.parameters(np.random.default_rng(0)), self._copy.host)
        self._rule = make_rule("adagrad", {})
        self._states = tuple(backend.xp.full(part.size, value, np.float32) for value in self._rule.state.values())
        self._rng, self.made = np.random.default_rng(1), 0

    def __call__(self) -> None:
        """Make one step, until the last block of its push is on the host."""
        self.made += 1
        self._copy.to_device()
        inputs = self._rng.standard_normal((self._samples, 784), dtype=np.float32)
        targets = self._rng.integers(0, 10, self._samples)
        batch = Batch(self._backend.to_device(inputs), self._backend.to_device(targets))
        self._model.loss_and_gradient(self._copy.views, batch, self._gradient.views)
        source = self._backend.push_source(self._gradient.gradient)
        assert not isinstance(source, np.ndarray)
        assert all(np.isfinite(block).all() for block in source.blocks(self._ranges)), "a gradient of finite numbers"
        rate, held = np.float32(0.01), (self._copy.device, self._gradient.gradient)
        self._rule.apply_reference(self._backend.xp, *held, self._states, rate, self.made)
        self._copy.host[:] = self._backend.to_host(self._copy.device)


def measure(found: Findings, small: bool) -> None:
    """Step with each network, and compare the pool's bytes with those after the second step."""
    backend = select_backend("cuda")
    device, *_ = devices(backend)
    samples, count = (SMALL_BATCH, SMALL_STEPS) if small else (BATCH, STEPS)
    for name, layers in NETWORKS.items():
        model = build_network(layers, "softmax_cross_entropy", features=784, outputs=10, backend=backend)
        step, held = Steps(model, samples, backend), []
        for _ in range(count):
            step()
            held.append(device.pool_bytes())
        settled = count // 2 if small else SECOND
        last, most, then = held[-1], max(held[settled:]), held[settled - 1]
        beside = {f"after {steps} steps": held[steps - 1] / 2**20 for steps in (SECOND, settled)}
        found.figure(f"{name}, pool after {count} steps", last / 2**20, "MiB", beside)
        assert most <= then, f"{name}: the pool grew from {then:,.0f} to {most:,.0f} bytes after step {settled}"
