"""`dbelief simulate`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dbelief.cli.main import main
from dbelief.simulate.replay.delays import DelayTrace

JOB = """
name: small
model: {layers: [{dense: 1}], loss: square}
data: {source: synthetic, kind: regression, samples: 1000, features: 4, noise: 0.0}
strategy: {name: downpour, batch: 10, rule: {name: sgd, rate: 0.1}}
limits: {epochs: 40}
"""
FLEET = """
groups:
  - {name: office, machines: 6, step: 200ms, link: 50Mbit, latency: 5ms, price: 0.25}
  - {name: server, workers: 0, shards: 1, coordinator: true, link: 1Gbit}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return tmp_path


def _simulate(*words: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "job.yaml", "--machines", "fleet.yaml", *words])


def test_a_table_names_what_counts(folder: Path) -> None:
    result = _simulate("--for", "10min")
    assert result.exit_code == 0, result.output
    for words in ("to its end, 6 workers, 1 shard", "times one worker alone", "versions, a mean over", "used most"):
        assert words in result.output
    assert "1.50 an hour" in result.output


def test_json_delays_and_a_picture(folder: Path) -> None:
    result = _simulate(
        "--json", "--delays", "delays.npz", "--pushes", "500", "--plot", "plot.png", "--kill", "shard@5s"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["samples"] == 40 * 800, "a fifth is kept for validation and test"
    assert found["failures"]["shard"] == 1
    assert found["staleness_mean"] == pytest.approx(5, abs=0.5)
    trace = DelayTrace.read(folder / "delays.npz")
    assert (trace.strategy, trace.replicas, trace.pushes) == ("downpour", 6, 500)
    versions = np.cumsum(trace.kind == 1)
    stale = []
    fetched = [0] * 6
    for place, (kind, replica) in enumerate(trace.events()):
        if kind == 0:
            fetched[replica] = versions[place]
        elif kind == 1:
            stale.append(versions[place] - 1 - fetched[replica])
    assert np.mean(stale) == pytest.approx(found["staleness_mean"], abs=0.3)
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--kill", "worker"), "--kill worker: wanted ROLE@TIME"),
        (("--kill", "worker@soon"), "'soon' is no time"),
        (("--after", "2h"), "leaves nothing of the 3600 s"),
        (("--plot", "plot.jpg"), "the name of a picture ends with .png"),
        (("--costs", "none.yaml"), "none.yaml: no such file"),
        (("--set", "strategy={name: easgd, rate: 0.1}"), "take turns are not simulated"),
        (("other.yaml",), "one JOB is simulated"),
    ],
)
def test_errors(folder: Path, words: tuple[str, ...], message: str) -> None:
    result = _simulate(*words)
    assert result.exit_code != 0
    assert message in result.output
