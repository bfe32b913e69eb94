"""Runs of a comparison, their order, and reuse of finished ones; with a fake run that takes no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.errors import JobError, RuntimeFailure, UserError
from dbelief.job import Comparison, ComparisonFile, Trial
from dbelief.tools.experiments.compare.comparison import compare
from dbelief.tools.experiments.compare.record import Record, digest_of
from dbelief.tools.experiments.compare.time_to_target import EvaluatedPoint, RunPoint
from dbelief.tools.experiments.compare.trial import Examiner

FILE = """
name: digits
base:
  model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
  data: {source: digits}
  limits: {epochs: 2}
  replicas: 3
strategies:
  sgd: {strategy: {name: downpour, rule: {name: sgd, rate: 0.1}}, replicas: 1}
  easgd: {strategy: {name: async-easgd, rate: 0.1}}
seeds: [0, 1]
targets: [0.9]
every: {samples: 100}
compute_wait_s: [0, 0.5]
"""


class World:
    """A folder, and what was run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "digits.yaml"
        self.file.write_text(FILE)
        self.ran: list[str] = []
        self.broken: set[str] = set()
        self.told: list[str] = []
        self.learns = False  # else there is nothing to draw

    def _run(self, trial: Trial, comparison: Comparison, folder: Path, examiner: Examiner) -> Record:
        self.ran.append(trial.name)
        fields: dict[str, Any] = {"reached": {"0.9": None}, "accuracy": 0.95}
        if self.learns:
            fields["reached"] = {"0.9": RunPoint(seconds=2.0, samples=10)}
            fields["curve"] = [EvaluatedPoint(seconds=s, samples=10 * s, accuracy=0.1 + 0.08 * s) for s in range(11)]
        return Record(
            label=trial.label,
            replicas=trial.replicas,
            wait_s=trial.wait_s,
            seed=trial.seed,
            digest=digest_of(trial, comparison),
            **({"failed": "no worker is left"} if trial.name in self.broken else fields),
        )

    def compare(self, **options: Any) -> list[Path]:
        self.ran.clear()
        return compare(self.file, output=self.folder / "out", log=self.told.append, run=self._run, **options)

    def table(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "out" / "compare.json").read_text())
        return found

    def change(self, old: str, new: str) -> None:
        assert old in self.file.read_text()
        self.file.write_text(self.file.read_text().replace(old, new))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_seeds_are_gone_through_one_after_another(world: World) -> None:
    world.learns = True
    written = world.compare()
    assert world.ran == [f"{one}.{wait}.{seed}" for wait in (0, 0.5) for seed in (0, 1) for one in ("sgd.1", "easgd.3")]
    assert len(world.told) == 8
    assert world.told[0] == ("1/8 sgd, 1 replica, seed 0: 95.00 % after 0.0 s, 0 samples; 90 % after 2.0 s, 10 samples")
    assert [path.name for path in written] == [
        "compare.json",
        "table.md",
        *[f"{name}-{wait}.png" for wait in ("0", "0.5") for name in _PICTURES],
    ]
    assert all(path.stat().st_size for path in written)
    assert [(row["label"], row["wait_s"], row["runs"]) for row in world.table()["rows"]] == [
        ("sgd", 0.0, 2),
        ("easgd", 0.0, 2),
        ("sgd", 0.5, 2),
        ("easgd", 0.5, 2),
    ]


_PICTURES = ("error-by-seconds", "error-by-samples", "time-by-replicas")


def test_finished_trials_are_reused(world: World) -> None:
    world.compare(only=["sgd"], seeds=["1"])
    assert world.ran == ["sgd.1.0.1", "sgd.1.0.5.1"]
    world.compare(waits=["0.5"], seeds=["0"])
    assert world.ran == ["sgd.1.0.5.0", "easgd.3.0.5.0"]
    world.compare()
    assert len(world.ran) == 4
    world.compare()
    assert world.ran == []
    assert len(world.table()["runs"]) == 8


def test_failed_trials_are_run_again(world: World) -> None:
    world.broken = {"easgd.3.0.1"}
    world.compare()
    (row,) = [row for row in world.table()["rows"] if (row["label"], row["wait_s"]) == ("easgd", 0.0)]
    assert (row["runs"], row["failed"]) == (1, ["seed 1: no worker is left"])
    assert "easgd, 3 replicas, seed 1: failed: no worker is left" in world.told[3]
    world.broken.clear()
    world.compare()
    assert world.ran == ["easgd.3.0.1"]


@pytest.mark.parametrize(
    ("old", "new", "again"),
    [
        ("async-easgd, rate: 0.1", "async-easgd, rate: 0.2", 4),
        ("epochs: 2", "epochs: 3", 8),
        ("targets: [0.9]", "targets: [0.8]", 8),
        ("{samples: 100}", "{samples: 200}", 8),
        ("seeds: [0, 1]", "seeds: [0, 1, 2]", 4),
    ],
)
def test_changed_trials_are_run_again(world: World, old: str, new: str, again: int) -> None:
    world.compare()
    world.change(old, new)
    world.compare()
    assert len(world.ran) == again


