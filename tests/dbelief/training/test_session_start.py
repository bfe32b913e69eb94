"""Initial values of training: the model's own, or another run's result, read by the initialiser."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.arrays.backend import select_backend
from dbelief.core.layout import Layout
from dbelief.core.push import Pusher
from dbelief.core.ranks import SingleRank
from dbelief.errors import JobError, ModelError
from dbelief.job import Job, parse_job
from dbelief.nn import Model, SparseAutoencoder, build_network
from dbelief.nn.autoencoders.autoencoder import Eq1
from dbelief.nn.autoencoders.stacks import Stacks
from dbelief.nn.layers.lcn import Lcn
from dbelief.partition import Grid, layout_of
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.training.initial_values import HeldTensors, InitialValues
from dbelief.training.session import Session, _begin_part, _begin_whole, load_initial_from_run
from tests.assembled import assembled
from tests.dbelief.monitor.test_status import JOB
from tests.dbelief.rundir.test_export import LAYOUT, finished, flat
from tests.traced import traced

A = Pusher(1, 1)
WHOLE = Layout.of(assembled(LAYOUT, flat(0)))
"""As the model is on one rank."""


def job_of(folder: Path, start_from: str | None) -> Job:
    return parse_job(JOB + f"start_from: {start_from or 'null'}\n", folder, "job")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a job file, with a run of another model beside it that has ended."""
    run = tmp_path / "runs" / "first"
    (run / "snapshots").mkdir(parents=True)
    (run / "job.yaml").write_text(JOB)
    finished(run, flat(1))
    return tmp_path


