"""A run's model taken out of its folder: as it ended, or out of its newest whole snapshot set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import StoredSegment, state_key, write_shard
from dbelief.core.layout import Box, Layout, SegmentSpan, assign_segments, make_segments
from dbelief.core.sample_form import SampleForm
from dbelief.errors import DataError, SnapshotError, UserError
from dbelief.process.atomic_file import Disk, use_disk
from dbelief.rundir.export import export_run
from dbelief.rundir.model_metadata import ModelMetadata
from tests.assembled import assembled
from tests.dbelief.monitor.test_status import JOB, SUMMARY
from tests.traced import traced

LAYOUT = Layout(
    (
        Box("w", (4, 6), 0, (0, 0), (4, 2)),
        Box("b", (6,), 0, (0,), (6,)),
        Box("w", (4, 6), 1, (0, 2), (4, 6)),
        Box("scale", (), 1, (), ()),
    )
)
NOMINAL = 5
FORM = SampleForm((4,), 6, 6, 0.5, tuple("abcdef"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was killed at its start; exports go into the current directory."""
    folder = tmp_path / "runs" / "digits"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "job.yaml").write_text(JOB)
    monkeypatch.chdir(tmp_path)
    return folder


def flat(seed: int, layout: Layout = LAYOUT) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(layout.size, dtype=np.float32)


def write(
    run: Path,
    set_id: str,
    values: np.ndarray,
    shards: int = 2,
    best: str | None = None,
    layout: Layout = LAYOUT,
    nominal: int = NOMINAL,
) -> Path:
    """A complete set: "w" holds the values, "best.1" their negatives, and the rule's state something else."""
    folder = run / "snapshots" / set_id
    folder.mkdir()
    spans = make_segments(layout.rank_ranges(), nominal)
    about = {"job": "digits", "set": set_id, "rule": "sgd", "shard_epoch": 1}

    def vectors(span: SegmentSpan) -> dict[str, tuple[np.dtype[Any], int]]:
        return {name: (np.dtype("<f4"), span.length) for name in ("w", "best.1", state_key("v"))}

    def stored(span: SegmentSpan) -> StoredSegment:
        own = values[span.start : span.stop]
        return StoredSegment(span, 1, 1, 0, 0, {}, {"w": own, "best.1": -own, state_key("v"): 0 * own})

    for number, (first, count) in enumerate(assign_segments(spans, shards)):
        mine = spans[first : first + count]
        write_shard(folder, number, about, [(span, vectors(span)) for span in mine], map(stored, mine))
    state = {
        "segments": len(spans),
        "boxes": layout.rows(),
        "samples": FORM.text,
        "nominal_length": nominal,
        "progress": {"samples": 700, "best": None if best is None else {"vector": best}},
    }
    LocalSets(folder.parent).commit(set_id, "digits", state)
    return folder


def finished(run: Path, values: np.ndarray, state: str = "done") -> None:
    save_file(assembled(LAYOUT, values), run / "model.safetensors", {"job": "digits"})
    (run / "summary.json").write_text(json.dumps({**SUMMARY, "state": state}))


def holds(path: Path, values: np.ndarray, layout: Layout = LAYOUT) -> bool:
    """Whether a file holds exactly these parameters as canonical tensors."""
    found = load_file(path) if path.suffix == ".safetensors" else dict(np.load(path))
    wanted = assembled(layout, values)
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()}
    same = all(np.array_equal(found[name], tensor) for name, tensor in wanted.items() if name in found)
    return same and shapes == {name: (tensor.shape, tensor.dtype) for name, tensor in wanted.items()}


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_a_run_that_ended_gives_its_model(run: Path, form: str, tmp_path: Path) -> None:
    finished(run, flat(1))
    write(run, "000000000700-0001", flat(2))
    told = export_run(run, form, None, None)  # type: ignore[arg-type]
    assert told == f"digits.{form}: from {run / 'model.safetensors'}"
    assert holds(tmp_path / f"digits.{form}", flat(1))


