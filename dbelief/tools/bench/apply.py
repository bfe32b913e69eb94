"""`dbelief bench apply`: speed at which a shard applies each update rule, relative to the memory bandwidth.

A rule reads and writes long vectors once each and computes little, so memory bandwidth limits it. The baseline is a
STREAM-like triad, a = b + s c, compiled in the same way and cut into the same segments. Rule, triad and, where torch
can be imported, torch's fused optimiser alternate within each round, so that other load on the machine affects all
three; the reported numbers are medians over the rounds.

Bytes are what the formula must move: the triad reads two vectors and writes one, 12 bytes an element; a rule reads w,
g and its states and writes w and its states, so 4 (3 + 2 states). The extra read that a store to uncached memory costs
is counted for neither. It slows only the triad, which is why a rule at the limit has a ratio above 1.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dbelief.arrays.backend import aligned
from dbelief.core.layout import SegmentSpan, make_segments, nominal_length
from dbelief.optim import RULES, Rule, make_rule
from dbelief.optim.rules.fused_kernel import fused

TRIAD_BYTES = 12
"""Bytes the triad moves for each element."""

RATE = np.float32(1e-6)
"""Learning rate, so small that the parameters hardly change in any number of rounds."""

TORCH: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "caffe-momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adagrad": ("Adagrad", {}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
}
"""For each rule the equivalent class of torch.optim and its options; Caffe's at a constant rate. FTRL has none."""


@dataclass(frozen=True)
class TimedRule:
    """Measurements of one rule.

    Attributes
    ----------
    bytes_each
        Bytes moved per parameter.
    seconds, triad_seconds
        Median time of one pass over all parameters.
    x
        The rule's bytes per second over the triad's.
    over_torch
        Our time over torch's; None where torch is not installed.
    """

    bytes_each: int
    seconds: float
    triad_seconds: float
    x: float
    over_torch: float | None = None


@fused(states=1, scalars=1)
def _triad(a, b, c, s):  # type: ignore[no-untyped-def]
    for i in range(a.size):
        a[i] = b[i] + s * c[i]


def bytes_each(rule: Rule) -> int:
    """Bytes that a rule must move per parameter: w, g and states are read, w and states written."""
    return 4 * (3 + 2 * len(rule.state))


def measure(parameters: int, rounds: int, threads: int) -> dict[str, TimedRule]:
    """Time every rule on `parameters` float32 parameters, stored and cut as in one shard.

    Memory: 28 bytes a parameter, plus torch's own, at most 8.

    Parameters
    ----------
    rounds
        Each times triad, rule and torch once; one more round comes first and is not counted.
    threads
        Threads that share the segments, and torch's number of threads.
    """
    spans = make_segments([(0, parameters)], nominal_length(parameters, shards=1))
    shares = [spans[len(spans) * n // threads : len(spans) * (n + 1) // threads] for n in range(threads)]
    w, g, *rest = (_drawn(parameters, seed) for seed in range(7))
    a, b, c, states = *rest[:3], rest[3:]
    with ThreadPoolExecutor(threads) as pool:
        return {
            name: _one(make_rule(name, {}), (w, g, states), (a, b, c), _over(shares, pool), rounds, threads)
            for name in RULES
        }


def _drawn(size: int, seed: int) -> np.ndarray:
    """(size,) float32 between 0 and 1: valid values for any of the vectors, including a sum of squares."""
    values = aligned(size, np.float32)
    np.random.default_rng(seed).random(out=values, dtype=np.float32)
    return values


OverSpans = Callable[[Callable[[slice], None]], None]


def _over(shares: Sequence[Sequence[SegmentSpan]], pool: ThreadPoolExecutor) -> OverSpans:
    """Return a function that runs another on each segment, with one thread for each share."""

    def share_of(run: Callable[[slice], None], spans: Sequence[SegmentSpan]) -> None:
        for span in spans:
            run(slice(span.start, span.stop))

    def over(run: Callable[[slice], None]) -> None:
        if len(shares) == 1:
            share_of(run, shares[0])
        else:
            list(pool.map(share_of, [run] * len(shares), shares))

    return over


def _one(
    rule: Rule,
    held: tuple[np.ndarray, np.ndarray, list[np.ndarray]],
    abc: tuple[np.ndarray, np.ndarray, np.ndarray],
    over: OverSpans,
    rounds: int,
    threads: int,
) -> TimedRule:
    w, g, spare = held
    a, b, c = abc
    states = spare[: len(rule.state)]
    step = 0

    def apply() -> None:
        nonlocal step
        step += 1
        over(lambda part: rule.apply(w[part], g[part], tuple(state[part] for state in states), RATE, step))

    turns: list[Callable[[], Any]] = [lambda: over(lambda part: _triad(a[part], b[part], c[part], 0.5)), apply]
    theirs = _torch_step(rule.name, w, g, threads)
    turns += [theirs] if theirs is not None else []
    seconds = [[_seconds(turn) for turn in turns] for _ in range(1 + rounds)][1:]
    each, (triad, ours, *_) = bytes_each(rule), map(statistics.median, zip(*seconds, strict=True))
    return TimedRule(
        each,
        ours,
        triad,
        statistics.median(each / own / (TRIAD_BYTES / base) for base, own, *_ in seconds),
        statistics.median(own / other for _, own, other in seconds) if theirs is not None else None,
    )


def _seconds(turn: Callable[[], Any]) -> float:
    began = time.perf_counter()
    turn()
    return time.perf_counter() - began


def _torch_step(name: str, w: np.ndarray, g: np.ndarray, threads: int) -> Callable[[], Any] | None:
    """Make a step of torch's fused optimiser on the same vectors, with its own states; None where there is none."""
    if name not in TORCH:
        return None
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    weights = torch.nn.Parameter(torch.from_numpy(w))
    weights.grad = torch.from_numpy(g)
    made, options = TORCH[name]
    step: Callable[[], Any] = getattr(torch.optim, made)([weights], lr=float(RATE), fused=True, **options).step
    return step


def figures(parameters: int, rounds: int, threads: int, results: dict[str, TimedRule]) -> dict[str, Any]:
    """All measurements by name: `RULE_x`, `RULE_bytes`, `RULE_seconds`, `RULE_over_torch`."""
    found: dict[str, Any] = {
        "parameters": parameters,
        "rounds": rounds,
        "threads": threads,
        "triad_bytes": TRIAD_BYTES,
        "triad_seconds": statistics.median(one.triad_seconds for one in results.values()),
    }
    for name, one in results.items():
        found[f"{name}_x"] = one.x
        found[f"{name}_bytes"] = one.bytes_each
        found[f"{name}_seconds"] = one.seconds
        if one.over_torch is not None:
            found[f"{name}_over_torch"] = one.over_torch
    return found


def show(parameters: int, results: dict[str, TimedRule]) -> None:
    """Print the measurements as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("rule", "bytes a parameter", "ms", "GB/s", "x of the triad", "time over torch's fused")
    for name, one in results.items():
        speed = one.bytes_each * parameters / one.seconds / 1e9
        torch = "" if one.over_torch is None else f"{one.over_torch:.2f}"
        table.add_row(name, str(one.bytes_each), f"{one.seconds * 1e3:.1f}", f"{speed:.1f}", f"{one.x:.2f}", torch)
    Console().print(table)
