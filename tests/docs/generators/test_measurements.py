"""Tables and pictures of the measured figures come from the same result files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.generators import measurements, plots

MEASURED = {
    "command": "python -m benchmarks.some.thing",
    "day": "2026-01-02",
    "processor": "A processor",
    "cores": 2,
}


def _accuracy(replicas: int, seed: int, accuracy: float) -> dict[str, Any]:
    row = {"replicas": replicas, "seed": seed, "test_accuracy": accuracy}
    return {**row, "staleness_mean": replicas - 1.0, "wall_s": 10.0 * replicas}


def _kill(role: str, accuracy: float | None, code: int = 0, lost: int = 0) -> dict[str, Any]:
    return {"role": role, "test_accuracy": accuracy, "code": code, "pushes_lost": lost}


def _way(way: str, what: str, ms: float, mib: int = measurements.TRANSFER_MIB) -> dict[str, Any]:
    return {"way": way, "what": what, "p50_ms": ms, "mib": mib}


def _churn(plan: str, ratio: float, parts: dict[str, Any]) -> dict[str, Any]:
    row = {"system": "dbelief", "job": "mnist", "plan": plan, "seconds": 60.0, "repeats": 2, "kills": 9, "ratio": ratio}
    row |= {"speeds": [[100.0, 90.0], [100.0, 94.0]], "points": 0.02, "pushes": [1_000, 1_000], "pushes_lost": [0, 3]}
    times = {"deaths": 9, "p50_s": 0.0, "p99_s": 4.2}
    return {**row, "recovery": times, "noise": {"deaths": 0, "p50_s": None, "p99_s": None}, "parts": parts}


RESULTS: dict[str, dict[str, Any]] = {
    "replicas": {"runs": [_accuracy(n, seed, 0.98 + n / 1000 + seed / 10_000) for n in (1, 4) for seed in (0, 1, 2)]},
    "kills": {"runs": [_kill("none", 0.95), _kill("shard", 0.96, lost=7), _kill("shard", None, code=1, lost=3)]},
    "churn": {
        "results": [
            _churn("a", 0.92, {"worker": {"deaths": 4, "p50_s": 1.0, "p99_s": 4.2}}),
            _churn("b", 0.71, {"registry": {"deaths": 1, "p50_s": 0.0, "p99_s": 0.0}}),
        ]
    },
    "lenet_step": {"batch": 32, "step_ms": 9.04, "torch_ms": 13.37, "over_torch": 0.71},
    "peers": {
        "ways": [
            _way("socket", "pull", 20.0),
            _way("socket", "push", 21.0),
            _way("dbelief, shm", "pull", 5.0),
            _way("dbelief, shm", "push", 9.0),
            _way("dbelief, shm", "put", 6.0),
            _way("dbelief, shm", "pull", 77.0, mib=1),
            _way("socket", "pull", 99.0),  # measured once more, beside a library that keeps cores busy
        ]
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, found in RESULTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"measured": MEASURED, **found}))
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    return tmp_path


def test_accuracy_by_replicas() -> None:
    text = measurements.replicas_table()
    assert text.startswith("`python -m benchmarks.some.thing`, 2026-01-02, 2 cores, A processor.\n\n")
    assert "| 4 | 98.40 | 98.41 | 98.42 | **98.41** | +0.30 | 3.00 | 40 s |" in text


def test_a_run_that_did_not_complete_is_counted_and_has_no_accuracy() -> None:
    assert "| a shard | 2 | 1 | 96.00 | +1.00 | 7, 3 |" in measurements.kills_table()


def test_a_baselines_push_stands_beside_a_put() -> None:
    lines = measurements.transfers_table().splitlines()[-2:]
    assert lines == ["| dbelief, shared memory | 5.0 | 6.0 | 9.0 |", "| socket | 20.0 | 21.0 |  |"]


def test_deaths_over_all_roles() -> None:
    line = measurements.churn_table().splitlines()[-1]
    assert line == ("| dbelief, MNIST, b | 2 of 60 s | 9 | **71%**: 90%, 94% | 0.0 s, 4.2 s |  | +0.02 | 3 of 2,000 |")
    assert measurements.churn_parts_table().splitlines()[-2:] == [
        "| registry |  | 1: 0.0 s, 0.0 s |",
        "| worker | 4: 1.0 s, 4.2 s |  |",
    ]


def test_step_beside_torch() -> None:
    assert "| torch | 13.4 |" in measurements.step_table()


def test_a_file_that_no_benchmark_made_is_refused(folder: Path) -> None:
    (folder / "kills.json").write_text(json.dumps(RESULTS["kills"]))
    with pytest.raises(ValueError, match=r"kills\.json: has no measured\.command"):
        measurements.kills_table()


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("replicas", ["staleness 3.0", "test accuracy"]),
        ("kills", ["a shard", "1 of 2 completed"]),
        ("speed", ["dbelief, shared memory", "20.0", "9.0", "13.4"]),
    ],
)
def test_a_picture_shows_the_numbers_of_its_table(name: str, texts: list[str]) -> None:
    drawn = plots.svg(name)
    assert drawn == plots.svg(name), "the same files give the same picture"
    written = re.findall(r">([^<>]+)</t(?:ext|span)>", drawn)
    assert not [text for text in texts if not any(text in line for line in written)], written
