"""Workers of elastic averaging over shards in this process, and the equations to hold them against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.push import Pusher, PushResult, PushStats
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters
from dbelief.rundir.record import BatchRecorder
from dbelief.training.phases import PhaseTimer
from worker.strategies.elastic import Elastic, ElasticSettings

from .harness import HOST, Problem, pushes_of, serve

BATCH = 4
PLAIN = ElasticSettings(FetchPushSchedule(BATCH), lambda samples: 0.25, lambda rate: 0.125)


class Worker:
    """One replica, told lease by lease what to train."""

    def __init__(
        self,
        problem: Problem,
        centre: InProcessParameters,
        settings: ElasticSettings,
        number: int = 0,
        recorder: BatchRecorder | None = None,
    ) -> None:
        self.problem, self.done = problem, list[tuple[PushStats, PushResult]]()
        self._settings, self._sequence, self._samples, self._leases = settings, 0, 0, 0
        self.pusher = Pusher(number, 10 + number)
        self._elastic = Elastic(
            problem.make(),
            problem.layout.part(0),
            HOST,
            centre,
            self.pusher,
            problem,
            settings,
            PhaseTimer(),
            self._acknowledged,
            None if recorder is None else recorder.note,
        )
        self._recorder = recorder
        self.close = self._elastic.close

    def train(self, start: int, stop: int, clock: int | None = None, epoch: int = 0) -> None:
        clock = self._settings.cadence.steps(self._samples) if clock is None else clock
        self._leases += 1
        lease = DataLease(self._leases, epoch, start, stop, self._samples, clock)
        first_sequence = self._sequence + 1
        self._sequence += pushes_of(self._settings.cadence, lease.samples)
        self._samples += lease.samples
        self._elastic.train(lease, first_sequence)

    def _acknowledged(self, done: PushStats, pushed: PushResult) -> None:
        self.done.append((replace(done), pushed))
        if self._recorder is not None:
            self._recorder.acknowledged(done.sequence)

    @property
    def weights(self) -> np.ndarray:
        weights: np.ndarray = self._elastic._own.values.copy()
        return weights


@contextmanager
def working(
    problem: Problem, settings: ElasticSettings, workers: int = 1, in_step: bool = False, lock_free: bool = False
) -> Iterator[tuple[InProcessParameters, list[Worker]]]:
    """Workers that all begin at the same centre."""
    centre = serve(problem.start, make_rule("elastic", {}), replicas=workers if in_step else None, lock_free=lock_free)
    with ExitStack() as stack:
        made = [stack.enter_context(closing(Worker(problem, centre, settings, n))) for n in range(workers)]
        for worker in made:
            worker._elastic._begin()
        yield centre, made


def direct(
    problem: Problem,
    order: list[int],
    eta: float,
    a: float,
    mu: float | None = None,
    nesterov: bool = False,
    longest: float = np.inf,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The equations in a loop: centre and weights after each worker of `order` has had one mini-batch."""
    gradient, centre = problem.gradients(), problem.start.copy()
    weights = [centre.copy() for _ in range(max(order) + 1)]
    velocities = [np.zeros_like(centre) for _ in weights]
    number = np.float32
    for step, i in enumerate(order):
        w, v = weights[i], velocities[i]
        at = v * number(mu) + w if nesterov and mu is not None else w
        g = gradient(at, step * BATCH, (step + 1) * BATCH)
        length = float(np.dot(g, g)) ** 0.5
        g = (g * number(longest / length) if length > longest else g) * number(eta)
        difference = (w - centre) * number(a)
        centre = centre + difference
        if mu is None:
            weights[i] = (w - g) - difference
        else:
            velocities[i] = v * number(mu) - g
            weights[i] = (w + velocities[i]) - difference
    return centre, weights


class Bowl:
    """f = w^2 / 2 in two numbers, from 1."""

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"w": np.ones(2, np.float32)}

    def loss_and_gradient(self, views: Any, batch: object, out: Any) -> float:
        out["w"][:] = views["w"]
        return 0.0
