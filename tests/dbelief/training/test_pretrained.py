"""Stacks that earlier runs have trained: found in runs and model files; what is wrong with those is one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from dbelief.arrays.backend import select_backend
from dbelief.data import load
from dbelief.errors import DataError, ModelError, UserError
from dbelief.job import Job, parse_job
from dbelief.rundir.folder import check_start
from dbelief.storage.object_store import connect
from dbelief.training.session import build_model, initial_values
from dbelief.url import Url, parse_url

JOB = """
name: top
model:
  stacks:
    - {{window: 4, block: 2, maps: 3, pool: 2, contrast: {{size: 1}}}}
    - {{window: 2, block: 1, maps: 2, pool: 2}}
  image: [8, 8, 1]
  train: {train}
  trained: {trained}
data: {{source: digits}}
strategy: {{name: downpour, rule: {{name: sgd, rate: 0.1}}}}
limits: {{epochs: 1}}
output: {output}
"""
SHAPES = {
    "stack1.weight": (3, 3, 12, 2, 2, 4),
    "stack1.alpha": (1,),
    "stack2.weight": (4, 4, 2, 2, 2, 3),
    "stack2.alpha": (1,),
}


def tensors(seed: int, place: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mine = {name: shape for name, shape in SHAPES.items() if name.startswith(f"stack{place}")}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in mine.items()}


def job_of(folder: Path, train: Any = 2, trained: str = "[one]") -> Job:
    return parse_job(JOB.format(train=train, trained=trained, output=folder / "runs"), folder, "job")


def values_of(job: Job) -> tuple[dict[str, np.ndarray], str]:
    """What training begins with, and the digest."""
    model, digest = build_model(job, load(job.data, job.folder), select_backend("cpu"))
    layout, values = initial_values(job, model)
    return {name: np.array(view) for name, view in layout.views(values).items()}, digest


def run(folder: Path, held: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(job_of(folder, "all", "[]").to_yaml())
    save_file(held, folder / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a job file, with a run that has trained stack 1, and a file of stack 2."""
    run(tmp_path / "one", tensors(1, 1))
    save_file(tensors(2, 2), tmp_path / "two.safetensors")
    return tmp_path


def test_greedy_job_starts_on_a_trained_stack(folder: Path) -> None:
    values, digest = values_of(job_of(folder))
    assert {name: array.shape for name, array in values.items()} == dict(list(SHAPES.items())[2:])
    drawn, nothing = values_of(job_of(folder, "all", "[]"))
    assert nothing == ""
    assert set(drawn) == set(SHAPES)
    run(folder / "other", tensors(9, 1))
    assert len({digest, values_of(job_of(folder, trained="[other]"))[1], nothing}) == 3
    assert values_of(job_of(folder))[1] == digest


def test_a_joint_job_begins_with_the_files_that_there_are(folder: Path) -> None:
    values, _ = values_of(job_of(folder, "all", "[one, two.safetensors]"))
    for name, array in {**tensors(1, 1), **tensors(2, 2)}.items():
        assert np.array_equal(values[name], array)
    half, _ = values_of(job_of(folder, "all"))
    assert np.array_equal(half["stack1.weight"], values["stack1.weight"])
    assert not np.array_equal(half["stack2.weight"], values["stack2.weight"])


def test_of_a_stack_in_several_files_the_last_counts(folder: Path) -> None:
    run(folder / "again", tensors(5, 1))
    for trained, seed in (("[one, again]", 5), ("[again, one]", 1)):
        values, _ = values_of(job_of(folder, "all", trained))
        assert np.array_equal(values["stack1.weight"], tensors(seed, 1)["stack1.weight"])


def test_runs_and_model_files_may_be_urls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    prefix = parse_url(f"memory://pretrained/{folder.parent.name}/{folder.name}")
    for name in ("one/job.yaml", "one/model.safetensors", "two.safetensors"):
        connect(prefix).replace(Url(f"{prefix}/{name}"), (folder / name).read_bytes())
    here = values_of(job_of(folder, "all", "[one, two.safetensors]"))
    there = values_of(job_of(folder, "all", f"['{prefix}/one', '{prefix}/two.safetensors']"))
    assert here[1] == there[1]
    assert {name: array.tobytes() for name, array in here[0].items()} == {
        name: array.tobytes() for name, array in there[0].items()
    }
    wrong(folder, f"{prefix}/three: is no run: it holds no job.yaml", trained=f"['{prefix}/three']")


def test_a_lower_stack_is_trained_without_those_above(folder: Path) -> None:
    assert set(values_of(job_of(folder, 1, "[]"))[0]) == {"stack1.weight", "stack1.alpha"}


def wrong(folder: Path, says: str, **fields: Any) -> None:
    with pytest.raises((ModelError, DataError), match=f"^model.trained: {says}$"):
        values_of(job_of(folder, **fields))


def test_missing_stacks_are_named(folder: Path) -> None:
    at = re.escape(str(folder))
    trained_on = "stack 2 is trained on what 'stack1.weight' gives, "
    wrong(folder, trained_on + "and names no run that holds it", trained="[]")
    wrong(folder, trained_on + f"which is not in {at}/two.safetensors", trained="[two.safetensors]")
    wrong(folder, f"{at}/three is neither a run folder nor a model file; a relative path starts .*", trained="[three]")
    (folder / "one" / "model.safetensors").unlink()
    wrong(folder, f"{at}/one: holds neither model.safetensors nor a complete snapshot set")


def test_invalid_model_file_is_named(folder: Path) -> None:
    at = re.escape(str(folder))
    (folder / "torn.safetensors").write_bytes((folder / "two.safetensors").read_bytes()[:-9])
    wrong(folder, f"{at}/torn.safetensors: cannot be read as a model file: .*", trained="[torn.safetensors]")
    save_file({"weight": np.zeros(3, np.float32)}, folder / "layer.safetensors")
    wrong(folder, f"{at}/layer.safetensors holds none of stack1.weight, .*", trained="[layer.safetensors]")
    save_file({"stack1.weight": np.zeros((3, 3, 8, 2, 2, 4), np.float32)}, folder / "other.safetensors")
    shapes = r"is float32 \(3, 3, 8, 2, 2, 4\) there, and float32 \(3, 3, 12, 2, 2, 4\) in the job's model"
    wrong(folder, f"{at}/other.safetensors: tensor 'stack1.weight' {shapes}", trained="[other.safetensors]")


@pytest.mark.parametrize("taken", ["runs/top", "runs/top/model.safetensors"])
def test_run_does_not_build_on_its_own_old_folder(folder: Path, taken: str) -> None:
    with pytest.raises(UserError, match=r"^model.trained: .* is moved aside where a new run"):
        check_start(job_of(folder, trained=f"[one, {taken}]"))
    check_start(job_of(folder, trained="[one, runs/bottom]"))
