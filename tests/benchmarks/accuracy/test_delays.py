"""The jobs of the benchmark with delays, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import delays
from dbelief.job import build_job
from dbelief.simulate.replay.check import check_delays
from dbelief.simulate.replay.delays import DelayTrace
from dbelief.simulate.replay.replayed_job import kind_of


@pytest.mark.parametrize("way", delays.KINDS)
@pytest.mark.parametrize("model", delays.MODELS)
def test_each_way_is_a_job_that_its_delays_fit(tmp_path: Path, way: str, model: str) -> None:
    file = delays.delays_of(delays.KINDS[way], 3, None, tmp_path)
    data = tmp_path / "windows.npz" if model == "gpt" else None
    job = build_job(delays.job_fields(way, model, 1, file, data), tmp_path)
    assert kind_of(job) == delays.KINDS[way]
    trace = DelayTrace.read(file)
    check_delays(job, trace, str(file))
    assert trace.pushes >= 2_000
    assert job.delays is not None


def test_given_files_are_of_many_replicas_only(tmp_path: Path) -> None:
    assert delays.delays_of("elastic", 10, tmp_path, tmp_path) == tmp_path / "elastic-10.npz"
    assert DelayTrace.read(delays.delays_of("elastic", 1, tmp_path / "given", tmp_path)).replicas == 1


def row(count: int, loss: float | None, seed: int = 0) -> dict[str, Any]:
    accuracy = None if loss is None else 1 - loss
    figures = {"test_loss": loss, "test_accuracy": accuracy, "staleness_mean": count - 1.0}
    return {"seed": seed, "model": "mnist", "way": "easgd", "count": count, **figures}


def test_the_table_has_medians_and_their_ratio_to_one_replica() -> None:
    rows = [row(1, 0.1), row(1, 0.2, 1), row(10, 0.3), row(10, 0.6, 1), row(100, None)]
    table = delays.table_of(rows, [10, 100])
    cells = [list(column.cells) for column in table.columns]
    assert cells[2] == ["1", "10", "100"]
    assert cells[4] == ["0.1500", "0.4500", ""]
    assert cells[5] == ["1.00", "3.00", ""]
    assert cells[6] == ["85.00", "55.00", ""]
