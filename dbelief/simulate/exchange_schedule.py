"""The exchanges of a job's strategy, as the event loop repeats them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dbelief.core.reduction_tree import named
from dbelief.errors import UserError
from dbelief.job import Asynchronous, Diloco, Downpour, Elastic, Job, Sandblaster, SyncSgd
from dbelief.job.strategies.synchronous import Reduction
from dbelief.plan.allreduce_cost import Link
from dbelief.plan.communication_cost import predict
from dbelief.plan.shard_traffic import fetched_bytes, pushed_bytes

from .events.exchanges import FETCH, PUSH
from .events.parts import MOST_EXCHANGES

ALL = 1 << 40
"""A quorum of all members; and mini-batches of a whole segment."""
AUTO_GRACE = 1 / 32


@dataclass(frozen=True)
class ExchangeSchedule:
    """What one replica exchanges, which repeats.

    Attributes
    ----------
    steps, kind, beside
        Of each exchange: mini-batches before it, its kind, and mini-batches that it travels beside.
    pushed, fetched, numbers
        Bytes of an exchange, and its parameters.
    begins
        Whether a lease begins with a fetch.
    at_once
        Whether a push is answered with parameters in the same call, without a request of their own.
    ahead
        See `Schedule`.
    summed
        Bytes that all workers send for a sum among themselves.
    bound, quorum, grace, grace_s, sum_s
        See `Schedule`.
    """

    steps: tuple[int, ...]
    kind: tuple[int, ...]
    beside: tuple[int, ...]
    pushed: float
    fetched: float
    numbers: float
    begins: bool = True
    at_once: bool = False
    ahead: bool = False
    summed: float = 0.0
    bound: int = -1
    quorum: int = 0
    grace: float = 0.0
    grace_s: float = 0.0
    sum_s: float = 0.0

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`steps`, `kind` and `beside` for the event loop."""
        steps, kind, beside = (np.array(values, np.int64) for values in (self.steps, self.kind, self.beside))
        return steps, kind, beside


def schedule_of(job: Job, parameters: int, workers: int, latency_s: float, byte_s: float) -> ExchangeSchedule:
    """The exchanges of a job.

    Parameters
    ----------
    parameters
        Number of trained parameters.
    latency_s, byte_s
        Of a message between two workers, one way; seconds of a byte on the slowest link: for sums among workers.

    Raises
    ------
    UserError
        The strategy is not one that is simulated.
    """
    strategy = job.strategy
    pushed, fetched = float(pushed_bytes(job.wire, parameters)), float(fetched_bytes(job.wire, parameters))
    if isinstance(strategy, Sandblaster):  # of a bundle, see `passes`
        return ExchangeSchedule((1,), (PUSH | FETCH,), (0,), pushed, fetched, parameters)
    if strategy.turns:
        raise UserError(f"{strategy.name}: replicas that take turns are not simulated; async-easgd is")
    if strategy.grouped:
        assert isinstance(strategy, SyncSgd | Elastic)
        period = strategy.period if isinstance(strategy, Elastic) else 1
        return _in_group(job, strategy, period, parameters, workers, latency_s, byte_s)
    if isinstance(strategy, Diloco):
        return _diloco(strategy, pushed, fetched, parameters)
    if isinstance(strategy, Elastic):
        quorum = 0 if strategy.staleness is None else ALL
        return ExchangeSchedule(
            (strategy.period,), (PUSH | FETCH,), (1,), pushed, fetched, parameters, False, True, quorum=quorum
        )
    return _downpour(strategy, pushed, fetched, parameters)


def _downpour(
    strategy: Downpour | Asynchronous | SyncSgd, pushed: float, fetched: float, parameters: int
) -> ExchangeSchedule:
    """Pushes and fetches of gradients and parameters, by their periods."""
    whole = math.lcm(strategy.n_push, strategy.n_fetch)
    if whole > MOST_EXCHANGES:
        raise UserError(
            f"n_push and n_fetch repeat after {whole:,} mini-batches: at most {MOST_EXCHANGES:,} are simulated"
        )
    steps, kinds, beside, last = [], [], [], 0
    for step in range(1, whole + 1):
        kind = PUSH * (step % strategy.n_push == 0) | FETCH * (step % strategy.n_fetch == 0)
        if kind:
            steps.append(step - last)
            kinds.append(kind)
            # A push that no fetch follows travels beside computing, and so does all with `overlap`.
            beside.append(ALL if strategy.overlap or not kind & FETCH else 0)
            last = step
    bound = strategy.staleness
    return ExchangeSchedule(
        tuple(steps),
        tuple(kinds),
        tuple(beside),
        pushed,
        fetched,
        parameters,
        not strategy.overlap,
        ahead=strategy.overlap,
        bound=bound or -1,
        quorum=ALL if bound == 0 else 0,
    )


def _diloco(strategy: Diloco, pushed: float, fetched: float, parameters: int) -> ExchangeSchedule:
    """Rounds: a fragment after each part of the steps."""
    parts = strategy.fragments
    ends = [round(strategy.steps * (part + 1) / parts) for part in range(parts)]
    steps = tuple(end - before for end, before in zip(ends, [0, *ends], strict=False))
    return ExchangeSchedule(
        steps,
        (PUSH | FETCH,) * parts,
        (strategy.delay,) * parts,
        pushed / parts,
        fetched / parts,
        parameters / parts,
        quorum=strategy.quorum or ALL,
        grace=AUTO_GRACE if strategy.grace is None else 0.0,
        grace_s=strategy.grace or 0.0,
    )


def _in_group(
    job: Job, strategy: SyncSgd | Elastic, period: int, parameters: int, workers: int, latency_s: float, byte_s: float
) -> ExchangeSchedule:
    """Sums that the workers make among themselves."""
    reduction = strategy.reduction
    size = (2 if reduction.wire else 4) * parameters
    sum_s = _sum_s(reduction, workers, size, parameters, latency_s, byte_s) if workers > 1 else 0.0
    summed = 2.0 * (workers - 1) * size  # of every way: what is sent by one rank instead of another
    beside = ALL if isinstance(strategy, Elastic) and strategy.form == 3 else 0
    return ExchangeSchedule(
        (period,), (PUSH,), (beside,), 0.0, 0.0, 0.0, begins=False, summed=summed, quorum=ALL, sum_s=max(sum_s, 1e-9)
    )


def _sum_s(reduction: Reduction, ranks: int, size: float, numbers: int, latency_s: float, byte_s: float) -> float:
    """Seconds of a sum: those of its bytes, by the formulas of `allreduce_cost`, and the latency of its longest path.

    Messages of several ranks to one are on their way at the same time, so that the latency counts by levels.
    """
    bytes_s = predict(reduction.way, ranks, size, numbers, Link(0.0, byte_s), reduction.chunk, reduction.arity).seconds
    tree = None if reduction.way == "ring" else named(reduction.way, ranks, reduction.arity)
    levels = ranks - 1 if tree is None else max(tree.depth(rank) for rank in range(ranks))
    return bytes_s + 2 * levels * latency_s
