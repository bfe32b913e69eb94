"""Workers of a group in this process: ranks are threads, and what they do is all the worker's own but for the sockets.

There is no coordinator: `Workers` hands out blocks of leases as `coordinator.scheduling.groups` does, and settles them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dbelief import job
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import PushStats
from dbelief.training.phases import PhaseTimer
from worker.comm import Communicator
from worker.comm.engine import Engine
from worker.comm.threads import Group as Threads
from worker.comm.threads import ThreadEngine
from worker.rendezvous import GroupSpec
from worker.strategies.group import GroupTrainer, RankTraffic, ShardAccess
from worker.strategies.group_methods import AllreduceEasgd, AllreduceSgd

from .by_hand import Range, Rate
from .harness import HOST, Problem

DEADLINE_S = 120.0
AT_MOST = 20
"""Blocks that a training may need."""
BATCH, ETA, A = 4, 0.25, 0.125
"""Samples per mini-batch, learning rate, and moving rate of elastic averaging."""
RULES: list[dict[str, Any]] = [
    {"name": "momentum", "rate": 0.1, "mu": 0.9},
    {"name": "adam", "rate": 0.01},
    {"name": "adagrad", "rate": 0.05},
]


class Hall:
    """Where all workers meet, generation after generation.

    Attributes
    ----------
    engine
        Stands between a worker and its group: (generation, engine) to the engine that it gets.
    """

    def __init__(self) -> None:
        self.engine: Callable[[int, Engine], Engine] = lambda generation, engine: engine
        self._groups: dict[int, Threads] = {}
        self._lock = threading.Lock()

    def enter(self, group: GroupSpec) -> Communicator:
        with self._lock:
            met = self._groups.setdefault(group.generation, Threads(group.size))
        return Communicator(self.engine(group.generation, ThreadEngine(met, group.rank)), DEADLINE_S)


class InHall:
    """A `Meeting` of threads."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._comm: Communicator | None = None
        self._generation = 0

    def join(self, group: GroupSpec) -> tuple[Communicator, bool]:
        if self._comm is not None and self._generation == group.generation:
            return self._comm, False
        self._comm, self._generation = self._hall.enter(group), group.generation
        return self._comm, True

    def leave(self, error: BaseException | None = None) -> None:
        if self._comm is not None and error is not None:
            self._comm.abort(error)
        self._comm = None

    def close(self) -> None:
        self.leave()


@dataclass
class Worker:
    """One of them, and what it had after each step: rate, the job's parameters, and weights of its own, if any."""

    together: GroupTrainer
    method: AllreduceSgd | AllreduceEasgd
    done: list[PushStats] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    copies: list[np.ndarray] = field(default_factory=list)

    @property
    def weights(self) -> np.ndarray:
        """Its own."""
        assert isinstance(self.method, AllreduceEasgd)
        weights: np.ndarray = self.method._own.values.copy()
        return weights

    def has(self) -> list[bytes]:
        """All that its next step depends on."""
        arrays = [self.method.result, *self.method.state()]
        if isinstance(self.method, AllreduceEasgd):
            arrays.append(self.weights)
        return [array.tobytes() for array in arrays]