@pytest.mark.parametrize("late", ["npz", "safetensors"])
def test_concurrent_exports_of_both_formats_are_whole(run: Path, late: str, tmp_path: Path) -> None:
    finished(run, flat(1))
    (tmp_path / "digits.writing").write_bytes(b"a person's")
    early = "npz" if late == "safetensors" else "safetensors"
    through = iter([early])

    class Slow(Disk):
        def sync(self, file: BinaryIO) -> None:
            for other in through:  # the first writer has written, and the second does all of its work
                export_run(run, other, None, None)  # type: ignore[arg-type]
            super().sync(file)

    with use_disk(Slow()):
        export_run(run, late, None, None)  # type: ignore[arg-type]
    assert holds(tmp_path / "digits.npz", flat(1))
    assert holds(tmp_path / "digits.safetensors", flat(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "digits.npz", "digits.safetensors", "digits.writing", "runs"
    ]  # fmt: skip
    assert (tmp_path / "digits.writing").read_bytes() == b"a person's"


@pytest.mark.parametrize("form", ["safetensors", "npz"])
@pytest.mark.parametrize("shards", [1, 2, 3, 9])
def test_a_run_that_was_killed_gives_its_newest_set(run: Path, shards: int, form: str, tmp_path: Path) -> None:
    write(run, "000000000900-0001", flat(1))
    newest = write(run, "000000000700-0002", flat(2), shards)
    output = tmp_path / f"mine.{form}"
    told = export_run(run, form, output, None)  # type: ignore[arg-type]
    assert told == f"{output}: from vector 'w' of snapshot set {newest}, after 700 samples"
    assert holds(output, flat(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [output.name, "runs"]
    if form == "safetensors":
        with safe_open(output, framework="numpy") as file:
            about = file.metadata()
        assert {name: about[name] for name in ("job", "set", "vector")} == {
            "job": "digits",
            "set": newest.name,
            "vector": "w",
        }


def test_an_exported_set_says_its_job_and_the_form_of_its_samples(run: Path, tmp_path: Path) -> None:
    write(run, "000000000700-0001", flat(2))
    export_run(run, "safetensors", None, None)
    found = ModelMetadata.read(tmp_path / "digits.safetensors")
    assert found.samples == FORM
    assert found.load_job().name == "digits"


def test_failed_run_exports_its_newest_set(run: Path, tmp_path: Path) -> None:
    finished(run, flat(1), state="failed")
    write(run, "000000000700-0001", flat(2))
    export_run(run, "npz", None, None)
    assert holds(tmp_path / "digits.npz", flat(2))


def test_corrupt_set_is_reported_and_skipped(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(run, "000000000600-0001", flat(1))
    (write(run, "000000000700-0002", flat(2)) / "shard-1.safetensors").write_bytes(b"\0")
    export_run(run, "safetensors", None, None)
    assert holds(tmp_path / "digits.safetensors", flat(1))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("snapshot set 000000000700-0002 is not whole, an older one is taken: ")


def test_any_vector_of_a_set_may_be_asked_for(run: Path, tmp_path: Path) -> None:
    finished(run, flat(1))
    folder = write(run, "000000000700-0001", flat(2), best="best.1")
    for vector, values in (("w", flat(2)), ("best", -flat(2)), ("best.1", -flat(2)), ("rule/v", 0 * flat(2))):
        export_run(run, "npz", None, vector)
        assert holds(tmp_path / "digits.npz", values)
    with pytest.raises(UserError, match=r"holds no vector 'x' whole; there is: best\.1, rule/v, w$"):
        export_run(run, "npz", None, "x")
    assert holds(tmp_path / "digits.npz", 0 * flat(2))
    assert folder.is_dir()


@pytest.mark.parametrize(("best", "keeps"), [("best.1", True), (None, True), ("", False)])
def test_keep_best_exports_the_best_parameters(run: Path, best: str | None, keeps: bool, tmp_path: Path) -> None:
    (run / "job.yaml").write_text(JOB + ("evaluate: {keep: best}\n" if keeps else ""))
    write(run, "000000000700-0001", flat(2), best=best)
    export_run(run, "safetensors", None, None)
    assert holds(tmp_path / "digits.safetensors", -flat(2) if best else flat(2))
    if not best:
        with pytest.raises(UserError, match="holds no best parameters"):
            export_run(run, "safetensors", None, "best")


def test_nothing_to_export_is_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"digits: holds neither model\.safetensors nor a complete snapshot set$"):
        export_run(run, "npz", None, None)
    write(run, "000000000700-0001", flat(2))
    with pytest.raises(UserError, match=r"^nowhere/x: there is no folder nowhere$"):
        export_run(run, "npz", Path("nowhere/x"), None)
    with pytest.raises(UserError, match="no such file"):
        export_run(tmp_path, "npz", None, None)
    finished(run, flat(1))
    (run / "model.safetensors").write_bytes(b"\1\0\0")
    with pytest.raises(DataError, match=r"model\.safetensors: cannot be read"):
        export_run(run, "npz", None, None)
    (run / "snapshots" / "000000000700-0001" / "set.json").unlink()
    LocalSets(run / "snapshots").commit("000000000700-0001", "digits", {"segments": 6})
    with pytest.raises(SnapshotError, match="does not describe the model"):
        export_run(run, "npz", None, "w")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_memory_holds_a_few_segments_whatever_the_model(run: Path) -> None:
    nominal = 1 << 15
    layout = Layout.of({"w": np.empty((64, nominal), np.float32)})
    write(run, "000000000700-0001", flat(0, layout), layout=layout, nominal=nominal)
    segment = 3 * 4 * nominal  # bytes, with the best and the rule's state; two where one file ends and the next begins
    used = traced(lambda: export_run(run, "safetensors", None, "w")).peak
    assert used < 3 * segment < 4 * layout.size / 4