@pytest.mark.parametrize("start_from", ["runs/first", "${RUNS}/first"])
def test_the_result_takes_the_place_of_initial_values(
    folder: Path, start_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNS", str(folder / "runs"))
    values = flat(7)
    taken = load_initial_from_run(job_of(folder, start_from), LAYOUT, values)
    assert taken == str(folder / "runs" / "first" / "model.safetensors")
    assert np.array_equal(values, flat(1))


def test_without_a_run_initial_values_stay(folder: Path) -> None:
    values = flat(7)
    assert load_initial_from_run(job_of(folder, None), LAYOUT, values) == ""
    assert np.array_equal(values, flat(7))


def test_invalid_start_run_is_a_one_line_error(folder: Path) -> None:
    values = flat(7)
    with pytest.raises(ModelError, match=r"^start_from: .*/runs/frist is no run folder: .*; a relative path starts"):
        load_initial_from_run(job_of(folder, "runs/frist"), LAYOUT, values)
    with pytest.raises(ModelError, match=r"^start_from: /nowhere is no run folder: it holds no job\.yaml$"):
        load_initial_from_run(job_of(folder, "/nowhere"), LAYOUT, values)
    with pytest.raises(JobError, match="the environment variable NO_SUCH_RUN is not set"):
        load_initial_from_run(job_of(folder, "${NO_SUCH_RUN}"), LAYOUT, values)
    (folder / "runs" / "first" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"^start_from: .*/runs/first: holds neither model\.safetensors nor"):
        load_initial_from_run(job_of(folder, "runs/first"), LAYOUT, values)
    assert np.array_equal(values, flat(7))


EPOCH, LATER = 3, 5
"""Of the placement that a session begins with, and of the one with which the job trains."""


class Member:
    """Told to push initial values, or that the job trains already."""

    id = incarnation = run_id = 1

    def __init__(self, initialise: bool) -> None:
        self.initialise = initialise
        self.placement = SimpleNamespace(epoch=LATER)
        self.state = wire.STATE_INITIALISING if initialise else wire.STATE_READY

    def wait_for(self, happened: Any, timeout_s: float, what: str) -> None:
        assert happened()

    def call(self, method: str, request: wire.ReportRequest) -> None:
        assert method == "Report"
        assert request.initialised_in == EPOCH

    def beat(self) -> None:
        self.state = wire.STATE_READY


class Shards:
    """Parameters that were located by the first placement, and what is asked of them."""

    def __init__(self) -> None:
        self.placement = SimpleNamespace(epoch=EPOCH, spans=[None])
        self.assigned: list[np.ndarray] = []
        self.located: list[int] = []

    def push(self, values: Any, *_: object) -> None:
        whole = [(0, WHOLE.size)]
        self.assigned.append((values if isinstance(values, np.ndarray) else next(values.blocks(whole))).copy())

    def locate(self, at_least: int) -> None:
        self.located.append(at_least)


def initialised(job: Job, told: bool) -> Shards:
    """The shards after the begin of a session."""
    parameters, client, part = Shards(), SimpleNamespace(call=lambda *_: None), WHOLE.part(0)
    made: Any = (
        job,
        None,
        select_backend("cpu"),
        SingleRank(),
        None,
        WHOLE,
        part,
        client,
        Member(told),
        parameters,
        A,
        {},
    )
    session = Session(*made)
    zeros = HeldTensors(WHOLE, assembled(WHOLE, np.zeros(WHOLE.size, np.float32)))
    session._initialise(partial(_begin_whole, job, InitialValues(WHOLE, lambda: zeros)))
    return parameters


@pytest.mark.parametrize("told", [True, False])
def test_only_the_initialiser_reads_the_start_run(folder: Path, told: bool) -> None:
    assigned = initialised(job_of(folder, "runs/first" if told else "runs/elsewhere"), told).assigned
    assert len(assigned) == told
    assert all(np.array_equal(values, WHOLE.flatten(assembled(LAYOUT, flat(1)), values.copy())) for values in assigned)


@pytest.mark.parametrize("told", [True, False])
def test_training_begins_with_the_placement_that_has_initial_values(folder: Path, told: bool) -> None:
    """A shard of the first placement may have been replaced before it had values, and still run."""
    assert initialised(job_of(folder, None), told).located == [LATER]


IMAGE = (24, 16, 2)
EQ1 = Eq1(window=8, block=4, maps=3, pool=5)
MODELS: dict[str, Callable[[], Model]] = {
    "network": lambda: build_network(
        [("local", {"window": 4, "block": 2, "maps": 2}), ("conv", {"maps": 3, "kernel": 3}), ("dense", {"units": 5})],
        "softmax_cross_entropy",
        features=IMAGE,
        outputs=5,
        backend=select_backend("cpu"),
    ),
    "autoencoder": lambda: SparseAutoencoder(IMAGE, EQ1, select_backend("cpu")),
    "stacks": lambda: Stacks((48, 48, 1), [(EQ1, Lcn(5)), (EQ1, Lcn(5))], None, {}, select_backend("cpu")),
    "stacks, the first given": lambda: Stacks(
        (48, 48, 1),
        [(EQ1, Lcn(5)), (EQ1, Lcn(5))],
        None,
        {"stack1.alpha": np.ones(1, np.float32)},
        select_backend("cpu"),
    ),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("grid", [Grid(1, 1), Grid(2, 2), Grid(1, 5)])
def test_rank_starts_with_its_part_of_the_whole_model(kind: str, grid: Grid, tmp_path: Path) -> None:
    model, job = MODELS[kind](), job_of(tmp_path, None)
    layout = layout_of(model, grid)
    whole = dict(model.parameters(np.random.default_rng(job.seed)))
    for rank in range(grid.size):
        part = layout.part(rank)
        values, taken = _begin_part(job, model, part)
        assert taken == ""
        np.testing.assert_array_equal(values, part.flatten(whole, np.empty(part.size, np.float32)))


def test_rows_of_blocks_are_drawn_as_all_of_them_would_be() -> None:
    """So that where a model is cut does not change what it begins with, nor did drawing by rows."""
    model = SparseAutoencoder(IMAGE, EQ1, select_backend("cpu"))
    shape = model.blocks.w_shape
    at_once = np.random.default_rng(7).standard_normal(shape, dtype=np.float32)
    at_once *= np.float32(1 / math.sqrt(model.blocks.fan_in))
    np.testing.assert_array_equal(model.parameters(np.random.default_rng(7))["weight"], at_once)


def test_rank_draws_one_row_of_blocks_at_a_time(tmp_path: Path) -> None:
    model = SparseAutoencoder((160, 160, 1), Eq1(window=16, block=4, maps=8, pool=3), select_backend("cpu"))
    job, part = job_of(tmp_path, None), layout_of(model, Grid(3, 3)).part(0)
    row = 4 * math.prod(model.blocks.w_shape[1:])
    most = traced(lambda: _begin_part(job, model, part)).peak
    assert 4 * part.size < most < 1.1 * (4 * part.size + 2 * row) < math.prod(model.blocks.w_shape), "a quarter of all"
