"""A plan has the model's own sizes, places them as the job would, and makes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import Backend, select_backend
from dbelief.codec import make_codec
from dbelief.core.layout import Layout, assign_segments, make_segments, nominal_length
from dbelief.data import load
from dbelief.errors import DataError, JobError, ModelError, UserError
from dbelief.job import Job, Wire, load_job
from dbelief.partition import Grid, layout_of
from dbelief.plan import Plan, make_plan
from dbelief.plan.job_plan import Fit
from dbelief.plan.memory import COMPILED, PROCESS, TOUCHED
from dbelief.plan.shard_traffic import fetched_bytes, pushed_bytes
from dbelief.rundir.json_values import plain
from dbelief.training.session import build_model, initial_values
from tests.jobs import small_job

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GIB = 1 << 30


def job(model: dict[str, Any], **fields: Any) -> Job:
    """A job whose data are not there."""
    plain_fields: dict[str, Any] = {
        "data": {"source": "npz", "file": "nowhere.npz"},
        "strategy": {"name": "downpour", "batch": 8, "rule": {"name": "adagrad", "rate": 0.1}},
    }
    return small_job(model=model, **{**plain_fields, **fields})


def filters(plan: Plan) -> list[int]:
    """Weights of each stack."""
    return [layer.parameters - 1 for layer in plan.layers]


def test_the_largest_network_of_the_paper() -> None:
    """Coates et al. 2013: 46 x 46, 36 x 36 and 26 x 26 blocks of 288 neurons; "over 11 billion parameters"."""
    plan = make_plan(load_job(EXAMPLES / "cots_11b.yaml"))
    assert filters(plan) == [731_289_600, 6_879_707_136, 3_588_489_216]
    assert sum(filters(plan)) == 11_199_485_952
    assert plan.parameters() == 11_199_485_952 + 3  # an alpha each
    assert len(plan.ranks) == 64
    assert sum(rank.parameters for rank in plan.ranks) == sum(shard.parameters for shard in plan.shards)
    assert sum(rank.parameters for rank in plan.ranks) == plan.parameters()


SMALL_STACKS: dict[str, Any] = {
    "image": [32, 28, 1],
    "stacks": [
        {"window": 8, "block": 4, "maps": 2, "pool": 5, "contrast": {"size": 3}},
        {"window": 8, "block": 4, "maps": 3, "pool": 2},
    ],
}
MODELS: list[dict[str, Any]] = [
    {"layers": [{"dense": 7}, "relu", {"dropout": 0.5}, {"dense": 10}], "loss": "softmax_cross_entropy"},
    {
        "layers": [
            {"image": {"height": 8, "width": 8}},
            {"conv": {"maps": 3, "kernel": 3}},
            {"local": {"window": 2, "block": 1, "maps": 2}},
            {"dense": 10},
        ],
        "loss": "softmax_cross_entropy",
    },
    {"autoencoder": {"window": 4, "block": 2, "maps": 3, "pool": 2, "image": [8, 8, 1]}},
    {
        "stacks": [{"window": 2, "block": 1, "maps": 2, "pool": 2, "contrast": {"size": 1}}] * 2,
        "image": [8, 8, 1],
        "train": "all",
    },
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: next(iter(model)))
def test_sizes_are_those_of_the_model_itself(model: dict[str, Any]) -> None:
    planned = job(model, data={"source": "digits"})
    built, _ = build_model(planned, load(planned.data, planned.folder), select_backend("cpu"))
    layout, _ = initial_values(planned, built)
    plan = make_plan(planned)
    assert {name: shape for layer in plan.layers for name, shape in layer.tensors.items()} == {
        box.name: box.shape for box in layout.boxes
    }
    assert plan.parameters() == layout.size
    assert [rank.parameters for rank in plan.ranks] == [layout.size]
    assert not plan.step


@pytest.mark.parametrize("model", MODELS[1:3], ids=["layers", "autoencoder"])
def test_planned_ranks_match_the_cut(model: dict[str, Any]) -> None:
    planned = job(model, data={"source": "digits"}, grid=[2, 3], shards=3)
    built, _ = build_model(planned, load(planned.data, planned.folder), select_backend("cpu"))
    layout = layout_of(built, Grid(2, 3))
    plan = make_plan(planned)
    assert [rank.parameters for rank in plan.ranks] == [layout.part(rank).size for rank in range(6)]
    assert [list(rank.shards) for rank in plan.ranks] == talks(layout, 3)
    assert sum(rank.sent_bytes for rank in plan.ranks) == sum(int(p.sent_bytes.sum()) for p in plan.step) > 0


def talks(layout: Layout, shards: int) -> list[list[tuple[int, int]]]:
    """By rank, segments by shard: each segment has a shard, and a number of it a rank."""
    spans = make_segments(layout.rank_ranges(), nominal_length(layout.size, shards))
    shard_of = np.repeat(np.arange(shards), [count for _, count in assign_segments(spans, shards)])
    rank_of = np.repeat([box.rank for box in layout.boxes], [box.size for box in layout.boxes])
    found = np.zeros((rank_of.max() + 1, shards), int)
    for span, shard in zip(spans, shard_of, strict=True):
        (rank,) = set(rank_of[span.start : span.stop])
        found[rank, shard] += 1
    return [[(int(shard), int(row[shard])) for shard in np.flatnonzero(row)] for row in found]


def test_clipping_costs_a_sum_over_the_ranks() -> None:
    fields = {"name": "downpour", "batch": 8, "rule": {"name": "sgd", "rate": 0.1}}
    without, clipped = (
        make_plan(job(MODELS[2], grid=[2, 2], strategy={**fields, **more})) for more in ({}, {"clip_norm": 1.0})
    )
    more = sum(r.sent_bytes for r in clipped.ranks) - sum(r.sent_bytes for r in without.ranks)
    assert more == 2 * 3 * 8  # one float64 from each other rank to who sums it, and back


def test_an_image_in_the_job_stands_for_the_data() -> None:
    with pytest.raises(
        DataError, match=r"/nonexistent: no such folder.*model says what it sees: model\.autoencoder\.image"
    ):
        make_plan(job({"autoencoder": {"window": 8}}))
    with pytest.raises(DataError, match="a first layer image"):
        make_plan(job({"layers": [{"dense": 3}], "loss": "square"}))
    assert make_plan(job({"autoencoder": {"window": 8, "image": [16, 16, 3]}})).data_bytes == 0
    layers = [{"image": {"height": 4, "width": 4}}, {"dense": 3}]
    assert make_plan(job({"layers": layers, "loss": "square"})).parameters() == 16 * 3 + 3


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"python": "mine.py:Model"}, r"model mine\.py:Model: .* known once it is built: see dbelief job check"),
        ({"autoencoder": {"window": 20, "image": [8, 8, 1]}}, "window is 20 pixels, images are 8 x 8"),
        ({**SMALL_STACKS, "image": [16, 16, 1]}, "stack 2: "),
    ],
)
def test_unplannable_model_is_named(model: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        make_plan(job(model))


def test_uncuttable_model_is_named() -> None:
    layers = [{"dense": 16}, {"image": {"height": 4, "width": 4}}, {"dense": 10}]
    with pytest.raises(ModelError, match="layer image1: cannot be cut over ranks: it may only come first"):
        make_plan(job({"layers": layers, "loss": "softmax_cross_entropy"}, data={"source": "digits"}, grid=[2]))


@pytest.mark.parametrize("options", [{"padding": 1}, {"ceil_mode": True, "stride": 3}])
def test_borders_are_for_one_rank(options: dict[str, Any]) -> None:
    layers = [{"image": {"height": 8, "width": 8}}, {"max_pool": {"size": 2, **options}}, {"dense": 10}]
    model = {"layers": layers, "loss": "softmax_cross_entropy"}
    assert make_plan(job(model, data={"source": "digits"})).parameters() > 0
    with pytest.raises(
        ModelError, match=r"layer max_pool1: cannot be cut over ranks: padding and ceil_mode are for one"
    ):
        make_plan(job(model, data={"source": "digits"}, grid=[2]))


def test_shards_that_would_hold_nothing_are_named() -> None:
    small = {"layers": [{"dense": 10}], "loss": "softmax_cross_entropy"}
    plan = make_plan(job(small, data={"source": "digits"}, shards=3))
    assert plan.notes == ["shards 0, 2 would hold no parameters: 650 parameters are 1 segment; shards: 1 is enough"]
    assert make_plan(job(small, data={"source": "digits"}, shards=1)).notes == []


@pytest.mark.parametrize(("devices", "fullest"), [(1, [0, 1, 2, 3]), (3, [0, 3])])
def test_ranks_take_the_devices_in_turn(devices: int, fullest: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        mem_info = (1, 5 * GIB)

        def __init__(self, number: int) -> None:
            assert number < devices

    cuda = SimpleNamespace(Device=Device, runtime=SimpleNamespace(getDeviceCount=lambda: devices))
    backend = Backend("cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr("dbelief.plan.job_plan.select_backend", lambda device: backend)
    plan = make_plan(job(MODELS[2], grid=[2, 2], replicas=2))
    needs = 2 * sum(plan.ranks[rank].memory.device_bytes for rank in fullest)
    assert plan.fits[-1] == Fit("the fullest of this machine's GPUs", needs, 5 * GIB)


def test_memory_needs_are_compared_with_available_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.plan.job_plan.machine_bytes", lambda: 64 * GIB)
    plan = make_plan(load_job(EXAMPLES / "cots_11b.yaml"), 16.0)
    found = {fit.what: fit for fit in plan.fits}
    assert found["the largest rank"].needs == max(rank.memory.host_bytes for rank in plan.ranks)
    assert found["the largest rank"].has == 16 * GIB
    row = 36 * 288 * 32 * 32 * 18  # of blocks of the second stack, the largest
    assert found["each rank at its start"].needs == 4 * (2 * row + max(rank.parameters for rank in plan.ranks))
    everything = sum(rank.memory.host_bytes for rank in plan.ranks) + sum(shard.bytes for shard in plan.shards)
    everything += PROCESS["coordinator"] + len(plan.ranks) * PROCESS["rank"] + len(plan.shards) * PROCESS["shard"]
    assert found["coordinator, replicas and shards on this machine"].needs == everything
    assert [fit.fits for fit in plan.fits] == [True, True, False, False]


def test_sparse_rows_are_counted_as_they_are_read(tmp_path: Path) -> None:
    """Five numbers in the longest rows, of 2^20: as arrays where the model's ranks or its first layer need them."""
    lines = [f"{row % 2} " + " ".join(f"{n + 1}:1" for n in range(row % 6)) for row in range(60)]
    (tmp_path / "rows.txt").write_text("\n".join(lines))
    data = {"source": "libsvm", "train": str(tmp_path / "rows.txt"), "features": 1 << 20}

    def planned(layers: list[Any], **fields: Any) -> Plan:
        return make_plan(job({"layers": layers, "loss": "softmax_cross_entropy"}, data=data, **fields))

    plan = planned([{"dense": 2}])
    assert plan.data_bytes == 8 * sum(row % 6 for row in range(60)) + 24 * 60
    assert plan.ranks[0].memory.host["mini-batch"] == 8 * 8 * 5 + 8 * 9
    assert plan.ranks[0].parameters == (2 << 20) + 2
    assert (plan.layers[0].multiplied, plan.layers[0].flop) == (3, 6 * 2 * 3), "the mean, 2.5, rounded up"
    arrays = planned(["relu", {"dense": 2}]), planned([{"dense": 2}], grid=[2])
    assert arrays[1].layers[0].multiplied == 1 << 20
    assert [each.ranks[0].memory.host["mini-batch"] for each in arrays] == [8 * 4 << 20] * 2
    assert plan.process_bytes == {**PROCESS, "rank": PROCESS["rank"] + COMPILED}
    needs = plan.ranks[0].memory.host_bytes + sum(shard.bytes for shard in plan.shards) + plan.data_bytes
    assert plan.fits[0].needs == needs + sum(plan.process_bytes.values())
    batch = planned([{"dense": 2}], strategy={"name": "sandblaster", "portion": 8})
    rank = batch.ranks[0]
    touched = rank.memory.host["numbers that bundles touch"] // TOUCHED
    assert rank.memory.host["mini-batch"] == (2 + 2 * 4) * plan.ranks[0].memory.host["mini-batch"], "and two bundles"
    assert touched == pytest.approx(2 * 2.5 * 4 * 8 + 2, rel=0.03), "2.5 numbers a sample of the file, by 2 outputs"
    assert f"what a bundle of portions touches, {touched} numbers of" in batch.communication.advice[-1]
    assert "fetched" not in rank.memory.host
    dense = planned(["relu", {"dense": 2}], strategy={"name": "sandblaster", "portion": 8}).ranks[0].memory.host
    assert dense["mini-batch"] == 2 * 8 * 4 << 20
    assert dense["fetched"] == 4 * rank.parameters


