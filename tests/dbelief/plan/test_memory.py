"""Planned bytes equal the bytes allocated by a real rank, shard or method."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from coordinator.sandblaster.lbfgs_driver import PASSES, LbfgsDriver, Phase, StoppingRules
from dbelief.arrays.backend import aligned_float32, select_backend
from dbelief.arrays.push_source import PushSource
from dbelief.core.layout import Layout
from dbelief.core.push import Push, Pusher, PushResult
from dbelief.core.ranks import SingleRank
from dbelief.core.touched_count import TOUCHED_BYTES
from dbelief.data import Dataset, Split, load
from dbelief.job import Job, Sandblaster
from dbelief.nn import Batch
from dbelief.optim import RULES, make_rule, warm_up
from dbelief.partition import Grid, layout_of
from dbelief.plan import make_plan
from dbelief.plan.job_plan import placed
from dbelief.plan.memory import METHOD, SET, TOUCHED, machine_bytes, shard_memory
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.sparse.table import pack
from dbelief.training.initial_values import InitialValues
from dbelief.training.phases import PhaseTimer
from dbelief.training.session import build_model, initial_values
from ps_server.store.shard import Shard
from tests.jobs import small_job
from tests.local_vectors import LocalSpace
from tests.traced import traced
from tests.worker.strategies.test_sandblaster import Coordinator
from worker.comm import Communicator, run_ranks
from worker.partition import build_partitioned
from worker.replica import Replica
from worker.strategies import factory

MODEL = {"autoencoder": {"window": 8, "block": 4, "maps": 4, "pool": 3, "image": [64, 64, 1]}}
DOWNPOUR = {"name": "downpour", "batch": 32, "rule": {"name": "adam", "rate": 0.1}, "lease": None}
EASGD = {"name": "async-easgd", "rate": 0.1}
MEASGD = {"name": "async-measgd", "rate": 0.1, "nesterov": True}
TURNS = {"name": "easgd", "rate": 0.1}
ASYNC = {"name": "async-msgd", "rate": 0.1, "batch": 32}
DILOCO = {"name": "diloco", "batch": 32, "inner": {"name": "sgd", "rate": 0.1}}
SANDBLASTER = {"name": "sandblaster", "portion": 32, "iterations": 3}


def job(strategy: dict[str, Any], **fields: Any) -> Job:
    all_fields: dict[str, Any] = {
        "data": {"source": "npz", "file": "nowhere.npz", "validation": 0.1},
        "limits": {"samples": 1000},
        "model": MODEL,
        "device": "cpu",
    }
    return small_job(strategy=strategy, **{**all_fields, **fields})


ALL = [DOWNPOUR, ASYNC, SANDBLASTER, EASGD, MEASGD, TURNS]


def images() -> Dataset:
    """40 images of 64 by 64 pixels, of 10 classes."""
    train = Split(np.zeros((40, 64, 64, 1), np.float32), np.zeros(40, np.int64))
    return Dataset(train, None, None, classes=10, features=(64, 64, 1))


@pytest.mark.parametrize("strategy", ALL, ids=lambda strategy: strategy["name"])
def test_a_replica_has_the_buffers_that_are_planned(strategy: dict[str, Any]) -> None:
    planned = job(strategy)
    data = images()
    model, _ = build_model(planned, data, select_backend("cpu"))
    layout, _ = initial_values(planned, model)
    session = SimpleNamespace(
        member=None,
        sequences={},
        job=planned, data=data, ranks=SingleRank(), part=layout.part(0), backend=select_backend("cpu"), pusher=None,
        parameters=SimpleNamespace(placement=placed(layout, 2), array=aligned_float32),
    )  # fmt: skip
    replica, held, _ = traced(lambda: Replica(session, model, None, threading.Event()))  # type: ignore[arg-type]
    for threads in (replica._trainer, replica._bundle_worker):
        if threads is not None:
            threads.close()
    memory = dict(make_plan(planned).ranks[0].memory.host)
    for later in ("activations", "exchange", "evaluation's copy"):
        del memory[later]
    assert held == pytest.approx(sum(memory.values()), rel=0.02)


LAYERS = {
    "layers": [
        {"image": {"height": 64, "width": 64}},
        {"max_pool": 2},
        {"dense": 500},
        "tanh",
        {"dense": 200},
        "relu",
        {"dense": 10},
    ],
    "loss": "softmax_cross_entropy",
}


def sent(source: PushSource, size: int) -> None:
    """Read all values as a push does, a thousand at a time."""
    for _ in source.blocks([(first, min(size, first + 1_000)) for first in range(0, size, 1_000)]):
        pass


def test_autoencoder_is_held_once_while_it_is_sent() -> None:
    planned = job(DOWNPOUR)
    model, _ = build_model(planned, images(), select_backend("cpu"))
    values = InitialValues.of(planned, model)
    _, _, most = traced(lambda: sent(values.source(), values.layout.size))
    assert most == pytest.approx(make_plan(planned).ranks[0].memory.start, rel=0.05)


def test_layers_are_not_held_while_they_are_sent() -> None:
    planned = job(DOWNPOUR, model=LAYERS)
    model, _ = build_model(planned, images(), select_backend("cpu"))
    values, held, _ = traced(lambda: InitialValues.of(planned, model))
    _, _, most = traced(lambda: sent(values.source(), values.layout.size))
    assert make_plan(planned).ranks[0].memory.start == 0
    assert max(held, most) < 4 * values.layout.size / 20


@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 2)], ids=str)
@pytest.mark.parametrize(("model", "more"), [(MODEL, 1.25), (LAYERS, 1.5)], ids=["autoencoder", "layers"])
def test_activations_of_a_step(model: dict[str, Any], more: float, grid: Grid) -> None:
    """All ranks of one process have what is planned for them, and little more: what layers keep for themselves."""
    planned = job(DOWNPOUR, grid=[grid.rows, grid.columns], model=model)
    batch = Batch(np.zeros((32, 64, 64, 1), np.float32), np.zeros(32, np.int64))
    whole, _ = build_model(planned, images(), select_backend("cpu"))

    def rank(comm: Communicator) -> Any:
        mine = build_partitioned(whole, comm, grid) if comm.size > 1 else whole
        own = layout_of(whole, grid)
        views, out = (own.views(vector, comm.rank) for vector in vectors)
        mine.loss_and_gradient(views, batch, out)
        return mine

    def step() -> list[Any]:
        return run_ranks(grid.size, rank)

    _, flat = initial_values(planned, whole)
    vectors = flat, np.empty_like(flat)
    _, held, _ = traced(step)
    ranks = make_plan(planned).ranks
    expected = sum(rank.memory.host["activations"] + rank.memory.host["exchange"] for rank in ranks)
    assert expected <= held <= more * expected


@pytest.mark.parametrize("rule", [*RULES, "elastic"])
def test_a_shard_has_the_rules_state(rule: str) -> None:
    planned = job({**DOWNPOUR, "rule": {"name": rule, "rate": 0.1}} if rule != "elastic" else EASGD)
    numbers = 1_000_000
    placement = placed(Layout.whole({"weight": (numbers,)}), 1)
    values = np.zeros(numbers, np.float32)

    def made() -> Shard:
        shard = Shard(placement.spans, make_rule(rule, {}))
        for number, push in enumerate([Push(Pusher(0, 1), 1, assign=True), Push(Pusher(0, 1), 2, np.float32(0.1))]):
            for span in placement.spans:
                shard.push(push, span.index, values[span.start : span.stop])
            if number == 0:
                shard.make_ready()
        return shard

    warm_up(make_rule(rule, {}))
    _, held, _ = traced(made)
    planned_bytes = shard_memory(planned, numbers)
    planned_bytes.pop("answers kept for repetition", None)  # nobody has exchanged yet
    copies = planned_bytes.pop(SET)  # none is written
    assert held == pytest.approx(sum(planned_bytes.values()), rel=0.02)

    def written() -> Shard:
        shard = made()
        for segment in shard.segments.values():
            segment.begin_snapshot()
        for span in placement.spans:
            shard.push(Push(Pusher(0, 1), 3, np.float32(0.1)), span.index, values[span.start : span.stop])
        return shard

    _, marked, _ = traced(written)
    assert marked - held == pytest.approx(copies, rel=0.05)


def test_shard_memory_includes_strategy_state() -> None:
    plain = sum(shard_memory(job(DOWNPOUR), 1000).values())
    best = shard_memory(job(DOWNPOUR, evaluate={"keep": "best"}), 1000)
    assert sum(best.values()) - plain == 2 * 4000
    waiting = shard_memory(job({**DOWNPOUR, "staleness": 0}, replicas=5), 1000)
    assert sum(waiting.values()) - plain == 5 * 4000


@pytest.mark.parametrize(("history", "l1"), [(1, 0.0), (4, 0.0), (4, 0.1)])
def test_a_batch_method_has_so_many_vectors(history: int, l1: float) -> None:
    start = np.linspace(-1.2, 1.5, 6)
    space = LocalSpace({"w": start, "accrued": np.zeros(6)})
    method = LbfgsDriver(StoppingRules(l1=l1, iterations=10), history)
    while method.phase is not Phase.ENDED:
        if method.phase in PASSES:
            space.vectors["accrued"][:] = rosen_der(space.vectors["trial"])
            method.record_pass(float(rosen(space.vectors["trial"])), 1)
        else:
            method.record_scalars(space.run(method.program()))
    numbers = sum(len(values) for values in space.vectors.values()) // 6
    planned = shard_memory(job({**SANDBLASTER, "history": history, "l1": l1}), 6)
    assert numbers == METHOD + (l1 > 0) + 2 * (history + 1) + 1
    assert planned.pop(SET) == 6 * 8, "of the sum"
    assert sum(planned.values()) == 6 * (4 * (numbers - 1) + 8)


class SparseShards:
    """A trial of zeros, and pushes that are packed as they are sent."""

    def __init__(self) -> None:
        self.placement = SimpleNamespace(spans=[None])

    def locate(self, at_least: int) -> None: ...

    def pull_at(self, positions: np.ndarray, vector: str) -> np.ndarray:
        return np.zeros(positions.size, np.float32)

    def push_at(self, positions: np.ndarray, values: np.ndarray, versions: np.ndarray, push: Push) -> PushResult:
        assert pack(positions, values).nbytes == TOUCHED_BYTES * positions.size
        return PushResult(0.0)


def test_bundles_of_sparse_rows_take_what_they_touch(tmp_path: Path) -> None:
    """Nothing as long as the model, but for an evaluation; of the bundles that are sent meanwhile, none or one."""
    rng = np.random.default_rng(0)
    columns = [np.sort(rng.choice(1 << 18, 10, replace=False)) + 1 for _ in range(2_000)]
    lines = [f"{row % 8} {' '.join(f'{column}:1' for column in own)}" for row, own in enumerate(columns)]
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    data = {"source": "libsvm", "train": str(tmp_path / "rows.txt"), "features": 1 << 18}
    model = {"layers": [{"dense": 8}], "loss": "softmax_cross_entropy"}
    planned = job({"name": "sandblaster", "portion": 250, "bundle": 2}, data=data, model=model)
    (rank,) = make_plan(planned).ranks
    touched = 8 * (10 * 500 + 1)
    assert rank.memory.host["numbers that bundles touch"] == TOUCHED * touched
    assert rank.fetched_bytes == rank.pushed_bytes == TOUCHED_BYTES * touched
    held, strategy = load(planned.data, planned.folder), planned.strategy
    built, _ = build_model(planned, held, select_backend("cpu"))
    train = held.train
    assert train is not None
    assert isinstance(strategy, Sandblaster)
    session: Any = SimpleNamespace(
        job=planned, ranks=SingleRank(), part=initial_values(planned, built)[0].part(0), pusher=Pusher(0, 1),
        backend=select_backend("cpu"), parameters=SparseShards(),
    )  # fmt: skip
    bundles = [
        wire.Bundle(pass_number=1, bundle=number + 1, start=500 * number, stop=500 * (number + 1), portion=250)
        for number in range(4)
    ]

    def work() -> None:
        coordinator = Coordinator()
        coordinator.ahead = bundles[1:]
        made = factory.sandblaster(session, built, strategy, train, PhaseTimer(), coordinator)
        with closing(made):
            following: wire.Bundle | None = bundles[0]
            while following is not None:
                following = made.compute(following)

    peak = traced(work, steady=True).peak
    expected = sum(rank.memory.host[name] for name in ("numbers that bundles touch", "mini-batch"))
    assert 0.5 * expected < peak < 1.5 * expected < 4 * session.part.size


def test_this_machine_has_memory() -> None:
    assert 0 < machine_bytes() <= int(Path("/proc/meminfo").read_text().split()[1]) * 1024


def test_in_turn_a_shard_keeps_nothing_for_others() -> None:
    """One round at a time, of one replica, and no exchange whose answer may be asked for again."""
    several = job({"name": "sync-easgd", "rate": 0.1}, replicas=4)
    assert shard_memory(several, 1000)["gradients of a round"] == 4 * 4000
    assert shard_memory(job(TURNS, replicas=4), 1000) == {
        "parameters": 4000,
        "state of elastic": 0,
        "gradients of a round": 4000,
        SET: 4000,
    }
    among_themselves = job({"name": "sync-easgd", "rate": 0.1, "form": 2}, replicas=4)
    assert SET not in shard_memory(among_themselves, 1000), "nothing is written meanwhile"


def test_with_a_quorum_a_later_push_may_wait_beside_that_of_the_round() -> None:
    lockstep, quorum = (shard_memory(job({**DILOCO, **more}), 1000) for more in ({}, {"quorum": 1}))
    assert quorum["gradients of a round"] == 2 * lockstep["gradients of a round"] > 0


def test_differences_are_from_what_shards_and_ranks_keep() -> None:
    """A shard the numbers in bf16, and differences from those before, which are shorter; a rank the numbers."""
    coded = {"wire": {"pull": "bf16"}}
    with_, without = job(DILOCO, **coded), job(DILOCO)
    assert sum(shard_memory(with_, 1000).values()) - sum(shard_memory(without, 1000).values()) == 2 * 2 * 1000
    assert shard_memory(job(DOWNPOUR, **coded), 1000) == shard_memory(job(DOWNPOUR), 1000)
    planned = [make_plan(one) for one in (with_, without)]
    (rank, size), (other, _) = ((plan.ranks[0].memory.host_bytes, plan.ranks[0].parameters) for plan in planned)
    assert rank - other == 2 * size
