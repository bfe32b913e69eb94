"""The benchmark of a9a and rcv1 on files of a few rows: parts, choice of a setting, ways and what is left out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import runs
from benchmarks.sparse import logistic
from benchmarks.sparse.ftrl import FtrlSetting
from benchmarks.sparse.logit_measures import auc

SOURCE = logistic.Source("train.dat", "test.dat", 8)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """120 rows of VW's text and 40 of LIBSVM's; a label follows two of ten keys."""
    rng = np.random.default_rng(0)
    for name, rows, form in (("train.dat", 120, "{} |f {}"), ("test.dat", 40, "{} {} ")):
        lines = []
        for _ in range(rows):
            keys = np.sort(rng.choice(10, 3, replace=False)) + 1
            label = 1 if rng.random() < (0.9 if {1, 2} & {*keys.tolist()} else 0.1) else -1
            lines.append(form.format(f"{label:+d}", " ".join(f"{key}:1.5" for key in keys)))
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_parts_are_the_rows_in_both_texts(data: Path) -> None:
    parts = logistic.prepared(SOURCE, data, data)
    fit, held, train = (file.read_text().splitlines() for file in parts[:3])
    assert (len(fit), len(held), len(train), parts.size, parts.keys) == (96, 24, 120, 8, 11)
    assert train[4] == held[0]
    assert sorted(fit + held) == sorted(train)
    assert [line.replace("|f ", "") for line in (data / "test.vw").read_text().splitlines()] == [
        line.strip().replace("+", "") for line in (data / "test.dat").read_text().splitlines()
    ]
    assert logistic.labels_of(parts.train).tolist() == [float(line.startswith("1 ")) for line in train]


def test_ftrl_and_scikit_learn_find_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, grid in (("RATES", (0.3, 1.0)), ("PASSES", (1, 4)), ("PENALTIES", (0.3, 3.0))):
        monkeypatch.setattr(logistic, name, grid)
    parts = logistic.prepared(SOURCE, data, data)
    choice = logistic.chosen(parts, 0)
    labels = logistic.labels_of(parts.test)
    setting, logits, seconds = logistic.by_scikit_learn(parts)
    assert choice.setting.rate in logistic.RATES
    assert str(choice).startswith(f"alpha {choice.setting.rate:g}, ")
    assert setting.startswith("C ")
    assert seconds > 0
    for found in (logistic.by_one_process(parts, choice, 0), logits):
        assert auc(found, labels) > 0.75
        assert found.shape == (40,)


@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("vowpalwabbit") is not None, reason="vowpalwabbit is installed")
def test_a_peer_that_fails_is_left_out(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = logistic.prepared(SOURCE, data, data)
    with runs.temporary_run("peer") as run:
        assert logistic.by_vw(run, Path(sys.executable), parts, 0) == {}
    assert "No module named 'vowpalwabbit'" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.torch
def test_a_job_on_one_worker_is_the_one_process(data: Path) -> None:
    pytest.importorskip("torch", reason="the torch extra is not installed")
    parts, choice = logistic.prepared(SOURCE, data, data), logistic.Choice(FtrlSetting(0.3, l1=0.3), 3)
    trained = logistic.by_job(parts, choice, 1, 0)
    np.testing.assert_allclose(trained.logits, logistic.by_one_process(parts, choice, 0), atol=1e-4)