def test_all_begin_with_one_run_for_each_seed(world: World) -> None:
    world.change("seeds:", "warm_start: {replicas: 1, strategy: {name: async-easgd, rate: 1.0}}\nseeds:")
    world.compare(seeds=["1"])
    assert world.ran == ["warm-start.1", *[f"{one}.{wait}.1" for wait in (0, 0.5) for one in ("sgd.1", "easgd.3")]]
    trials = ComparisonFile(world.file, world.folder / "out" / "runs").trials()
    begins = {trial.job.start_from for trial in trials if trial.seed == 1}
    assert begins == {str(world.folder / "out" / "runs" / "warm-start.1")}
    world.broken = {"warm-start.0"}
    with pytest.raises(RuntimeFailure, match=r"^warm-start.0: no worker is left$"):
        world.compare()


def test_replicas_may_be_gone_through(world: World) -> None:
    world.change("seeds:", "replicas: [1, 2, 4]\nseeds:")
    world.compare(seeds=["0"])
    assert [name for name in world.ran if name.endswith(".0.0")] == [
        f"{one}.0.0" for one in ("sgd.1", "easgd.1", "easgd.2", "easgd.4")
    ]


def test_jobs_evaluate_nothing_while_they_train(world: World) -> None:
    for trial in ComparisonFile(world.file, world.folder).trials():
        assert trial.job.evaluate.every == 10**15
        assert not trial.job.keeps_best
        assert trial.job.output == world.folder


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rule: {name: sgd", "rule: {name: sdg", r"\(strategy sgd\), line 9: strategy.rule.name: .* did you mean sgd"),
        ("epochs: 2", "epoch: 2", r"\(strategy sgd\), line 6: limits.epoch: no such field, did you mean epochs"),
        ("targets", "target", r"line 12: target: no such field, did you mean targets"),
        ("[0.9]", "[98.8]", r"line 12: targets.0: must be a number above 0 and at most 1|targets.0"),
        ("{samples: 100}", "{}", r"every: must give one of samples and seconds"),
        ("sgd: {strategy", "s/d: {strategy", r"strategies: 's/d' must be 1 to 32 letters"),
        ("replicas: 1}", "seed: 1}", r"strategies.sgd.seed: is the comparison's own"),
        ("seeds: [0, 1]", "seeds: [0, 0]", r"seeds: names one twice"),
        ("epochs: 2", "epochs: 2, patience: 3", r"limits.patience: nothing is evaluated while a compared job trains"),
        ("replicas: 3", "grid: [2]", r"grid: compared are models that are not cut"),
    ],
)
def test_errors_name_their_place(world: World, old: str, new: str, says: str) -> None:
    world.change(old, new)
    with pytest.raises(JobError, match=says):
        ComparisonFile(world.file, world.folder).trials()


def test_the_base_may_be_a_job_file(world: World) -> None:
    (world.folder / "jobs").mkdir()
    (world.folder / "jobs" / "base.yaml").write_text(
        "{name: x, seed: 7, model: {layers: [{dense: 10}], loss: square}, data: {source: npz, file: a.npz},"
        " limits: {epochs: 2}, strategy: {name: async-easgd, rate: 1.0}}"
    )
    text = FILE[FILE.index("strategies:") :]
    world.file.write_text(f"name: digits\nbase: jobs/base.yaml\n{text}")
    jobs = [trial.job for trial in ComparisonFile(world.file, world.folder).trials()]
    assert {job.folder for job in jobs} == {world.folder / "jobs"}
    assert {job.name for job in jobs if job.seed == 1} == {f"{one}.{wait}.1" for wait in (0, 0.5) for one in _ONES}


_ONES = ("sgd.1", "easgd.1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"only": ["esgd"]}, "--only esgd: the file has no such strategy; did you mean easgd"),
        ({"seeds": ["7", "1"]}, "--seeds 7: the file has 0, 1"),
        ({"waits": ["0.5", "2", "1"]}, "--waits 1, 2: the file has 0, 0.5"),
    ],
)
def test_unknown_selections_are_refused(world: World, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        world.compare(**options)
    assert world.ran == []


def test_missing_test_set_is_refused_before_any_run(world: World) -> None:
    np.savez(world.folder / "a.npz", inputs=np.ones((8, 3), np.float32), targets=np.arange(8) % 2)
    world.change("{source: digits}", "{source: npz, file: a.npz, test: 0}")
    with pytest.raises(UserError, match="there is no test set"):
        world.compare()
    assert world.ran == []
