"""Sandblaster on sparse rows, on 1 to 7 shards, with an L2 and with an L1 penalty.

A gradient has the same bits however the vector is cut. An inner product is summed in float64 by segments, by shards and
over the shards, so its last bits depend on the cuts. Vectors are float32: a factor that differs in its last bits
changes a number of a step only where that is about half way between two float32 numbers. So iterates are equal bit for
bit for a while, and objectives to rounding in float64. In a run to its end, of some 50 iterations here, the first
number to differ was in the 38th, and the last objectives were within 1e-8.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import cast

import numpy as np
import pytest

from coordinator.sandblaster.lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from coordinator.sandblaster.orthant import unpenalised
from dbelief.core.layout import Layout
from dbelief.core.push import ACCRUED, TRIAL, Push, Pusher
from dbelief.core.vector_program import together
from dbelief.nn import Batch, build_network
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters
from ps_server.programs import ProgramExecutor
from ps_server.store.shard import Shard
from tests.dbelief.nn.kernels.test_sparse import rows_of
from tests.equivalence.harness import HOST, serve, values_of

ROWS, FEATURES, PORTION, ITERATIONS = 240, 3_000, 40, 20
WHO = Pusher(1, 1)


class Passes:
    """Passes over sparse rows of which each touches few of the columns, some often and most rarely."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        x = np.zeros((ROWS, FEATURES))
        x[np.arange(ROWS)[:, np.newaxis], (FEATURES ** rng.random((ROWS, 8))).astype(int) - 1] = rng.random((ROWS, 8))
        labels = rng.integers(0, 2, ROWS)
        layers = [("dense", {"units": 2})]
        self._model = build_network(layers, "softmax_cross_entropy", features=FEATURES, outputs=2, backend=HOST)
        tensors = self._model.parameters(rng)
        self.layout = Layout.of(tensors)
        self.start = self.layout.flatten(tensors, np.empty(self.layout.size, np.float32))
        portions = [slice(first, first + PORTION) for first in range(0, ROWS, PORTION)]
        self._batches = [Batch(rows_of(x[own]), labels[own]) for own in portions]

    def compute(self, parameters: InProcessParameters, number: int) -> float:
        """Push the gradient of each portion at the trial; the sum of the losses."""
        versions = np.zeros(len(parameters.placement.spans), np.int64)
        trial, gradient = np.empty_like(self.start), np.empty_like(self.start)
        parameters.pull(trial, versions - 1, vector=TRIAL)
        total = 0.0
        for bundle, batch in enumerate(self._batches, 1):
            loss = self._model.loss_and_gradient(self.layout.views(trial), batch, self.layout.views(gradient))
            gradient *= np.float32(PORTION)
            parameters.push(gradient, versions, Push(WHO, 0, vector=ACCRUED, clock=number, bundle=bundle))
            total += PORTION * float(loss)
        return total


def iterates(passes: Passes, rules: StoppingRules, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """(iterations, N) parameters and (iterations,) objectives after each iteration."""
    parameters, method = serve(passes.start, make_rule("sgd", {}), shards), LbfgsDriver(rules, history=4)
    if method.penalty is not None:
        method.penalty.exempt = unpenalised(passes.layout)
    points, values = list[np.ndarray](), list[float]()
    with ExitStack() as stack:
        programs = [ProgramExecutor(shard) for shard in cast("list[Shard]", parameters.shards)]
        for one in programs:
            stack.callback(one.close)
        while method.phase is not Phase.ENDED:
            if method.phase in PASSES:
                method.record_pass(passes.compute(parameters, method.number), ROWS)
                continue
            program = method.program()
            method.record_scalars(together(program, [one.run(program) for one in programs]))
            if method.iterations > len(points):
                points.append(values_of(parameters))
                values.append(method.value)
    assert not method.failed, method.ended
    return np.array(points), np.array(values)


@pytest.mark.parametrize(
    "rules",
    [StoppingRules(l2=1e-3, iterations=ITERATIONS), StoppingRules(l1=1e-3, iterations=ITERATIONS)],
    ids=["l2", "l1"],
)
def test_the_number_of_shards_leaves_the_iterates_as_they_are(rules: StoppingRules) -> None:
    passes = Passes()
    points, values = iterates(passes, rules, 1)
    assert len(values) == ITERATIONS
    assert values[-1] < 0.8 * values[0], "it was trained"
    assert ((points[-1] == 0).mean() > 0.5) == (rules.l1 > 0)
    for shards in range(2, 8):
        others, found = iterates(passes, rules, shards)
        np.testing.assert_array_equal(others, points)
        np.testing.assert_allclose(found, values, rtol=1e-14)
