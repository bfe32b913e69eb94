"""Advice of `dbelief plan` follows from its volumes and its times."""

from __future__ import annotations

from typing import Any

import pytest

from dbelief.job.zoo import NETWORKS
from dbelief.monitor.format import short_time
from dbelief.plan import Speeds, make_plan, plan_network
from dbelief.plan.allreduce_cost import Link
from dbelief.plan.communication_cost import CHUNK, megabytes, sums
from tests.jobs import SGD, small_job

LAN = Speeds(latency_s=1e-4, bandwidth=25e6)


def test_firecaffes_own_figures() -> None:
    """Eq. 3 in each direction, and Eq. 4, for NiN on 32 workers: 30.4 MB over 3 GB/s is 0.10 s by a tree."""
    found = {(one.way, one.chunks > 1): one.seconds for one in sums(32, 7_595_176, Link(0.0, 1 / 3.0e9))}
    assert found["tree", False] == pytest.approx(0.10, rel=0.02)
    assert found["server", False] == pytest.approx(2 * 31 * 30.38e6 / 3e9, rel=1e-4)
    assert found["ring", False] == pytest.approx(2 * 31 / 32 * 30.38e6 / 3e9, rel=1e-4)


def test_single_chunk_variants_are_not_repeated() -> None:
    assert [one.chunks for one in sums(4, CHUNK, LAN.link)] == [1, 1, 1]
    assert [one.chunks for one in sums(4, 2 * CHUNK, LAN.link)] == [1, 1, 1, 2, 2]  # the ring's pieces are shorter


def test_data_or_model_parallelism() -> None:
    """FireCaffe, section 4: gradients or activations, whichever is less."""
    speech, nin = (plan_network(NETWORKS[name], 32, 32) for name in ("speech", "nin"))
    assert nin.communication.advice[0].startswith("Data parallelism: gradients, 30.38 MB")
    assert speech.communication.advice[0].startswith("Model parallelism, a grid of ranks")
    assert plan_network(NETWORKS["speech"], 32, 1024).communication.advice[0].startswith("Data parallelism")


def test_the_fastest_sum_is_advised() -> None:
    """Where latency is all, a tree has fewer rounds than a ring."""
    vector = plan_network(NETWORKS["vgg19"], 8, 32, LAN).communication
    assert vector.advice[1].startswith("Sum by the ring, unpipelined (sync-sgd, reduction.way ring): it takes")
    slow = plan_network(NETWORKS["lenet"], 8, 32, Speeds(latency_s=10.0)).communication
    assert slow.advice[1].startswith("Sum by the tree, unpipelined (sync-sgd, reduction.way tree): it takes 60")
    alone = plan_network(NETWORKS["lenet"], 1, 32, Speeds(flops=1e9)).communication
    assert alone.advice[1:] == ["One replica has nothing to sum."]


@pytest.mark.parametrize(
    ("flops", "word"),
    [(1e6, "any of them will do"), (2e9, "shorter than the slowest"), (1e15, "the network is the limit")],
)
def test_computing_decides_how_much_it_matters(flops: float, word: str) -> None:
    told = plan_network(NETWORKS["lenet"], 8, 32, Speeds(LAN.latency_s, LAN.bandwidth, flops)).communication
    assert told.compute_s == pytest.approx(32 * 13_758_000 / flops)
    assert word in told.advice[2]


def job_advice(strategy: dict[str, Any], **fields: Any) -> str:
    """The sentence on the job's own strategy."""
    plain = {"data": {"source": "npz", "file": "nowhere.npz"}, "replicas": 4}
    job = small_job(model={"zoo": "lenet"}, strategy=strategy, **{**plain, **fields})
    return make_plan(job, speeds=LAN).communication.advice[-1]


def test_a_batch_method() -> None:
    assert job_advice({"name": "sandblaster", "iterations": 3}).startswith("sandblaster as this job has it moves |W|")


@pytest.mark.parametrize(
    ("reduction", "way", "seconds"),
    [
        ({}, "the tree, unpipelined", "276 ms"),
        ({"way": "tree", "arity": 1, "chunk": 43_108}, "the tree in 10 chunks", "168 ms"),
        ({"way": "ring"}, "the ring, unpipelined", "104 ms"),
        ({"way": "server", "chunk": 10_000}, "the server in 44 chunks", "225 ms"),
    ],
)
def test_a_job_whose_workers_sum(reduction: dict[str, Any], way: str, seconds: str) -> None:
    """4 workers and LeNet's 1.72 MB, 69 ms each over a link: a tree has 4 rounds, a chain 6 + 9 x 2 of a tenth."""
    strategy = {**SGD, "name": "sync-sgd", "reduction": reduction}
    told = f"sync-sgd as this job has it sums 1.724 MB by {way}, in a step: {seconds} on these links."
    assert job_advice(strategy) == told
    elastic = {"name": "sync-easgd", "form": 3, "rate": 0.1, "reduction": reduction}
    assert job_advice(elastic) == told.replace("sync-sgd", "sync-easgd")


def test_json_has_all() -> None:
    plan = plan_network(NETWORKS["lenet"], 4, 10, LAN)
    told = plan.described()
    assert told["parameters"] == 431_080
    assert sum(layer["parameters"] for layer in told["layers"]) == 431_080
    sums_told = told["communication"]["sums"]
    assert [one["seconds"] for one in sums_told] == [one.seconds for one in plan.communication.sums]
    assert told["communication"]["data_bytes"] == plan.volumes.data_bytes
    assert told["communication"]["samples"] == 40


@pytest.mark.parametrize(
    ("count", "text"), [(999, "0.999 kB"), (30.38e6, "30.38 MB"), (5792.7e6, "5,793 MB"), (42.68e9, "42.68 GB")]
)
def test_bytes(count: float, text: str) -> None:
    assert megabytes(count) == text


def test_times() -> None:
    assert [short_time(1.5), short_time(0.1), short_time(1e-5)] == ["1.5 s", "100 ms", "0.01 ms"]


def test_a_job_without_replicas_has_a_step_all_the_same() -> None:
    told = make_plan(
        small_job(model={"zoo": "lenet"}, data={"source": "npz", "file": "nowhere.npz"}, replicas=0)
    ).communication
    assert told.volumes.batch == 32
    assert told.advice[1:] == ["One replica has nothing to sum."]
