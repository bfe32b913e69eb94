"""Replicas over shards in this process: the worker's client and the shards themselves, no port and no program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dbelief.arrays.backend import Backend, aligned
from dbelief.core.layout import Layout, assign_segments, make_segments
from dbelief.core.lease import DataLease, FetchPushSchedule
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import AppliedPush, LedgerRow, Push, Pusher, PushResult
from dbelief.data import load, permutation
from dbelief.job import Job, build_job
from dbelief.nn import Array, Batch, Model, build_network
from dbelief.optim import Rule
from dbelief.rpc.in_process import InProcessParameters
from dbelief.rundir.record import BatchRecorder
from dbelief.training.phases import PhaseTimer
from dbelief.training.session import build_model
from ps_server.store.shard import Shard
from worker.pipeline.buffers import GradientBuffer
from worker.strategies.downpour import Downpour, DownpourSettings

HOST = Backend("numpy", np)
Rate = Callable[[int], float]


@dataclass(frozen=True)
class Quadratic:
    """f(w) = w'Hw / 2 - b'w + noise'w, with the mean of a batch's inputs as noise; all float32."""

    h: np.ndarray
    b: np.ndarray
    start: np.ndarray

    def parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"w": self.start.copy()}

    def loss_and_gradient(self, views: Mapping[str, Array], batch: Batch, out: Mapping[str, Array]) -> float:
        w, noise = views["w"], batch.inputs.mean(axis=0)
        out["w"][:] = self.h @ w - self.b + noise
        return float(w @ (self.h @ w) / 2 - self.b @ w + noise @ w)


@dataclass(frozen=True)
class Problem:
    """A model, made anew for each thread, and the samples it is trained on: epoch after epoch, in order."""

    make: Callable[[], Model]
    inputs: np.ndarray
    targets: np.ndarray
    epochs: int = 1

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return dict(self.make().parameters(np.random.default_rng(1)))

    @property
    def layout(self) -> Layout:
        return Layout.of(self.tensors)

    @property
    def start(self) -> np.ndarray:
        return self.layout.flatten(self.tensors, aligned(self.layout.size, np.float32))

    def batch(self, epoch: int, start: int, stop: int) -> Batch:
        before = epoch * (len(self.inputs) // self.epochs)
        return Batch(self.inputs[before + start : before + stop], self.targets[before + start : before + stop])

    def expect(self, epoch: int, start: int, stop: int) -> None:
        """As a loader of mini-batches; all samples are in memory."""

    __call__ = batch

    def gradients(self) -> Callable[[np.ndarray, int, int], np.ndarray]:
        """gradient(w, start, stop): a fresh (N,) float32 array."""
        model, layout = self.make(), self.layout
        here, out = aligned(layout.size, np.float32), aligned(layout.size, np.float32)

        def gradient(w: np.ndarray, start: int, stop: int) -> np.ndarray:
            here[:] = w  # where a replica's copy lies: BLAS may look at the address
            model.loss_and_gradient(layout.views(here), self.batch(0, start, stop), layout.views(out))
            return out.copy()

        return gradient


def quadratic(samples: int, size: int = 23) -> Problem:
    """A convex quadratic with noisy gradients."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(size, size))
    h = (q @ q.T / size + 0.1 * np.eye(size)).astype(np.float32)
    b, start = rng.normal(size=(2, size)).astype(np.float32)
    noise = (0.1 * rng.normal(size=(samples, size))).astype(np.float32)
    model = Quadratic(h, b, start)
    return Problem(lambda: model, noise, np.zeros(samples, np.int64))


