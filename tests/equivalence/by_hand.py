"""The algorithms by hand, on whole vectors, in NumPy formulas: what the system must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dbelief.optim import Rule
from tests.equivalence.harness import Problem

Range = tuple[int, int]
Rate = Callable[[int], float]


class Server:
    """w and a rule's state as whole vectors, in NumPy formulas."""

    def __init__(self, start: np.ndarray, rule: Rule) -> None:
        self.w = start.copy()
        self.rule = rule
        self.states = tuple(np.full_like(start, value) for value in rule.state.values())
        self.step = 0

    def push(self, gradient: np.ndarray, rate: float) -> None:
        self.step += 1
        self.rule.apply_reference(np, self.w, gradient, self.states, np.float32(rate), self.step)


def minibatches(leases: Sequence[Range], batch: int) -> list[Range]:
    """(start, stop) of every mini-batch, lease by lease; the last of a lease may be short."""
    return [(a, min(a + batch, stop)) for start, stop in leases for a in range(start, stop, batch)]


def sequential(problem: Problem, leases: Sequence[Range], batch: int, rule: Rule, rate: float | Rate) -> np.ndarray:
    """One gradient after another, each from the newest parameters."""
    server, gradient, samples = Server(problem.start, rule), problem.gradients(), 0
    for start, stop in minibatches(leases, batch):
        server.push(gradient(server.w, start, stop), rate(samples) if callable(rate) else rate)
        samples += stop - start
    return server.w


def pseudocode(
    problem: Problem,
    leases: Sequence[Range],
    batch: int,
    rule: Rule,
    rate: float,
    n_fetch: int,
    n_push: int,
    literal: bool,
    local_rate: float | None = None,
) -> np.ndarray:
    """Algorithm 7.1 line by line, its step counted from each lease's start, with the rest pushed at a lease's end."""
    server, gradient = Server(problem.start, rule), problem.gradients()
    alpha = np.float32(rate if local_rate is None else local_rate)
    for lease in leases:
        accrued = np.zeros_like(server.w)
        batches = minibatches([lease], batch)
        for step, (start, stop) in enumerate(batches):
            if step % n_fetch == 0:
                parameters = server.w.copy()
            g = gradient(parameters, start, stop)
            accrued = accrued + g
            parameters = parameters - alpha * g
            if (step if literal else step + 1) % n_push == 0 or step == len(batches) - 1:
                server.push(accrued, rate)
                accrued = np.zeros_like(server.w)
    return server.w


def gap(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference of two vectors, measured by the largest number of the second."""
    return float(np.abs(a - b).max() / np.abs(b).max())