def test_a_job_for_a_gpu_is_planned_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(device: str) -> Any:
        if device == "cuda":
            raise JobError("device: cuda is requested, but there is none")
        return select_backend("cpu")

    monkeypatch.setattr("dbelief.plan.job_plan.select_backend", none_here)
    host, gpu = (make_plan(job(MODELS[2], device=device)) for device in ("cpu", "cuda"))
    assert (host.on_device, gpu.on_device) == (False, True)
    (on_host,), (on_gpu,) = host.ranks, gpu.ranks
    assert on_gpu.memory.device == on_host.memory.host
    assert on_gpu.memory.host == {
        name: count
        for name, count in on_host.memory.host.items()
        if name.startswith(("fetched", "frozen", "mini", "ev"))
    }
    assert on_host.memory.device_bytes == 0


def test_residual_codec_needs_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbelief.plan.job_plan._device", lambda job: (job.device == "cuda", []))
    for device in ("cpu", "cuda"):
        plain_rank, coded = (
            make_plan(job(MODELS[2], device=device, wire=wire)).ranks[0] for wire in ({}, {"push": "one-bit"})
        )
        more = coded.memory.host_bytes - plain_rank.memory.host_bytes
        assert more == 4 * coded.parameters + coded.pushed_bytes
        assert coded.memory.device_bytes == plain_rank.memory.device_bytes
        assert coded.fetched_bytes == plain_rank.pushed_bytes == 4 * coded.parameters
        assert 31 < plain_rank.pushed_bytes / coded.pushed_bytes < 32