def network(samples: int) -> Problem:
    """7 inputs, two layers, 3 classes: 83 parameters in 4 tensors."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(samples, 7)).astype(np.float32)
    targets = (inputs @ rng.normal(size=(7, 3))).argmax(axis=1).astype(np.int64)
    layers = [("dense", {"units": 7}), ("tanh", {}), ("dense", {"units": 3})]
    return Problem(
        lambda: build_network(layers, "softmax_cross_entropy", features=7, outputs=3, backend=HOST), inputs, targets
    )


# -- the system --------------------------------------------------------------------------------------------------


def serve(
    start: np.ndarray,
    rule: Rule,
    shards: int = 2,
    nominal: int | None = None,
    replicas: int | None = None,
    on_apply: Callable[[AppliedPush], None] | None = None,
    staleness: int = 0,
    staleness_aware: bool = False,
    lock_free: bool = False,
) -> InProcessParameters:
    """Shards that hold `start` and are ready; with the staleness dial where `replicas` says for how many."""
    spans = make_segments([(0, len(start))], nominal or max(1, len(start) // (2 * shards)))
    places = tuple(ShardPlacement(n, "", 0, (run,)) for n, run in enumerate(assign_segments(spans, shards)))
    placement = Placement(1, tuple(spans), places)
    dial = None if replicas is None else staleness
    held = [
        Shard(placement.run(p), rule, dial, on_apply, staleness_aware, lock_free=lock_free) for p in placement.places
    ]
    parameters = InProcessParameters(held, placement, timeout_s=60.0)
    parameters.push(start, np.zeros(len(spans), np.int64), Push(Pusher(999, 999), 1, assign=True))
    for shard in held:
        shard.make_ready()
        if replicas is not None:
            shard.set_membership(1, [(0, range(replicas))])
    return parameters


def values_of(parameters: InProcessParameters) -> np.ndarray:
    """The whole vector as the shards hold it now."""
    out = aligned(parameters.placement.size, np.float32)
    parameters.pull(out, np.full(len(parameters.placement.spans), -1, np.int64))
    return out


def pushes_of(cadence: FetchPushSchedule, samples: int) -> int:
    """Number of pushes of a lease of so many samples."""
    steps = cadence.steps(samples)
    return sum(cadence.pushes_after(step, steps) for step in range(steps))


@dataclass(frozen=True)
class Acknowledged:
    """A push that is done: mini-batches and samples behind it, versions it was computed from, and its ledger row."""

    steps: int
    samples: int
    versions: tuple[int, ...]
    staleness: float
    row: LedgerRow


class Replica:
    """The worker's own client, without a coordinator: `train` is told which samples."""

    def __init__(
        self,
        problem: Problem,
        parameters: InProcessParameters,
        settings: DownpourSettings,
        number: int = 0,
        life: int | None = None,
    ) -> None:
        self.pusher = Pusher(number, number + 1 if life is None else life)
        self.pushes: list[Acknowledged] = []
        self.fetched: list[tuple[int, ...]] = []
        self._recorder = BatchRecorder()
        self._cadence = settings.cadence
        self._sequence = self._samples = self._clock = self._leases = 0
        self._downpour = Downpour(
            problem.make(),
            problem.layout.part(0),
            HOST,
            parameters,
            self.pusher,
            problem,
            settings,
            PhaseTimer(),
            self._acknowledged,
            self._noted,
        )
        self.close = self._downpour.close

    def train(self, start: int, stop: int, epoch: int = 0) -> None:
        """Train one lease of samples [start, stop)."""
        self._leases += 1
        lease = DataLease(self._leases, epoch, start, stop, self._samples, self._clock)
        first_sequence = self._sequence + 1
        self._sequence += pushes_of(self._cadence, lease.samples)
        self._samples += lease.samples
        self._clock += self._cadence.steps(lease.samples)
        self._downpour.train(lease, first_sequence)

    def write_record(self, folder: Path) -> None:
        self._recorder.write(folder, self.pusher)

    def _acknowledged(self, slot: GradientBuffer, pushed: PushResult) -> None:
        self._recorder.acknowledged(slot.sequence)
        row = LedgerRow(slot.sequence, slot.lease, slot.position)
        versions = tuple(slot.versions.tolist())
        self.pushes.append(Acknowledged(slot.steps, slot.samples, versions, pushed.staleness, row))

    def _noted(self, lease: DataLease, step: int, sequence: int, versions: np.ndarray) -> None:
        self.fetched.append(tuple(versions.tolist()))
        self._recorder.note(lease, step, sequence, versions)


def replica(
    problem: Problem, parameters: InProcessParameters, settings: DownpourSettings, number: int = 0
) -> closing[Replica]:
    """A replica whose threads end with the block."""
    return closing(Replica(problem, parameters, settings, number))


def small_job(folder: Path, strategy: dict[str, Any], **fields: Any) -> Job:
    """A job of digits, which is recorded; its file is in the folder."""
    usual = {
        "name": "small",
        "model": {"layers": [{"dense": 40}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"},
        "data": {"source": "digits"},
        "limits": {"samples": 1000},
        "shards": 3,
        "replicas": 3,
        "seed": 1,
        "record": True,
        "device": "cpu",
    }
    job = build_job({**usual, "strategy": strategy, **fields}, folder)
    (folder / "job.yaml").write_text(job.to_yaml())
    return job


def two_epochs(job: Job) -> Problem:
    """The job's model on its training samples, in the order of two epochs."""
    data = load(job.data, job.folder)
    assert data.train is not None
    order = np.concatenate([permutation(len(data.train), job.seed, epoch) for epoch in range(2)])
    samples = data.train.gather(order, data.train.buffer(len(order)))
    return Problem(lambda: build_model(job, data, HOST)[0], samples.inputs, samples.targets, epochs=2)


def in_threads(*work: Callable[[], object], mixed: bool = False) -> None:
    """Each in a thread of its own; the error of one of them is raised. `mixed`: they take turns often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5 if mixed else interval)
    try:
        with ThreadPoolExecutor(len(work)) as threads:
            for done in [threads.submit(one) for one in work]:
                done.result()
    finally:
        sys.setswitchinterval(interval)


def settings(
    rate: float | Rate,
    batch: int,
    n_fetch: int = 1,
    n_push: int = 1,
    literal: bool = False,
    local_rate: float | None = None,
    overlap: bool = False,
    clip_norm: float | None = None,
) -> DownpourSettings:
    cadence = FetchPushSchedule(batch, n_fetch, n_push, literal)
    return DownpourSettings(cadence, rate if callable(rate) else lambda samples: rate, local_rate, overlap, clip_norm)