class Workers:
    """So many workers of a problem.

    Attributes
    ----------
    stored
        What the shards hold.

    Parameters
    ----------
    rate
        By samples leased before; None: the strategy's.
    moving_rate
        a of elastic averaging by eta; None: the strategy's.
    """

    def __init__(
        self,
        problem: Problem,
        strategy: job.SyncSgd | job.Elastic,
        count: int,
        rate: Rate | None = None,
        moving_rate: Callable[[float], float] | None = None,
    ) -> None:
        self.problem, self.strategy, self.hall = problem, strategy, Hall()
        self.stored = problem.start
        self._rate = rate or (lambda samples: strategy.rule.rate)
        self._moving_rate = moving_rate
        self.members = [self.new() for _ in range(count)]
        self._clock = self._samples = self._generation = self._written = 0
        self._lives: list[Worker] = []

    def new(self) -> Worker:
        """One more worker, which has nothing yet."""
        part, strategy = self.problem.layout.part(0), self.strategy
        method: AllreduceSgd | AllreduceEasgd
        if isinstance(strategy, job.SyncSgd):
            method = AllreduceSgd(self.problem.make(), part, HOST, strategy)
        else:
            moving = self._moving_rate or (lambda rate: strategy.moving_rate(rate, len(self.members)))
            method = AllreduceEasgd(self.problem.make(), part, HOST, strategy, moving)
        meeting: Any = InHall(self.hall)
        done: list[PushStats] = []
        shards = ShardAccess(self._read, self._write)
        batches, cadence = self.problem, FetchPushSchedule(strategy.batch)
        together = GroupTrainer(method, meeting, shards, batches, cadence, self._rate, PhaseTimer(), done.append)
        worker = Worker(together, method, done)
        made = method.step

        def step(batch: Any, weight: float, rate: float, summed: Callable[[], None]) -> float:
            loss = made(batch, weight, rate, summed)
            worker.rates.append(rate)
            worker.copies.append(method.result.copy())
            return loss

        method.step = step  # type: ignore[method-assign]
        return worker

    def _read(self, out: np.ndarray) -> None:
        out[:] = self.stored

    def _write(self, values: np.ndarray) -> None:
        self.stored = values.copy()

    def train(self, *leases: Range, at_most: int | None = None) -> int:
        """Train a range of samples on each worker, in as many blocks as it takes, or some; gives how many it took."""
        rest, whys, blocks = list(leases), [""], 0
        while blocks != at_most and (any(start < stop for start, stop in rest) or any(whys)):
            assert blocks < AT_MOST, f"{rest} is left, for {whys}"
            whys, blocks = self._block(rest), blocks + 1
            done = max(worker.together.steps for worker in self.members)
            left = [(min(start + done * self.strategy.batch, stop), stop) for start, stop in rest]
            self._samples += sum(after - before for (before, _), (after, _) in zip(rest, left, strict=True))
            self._clock += done
            self._written = self._written if any(whys) else self._clock
            rest = left
        return blocks

    def traffic(self, rank: int) -> RankTraffic:
        """What a worker's sums took from the others since the last generation began."""
        nobody = GroupSpec(self._generation, rank, tuple(map(str, range(len(self.members)))), (), 0, 0)
        traffic = self.members[rank].together.traffic(nobody)
        assert traffic is not None
        return traffic

    def _block(self, ranges: Sequence[Range]) -> list[str]:
        """Why it broke, for each of the workers; "" where it did not."""
        if [id(one) for one in self.members] != [id(one) for one in self._lives]:
            self._generation += 1
        self._lives = list(self.members)
        samples = tuple(stop - start for start, stop in ranges)
        addresses = tuple(map(str, range(len(ranges))))

        def train(rank: int) -> str:
            lease = DataLease(1, 0, *ranges[rank], self._samples, self._clock)
            return self.members[rank].together.train(
                lease, GroupSpec(self._generation, rank, addresses, samples, self._samples, self._written)
            )

        with ThreadPoolExecutor(len(ranges)) as threads:
            whys = list(threads.map(train, range(len(ranges))))
        self._lives = [] if any(whys) else self._lives
        return whys

    def close(self) -> None:
        for worker in self.members:
            worker.together.close()


def sgd(rule: dict[str, Any] | None = None, way: str = "tree", **more: Any) -> job.SyncSgd:
    """Synchronous SGD as a job file says it."""
    reduction = {"way": way, **more.pop("reduction", {})}
    rule = rule or {"name": "sgd", "rate": ETA}
    return job.SyncSgd.model_validate(
        {"name": "sync-sgd", "batch": BATCH, "rule": rule, "reduction": reduction, **more}
    )


def easgd(form: int, way: str = "tree", **fields: Any) -> job.Elastic:
    """Synchronous elastic averaging as a job file says it."""
    return job.Elastic.model_validate(
        {"name": "sync-easgd", "batch": BATCH, "rate": ETA, "rho": A / ETA, "form": form, "reduction": {"way": way}}
        | fields
    )


def workers(problem: Problem, strategy: job.SyncSgd | job.Elastic, count: int, **rates: Any) -> closing[Workers]:
    """Workers that end with the block."""
    return closing(Workers(problem, strategy, count, **rates))


def even(count: int, each: int) -> list[Range]:
    """Leases of equal length, side by side."""
    return [(i * each, (i + 1) * each) for i in range(count)]


def summed(way: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the workers' vectors, in the order in which that way adds them.

    server: one after another; tree: neighbours, then neighbours of these, …; ring: piece p begins with worker p.
    """
    own = [part.copy() for part in parts]
    if way == "tree":
        apart = 1
        while apart < len(own):
            for first in range(0, len(own) - apart, 2 * apart):
                own[first] += own[first + apart]
            apart *= 2
        return own[0]
    if way == "server":
        for part in own[1:]:
            own[0] += part
        return own[0]
    count, size = len(own), own[0].size
    total = np.empty_like(own[0])
    for p in range(count):
        piece = slice(p * size // count, (p + 1) * size // count)
        total[piece] = own[p][piece]
        for further in range(p + 1, p + count):
            total[piece] += own[further % count][piece]
    return total