@pytest.mark.parametrize(
    "push",
    [
        *("fp16", "bf16", "int8", "int4", "one-bit", "top-k"),
        {"name": "threshold", "tau": 0.5},
        {"name": "top-k", "share": 0.3},
    ],
)
def test_planned_codec_bytes_match_the_payload(push: Any) -> None:
    length = 1 << 18
    values, wire = np.ones(length, np.float32), Wire.model_validate({"push": push})
    codec = make_codec(wire.push.name, wire.push.options)
    assert codec is not None
    payload = codec.encode(values, np.zeros(length, np.float32), []) if codec.keeps else codec.encode(values)
    assert pushed_bytes(wire, length) == pytest.approx(payload.nbytes, abs=16)
    if not codec.keeps:
        assert fetched_bytes(Wire.model_validate({"pull": push}), length) == pushed_bytes(wire, length)


def test_json_holds_all_of_it() -> None:
    plan = make_plan(job(MODELS[2], grid=[2, 2]), 1.0)
    told = json.loads(json.dumps(plain(plan.described())))
    assert told["parameters"] == {"trained": plan.parameters(), "frozen": 0, "later": 0}
    assert [rank["messages"] for rank in told["ranks"]] == [rank.messages for rank in plan.ranks]
    assert sum(one["bytes"] for one in told["exchanges"]) == sum(rank["sent_bytes"] for rank in told["ranks"])
    assert sum(one["messages"] for one in told["exchanges"]) == sum(rank["messages"] for rank in told["ranks"])
    assert sum(shard["parameters"] for shard in told["shards"]) == plan.parameters()
    assert told["fits"][0] == {
        "what": "the largest rank",
        "needs": max(r["memory"]["host_bytes"] for r in told["ranks"]),
        "has": GIB,
        "fits": True,
    }


def test_a_mistake_is_one_that_a_person_can_put_right() -> None:
    with pytest.raises(UserError):
        make_plan(job({"autoencoder": {"window": 8}}, data={"source": "digits"}))
