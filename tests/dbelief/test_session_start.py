"""What training begins with: the model's own initial values, or another run's result, read by who pushes it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dbelief.backend import choose
from dbelief.errors import JobError, ModelError
from dbelief.job import Job, parse_job
from dbelief.layout import Layout
from dbelief.pushes import Pusher
from dbelief.ranks import Alone
from dbelief.rpc import coordination_pb2 as wire
from dbelief.session import Session, begin_from
from tests.dbelief.test_model_file import LAYOUT, finished, flat
from tests.dbelief.test_status import JOB

A = Pusher(1, 1)
WHOLE = Layout.of(LAYOUT.assemble(flat(0)))
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
    taken = begin_from(job_of(folder, start_from), LAYOUT, values)
    assert taken == str(folder / "runs" / "first" / "model.safetensors")
    assert np.array_equal(values, flat(1))


def test_without_a_run_initial_values_stay(folder: Path) -> None:
    values = flat(7)
    assert begin_from(job_of(folder, None), LAYOUT, values) == ""
    assert np.array_equal(values, flat(7))


def test_what_is_wrong_with_the_run_is_one_line(folder: Path) -> None:
    values = flat(7)
    with pytest.raises(ModelError, match=r"^start_from: .*/runs/frist is no run folder: .*; a relative path starts"):
        begin_from(job_of(folder, "runs/frist"), LAYOUT, values)
    with pytest.raises(ModelError, match=r"^start_from: /nowhere is no run folder: it holds no job\.yaml$"):
        begin_from(job_of(folder, "/nowhere"), LAYOUT, values)
    with pytest.raises(JobError, match="the environment variable NO_SUCH_RUN is not set"):
        begin_from(job_of(folder, "${NO_SUCH_RUN}"), LAYOUT, values)
    (folder / "runs" / "first" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"^start_from: .*/runs/first: holds neither model\.safetensors nor"):
        begin_from(job_of(folder, "runs/first"), LAYOUT, values)
    assert np.array_equal(values, flat(7))


class Member:
    """Told to push initial values, or that the job trains already."""

    id = incarnation = 1

    def __init__(self, initialise: bool) -> None:
        self.initialise = initialise
        self.state = wire.STATE_INITIALISING if initialise else wire.STATE_READY

    def wait_for(self, happened: Any, timeout_s: float, what: str) -> None:
        assert happened()

    def beat(self) -> None:
        self.state = wire.STATE_READY


@pytest.mark.parametrize("told", [True, False])
def test_only_who_pushes_initial_values_reads_the_run(folder: Path, told: bool) -> None:
    assigned: list[np.ndarray] = []
    parameters = SimpleNamespace(
        placement=SimpleNamespace(spans=[None]), push=lambda values, *_: assigned.append(values.copy())
    )
    client = SimpleNamespace(call=lambda *_: None)
    job = job_of(folder, "runs/first" if told else "runs/elsewhere")
    part = LAYOUT.part(1)
    made: Any = (job, None, choose("cpu"), Alone(), None, LAYOUT, part, client, Member(told), parameters, A, {})
    session = Session(*made)
    session._initialise(WHOLE, np.zeros(WHOLE.size, np.float32))
    assert len(assigned) == told
    assert all(np.array_equal(values, flat(1)[part.start : part.stop]) for values in assigned), "a rank's own part"
