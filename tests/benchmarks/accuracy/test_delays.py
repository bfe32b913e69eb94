"""The jobs of the benchmark with delays, their orders, which setting it chooses, and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy import delays, delays_plot
from benchmarks.accuracy.delay_orders import write_order
from benchmarks.accuracy.delay_settings import SAMPLES, UNCHANGED, WAYS, settings, unchanged
from benchmarks.harness.runs import Rows
from dbelief.job import build_job
from dbelief.simulate.replay.check import check_delays
from dbelief.simulate.replay.delays import DOWNPOUR, ELASTIC, ROUNDS, DelayTrace
from docs.generators.measurements import Column, Measurement, Recipe

KINDS = {"downpour": DOWNPOUR, "easgd": ELASTIC, "diloco": ROUNDS}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", delays.MODELS)
def test_each_setting_is_a_job_that_its_simulated_order_fits(tmp_path: Path, way: str, model: str) -> None:
    file = tmp_path / "delays.npz"
    for strategy in settings(way, model, 3).values():
        data = tmp_path / "windows.npz" if model == "gpt" else None
        job = build_job(delays.job_fields(model, strategy, 1, SAMPLES[model], data), tmp_path)
        write_order(job, 3, 10_000, 50_000, file)
        trace = DelayTrace.read(file)
        check_delays(job, trace, str(file))
        assert (trace.strategy, trace.replicas) == (KINDS[way], 3)
        assert trace.pushes >= 500


def test_one_replica_has_no_setting_to_choose() -> None:
    assert settings("diloco", "gpt", 1) == {UNCHANGED: unchanged("diloco", "gpt")}


def test_rates_fall_with_replicas() -> None:
    rates = [settings("downpour", "mnist", count)["rate / √replicas"]["rule"]["rate"] for count in (4, 100)]
    assert rates == pytest.approx([0.005, 0.001])


def row(count: int, loss: float | None, seed: int = 1, setting: str = UNCHANGED) -> dict[str, Any]:
    accuracy = None if loss is None else 1 - loss
    figures = {"test_loss": loss, "test_accuracy": accuracy, "staleness_mean": count - 1.0}
    return {"seed": seed, "model": "mnist", "way": "easgd", "count": count, "setting": setting, **figures}


def known(tmp_path: Path, rows: list[dict[str, Any]]) -> Rows:
    found = Rows(tmp_path / "rows.jsonl")
    for one in rows:
        found.append(one)
    return found


def test_the_setting_of_least_loss_on_the_tuning_seed_is_measured_beside_the_unchanged_one(tmp_path: Path) -> None:
    names = list(settings("easgd", "mnist", 10))
    losses = dict(zip(names, (0.5, None, 0.2, 0.3), strict=True))
    rows = known(tmp_path, [row(10, loss, 0, name) for name, loss in losses.items()])
    measurement = delays.Measurement(rows, {"mnist": None}, most=0)
    assert measurement.best("mnist", "easgd", 10) == names[2]
    with pytest.raises(delays.Spent):
        measurement.measure("mnist", "easgd", 10, [1])
    rows.extend([row(10, 0.1, 1, names[2]), row(10, 0.6)])
    measurement.measure("mnist", "easgd", 10, [1])
    assert len(rows) == 6


def test_tables_have_means_of_the_seeds_without_that_of_the_tuning() -> None:
    rows = [
        row(1, 0.1),
        row(1, 0.2, 2),
        row(10, 0.9, 0, "a"),
        row(10, None),
        row(10, 0.3, 1, "a"),
        row(10, 0.5, 2, "a"),
    ]
    found = delays.means(rows)
    assert [one["best_loss"] for one in found] == pytest.approx([0.15, 0.4])
    recipe = delays.recipes(found)["mnist"]
    columns = tuple(Column(*column) for column in recipe.pop("columns"))
    file = Measurement("delays", {}, {"means": found}, {"": Recipe(columns, **recipe)})
    assert file.cells() == [
        ["async-easgd", "1", "0.0", "0.150", "0.150", "85.0, 85.0", UNCHANGED],
        ["async-easgd", "10", "9.0", "", "0.400", "", "a"],
    ]
    assert [list(column.cells) for column in delays.table_of(found).columns][5] == ["0.150", "0.400"]


def test_a_picture_is_drawn_of_what_has_a_loss(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    delays_plot.draw(delays.means([row(1, 0.1), row(10, None)]), tmp_path / "delays.png")
    assert (tmp_path / "delays.png").read_bytes().startswith(b"\x89PNG")
