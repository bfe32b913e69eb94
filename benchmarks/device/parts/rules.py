"""Update rules on the device, as their formulas in CuPy, beside a copy of the device's memory in the same rounds.

A rule must move 4 (3 + 2 states) bytes a parameter (`dbelief bench apply`), a copy moves 8. CuPy runs a formula as one
kernel for each operation, so that it moves more than it must: the share says how much is left.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from benchmarks.device.findings import Findings
from dbelief.arrays.backend import Backend, select_backend
from dbelief.optim import RULES, Rule, make_rule
from dbelief.tools.bench import apply, kernels

COPY_BYTES = 8
"""A copy moves for each number."""
PARAMETERS, ROUNDS = 64_000_000, 15
SMALL_PARAMETERS, SMALL_ROUNDS = 4_096, 2


def measure(found: Findings, small: bool) -> None:
    """Time every rule on vectors that no cache holds."""
    backend = select_backend("cuda")
    parameters, rounds = (SMALL_PARAMETERS, SMALL_ROUNDS) if small else (PARAMETERS, ROUNDS)
    most = max(len(make_rule(name, {}).state) for name in RULES)
    vectors = [drawn(backend, parameters, seed) for seed in range(2 + most)]
    copies = [drawn(backend, parameters, seed) for seed in range(2)]
    for name in RULES:
        rule = make_rule(name, {})
        seconds = timed(rule, vectors, copies, rounds, backend)
        each = apply.bytes_each(rule)
        ours, copy = (
            bytes_ * parameters / statistics.median(seconds[turn]) / 1e9
            for turn, bytes_ in (("rule", each), ("copy", COPY_BYTES))
        )
        pairs = zip(seconds["rule"], seconds["copy"], strict=True)
        share = statistics.median(each / own / (COPY_BYTES / base) for own, base in pairs)
        found.figure(name, ours, "GB/s", {"copy": copy, "share of the copy's": share})


def drawn(backend: Backend, size: int, seed: int) -> Any:
    """(size,) float32 between 0 and 1: valid values for any of the vectors, including a sum of squares."""
    return backend.to_device(np.random.default_rng(seed).random(size, dtype=np.float32))


def timed(rule: Rule, vectors: list[Any], copies: list[Any], rounds: int, backend: Backend) -> dict[str, list[float]]:
    """Seconds of each round of the device, by turn."""
    w, g, *states = vectors[: 2 + len(rule.state)]
    step = 0

    def update() -> None:
        nonlocal step
        step += 1
        rule.apply_reference(backend.xp, w, g, tuple(states), apply.RATE, step)

    turns = {"copy": lambda: backend.xp.copyto(*copies), "rule": update}
    return kernels.in_turns(turns, rounds, backend)
