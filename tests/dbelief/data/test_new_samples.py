"""New samples are read as the job's data is: predictions on a test file are those that evaluation judges."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import dbelief
from dbelief.arrays.backend import select_backend
from dbelief.cli.inspect_run import predict
from dbelief.core.sample_form import SampleForm
from dbelief.data import Samples, load
from dbelief.data.new_samples import read_samples
from dbelief.errors import DataError
from dbelief.job import build_job
from dbelief.rundir.model_metadata import model_metadata
from dbelief.training.session import build_model, initial_values

RNG = np.random.default_rng(5)
NAMES = ("high", "low", "mid")


def csv_data(folder: Path) -> tuple[dict[str, Any], Path]:
    """A table with named classes and an ignored column; the new samples' columns are in another order."""
    rows = [(*map(repr, RNG.standard_normal(3).round(3).tolist()), NAMES[number % 3], number) for number in range(60)]
    (folder / "train.csv").write_text("a,b,c,y,id\n" + "".join(f"{a},{b},{c},{y},{i}\n" for a, b, c, y, i in rows))
    (folder / "test.csv").write_text("a,b,c,y,id\n" + "".join(f"{a},{b},{c},{y},{i}\n" for a, b, c, y, i in rows[:20]))
    (folder / "new.csv").write_text("c,note,b,a\n" + "".join(f"{c},x,{b},{a}\n" for a, b, c, _, _ in rows[:20]))
    spec = {"source": "csv", "file": "train.csv", "kind": "classes", "target": "y", "ignore": "id", "scale": 0.5}
    return {**spec, "test_file": "test.csv"}, folder / "new.csv"


def table_without_header(folder: Path) -> tuple[dict[str, Any], Path]:
    rows = RNG.standard_normal((60, 4)).round(3)
    text = "".join(";".join(map(str, row)) + "\n" for row in rows.tolist())
    (folder / "all.csv").write_text(text)
    (folder / "test.csv").write_text("".join(line + "\n" for line in text.splitlines()[:20]))
    (folder / "new.csv").write_text("".join(line.rpartition(";")[0] + "\n" for line in text.splitlines()[:20]))
    spec = {"source": "csv", "file": "all.csv", "kind": "regression", "target": -1, "header": False, "delimiter": ";"}
    return {**spec, "test_file": "test.csv"}, folder / "new.csv"


def idx_data(folder: Path) -> tuple[dict[str, Any], Path]:
    for name, count in (("train", 50), ("t10k", 20)):
        pixels = RNG.integers(0, 256, (count, 3, 4), np.uint8)
        images = struct.pack(">4I", 0x803, count, 3, 4) + pixels.tobytes()
        labels = struct.pack(">2I", 0x801, count) + bytes(number % 3 for number in range(count))
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    return {"source": "idx", "folder": ".", "validation": 10}, folder / "t10k-images-idx3-ubyte.gz"


def libsvm_data(folder: Path) -> tuple[dict[str, Any], Path]:
    lines = [
        f"{(-1, 1)[number % 2]} " + " ".join(f"{index + 1}:{RNG.standard_normal():.3f}" for index in range(number % 5))
        for number in range(60)
    ]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "test.txt").write_text("\n".join(lines[:20]) + "\n")
    spec = {"source": "libsvm", "train": "train.txt", "test": "test.txt", "features": 4}
    return spec, folder / "test.txt"


def npz_data(folder: Path) -> tuple[dict[str, Any], Path]:
    inputs, targets = RNG.standard_normal((60, 5)).astype(np.float32), RNG.standard_normal((60, 2)).astype(np.float32)
    test, wanted = inputs[:20], targets[:20]
    np.savez(folder / "all.npz", train_inputs=inputs, train_targets=targets, test_inputs=test, test_targets=wanted)
    np.savez(folder / "new.npz", inputs=inputs[:20], other=targets)
    return {"source": "npz", "file": "all.npz"}, folder / "new.npz"


def digits(folder: Path) -> tuple[dict[str, Any], Path]:
    job = build_job(fields({"source": "digits"}, 10), folder)
    test = load(job.data, folder).test
    assert test is not None
    np.save(folder / "new.npy", test.inputs)
    return {"source": "digits"}, folder / "new.npy"


def fields(data: dict[str, Any], outputs: int) -> dict[str, object]:
    loss = "square" if data.get("kind") == "regression" or data["source"] == "npz" else "softmax_cross_entropy"
    return {
        "name": "small",
        "model": {"layers": [{"dense": outputs}], "loss": loss},
        "data": data,
        "strategy": {"name": "downpour", "batch": 10, "rule": {"name": "sgd", "rate": 0.1}},
        "limits": {"epochs": 1},
    }


@pytest.mark.parametrize(
    ("source", "outputs"),
    [(csv_data, 3), (table_without_header, 1), (idx_data, 3), (libsvm_data, 2), (npz_data, 2), (digits, 10)],
)
def test_predictions_are_those_that_evaluation_judges_sample_by_sample(
    tmp_path: Path, source: Any, outputs: int
) -> None:
    """The data is removed before, but for the file of the samples."""
    data, new = source(tmp_path)
    job = build_job(fields(data, outputs), tmp_path)
    held = load(job.data, tmp_path)
    assert held.test is not None
    model, _ = build_model(job, held, select_backend("cpu"))
    layout, flat = initial_values(job, model)
    views = layout.views(flat)
    file = tmp_path / "model" / "small.safetensors"
    file.parent.mkdir()
    save_file({name: np.array(values) for name, values in views.items()}, file, model_metadata(job, held.form))
    expected = np.asarray(model.last_layer(views, whole(held.test)))  # type: ignore[attr-defined]
    for other in tmp_path.iterdir():
        if other not in (new, file.parent):
            other.unlink()

    trained = dbelief.load_model(file)
    found = trained.outputs(read_samples(new, trained.job.data, trained.samples))
    np.testing.assert_array_equal(found, expected)
    rows = list(predict(file, new, with_outputs=True))
    if held.classes is None:
        np.testing.assert_allclose(np.array(rows, np.float32), expected, rtol=1e-6)
        return
    names = held.names or tuple(map(str, range(held.classes)))
    assert rows[0] == ["class", *names]
    assert [row[0] for row in rows[1:]] == [names[place] for place in expected.argmax(axis=1)]
    assert [row[:1] for row in rows[1:]] == list(predict(file, new, with_outputs=False))


def whole(split: Samples) -> Any:
    return split.gather(np.arange(len(split)), split.buffer(len(split)))


def test_a_column_that_is_ignored_by_its_number_may_have_the_name_of_another(tmp_path: Path) -> None:
    data = build_job(fields(CSV | {"ignore": [1]}, 3), tmp_path).data
    for text in ("a,b,a,y\n9,2,1,low\n", "b,a\n2,1\n"):
        (tmp_path / "new.csv").write_text(text)
        assert read_samples(tmp_path / "new.csv", data, FORM).tolist() == [[1, 2]]


def test_rows_of_libsvm_may_have_any_label_or_none(tmp_path: Path) -> None:
    (tmp_path / "new.txt").write_text("1:5 2:6\n? 2:7\n0.5 1:8\n9\n")
    data = build_job(fields({"source": "libsvm", "train": "x"}, 3), tmp_path).data
    assert read_samples(tmp_path / "new.txt", data, FORM).dense().tolist() == [[5, 6], [0, 7], [8, 0], [0, 0]]


FORM = SampleForm((2,), 3, 3, 1.0, NAMES, ("a", "b"))
CSV = {"source": "csv", "file": "x.csv", "kind": "classes", "target": "y"}


@pytest.mark.parametrize(
    ("data", "name", "content", "message"),
    [
        (CSV, "new.csv", b"a,y\n1,2\n", "no column is called 'b'"),
        (CSV, "new.csv", b"a,bb,y\n1,2,3\n", "no column is called 'b'; did you mean 'bb'"),
        (CSV, "new.csv", b"a,b,a\n1,2,3\n", "2 columns are called 'a'"),
        (CSV, "new.csv", b"a,b\n1,x\n", r"new\.csv, line 2, column 2 \('b'\): 'x' is not a number"),
        (CSV, "new.csv", b"a,b\n1,\n", r"new\.csv, line 2, column 2 \('b'\)"),
        (CSV, "new.csv", b"1,2\n3,4\n", "its first row holds numbers only"),
        (CSV, "new.csv", b"a,b\n", "has no rows below its header"),
        (CSV, "none.csv", None, r"none\.csv: no such file"),
        (CSV, "new.npy", b"junk", r"new\.npy: is no array of numbers, or a damaged one"),
        (CSV, "new.npy", b"", r"new\.npy: is no array of numbers, or a damaged one"),
        (CSV, "new.npz", b"junk", r"new\.npz: not an \.npz file"),
        (CSV, "none.npz", None, r"none\.npz: no such file"),
        ({"source": "libsvm", "train": "x"}, "new.txt", b"1 3:2\n", "has index 3, but there are 2 features"),
        ({"source": "idx", "folder": "x"}, "new", b"\0\0\x08\x01\0\0\0\0" * 2, "not an IDX file of images"),
        ({"source": "digits"}, "new.csv", b"1,2\n", r"source digits come as \.npy or \.npz files"),
    ],
)
def test_a_file_with_other_samples_is_refused(
    tmp_path: Path, data: dict[str, Any], name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_samples(tmp_path / name, build_job(fields(data, 3), tmp_path).data, FORM)


def test_arrays_of_another_shape_or_without_a_name_are_refused(tmp_path: Path) -> None:
    data = build_job(fields(CSV, 3), tmp_path).data
    np.save(tmp_path / "new.npy", np.zeros((4, 3)))
    with pytest.raises(DataError, match=r"has samples of shape \(4, 3\), the model takes \(n, 2\)"):
        read_samples(tmp_path / "new.npy", data, FORM)
    np.savez(tmp_path / "new.npz", x=np.zeros((4, 2)), y=np.zeros(4))
    with pytest.raises(DataError, match="has arrays x, y, and none is called 'inputs'"):
        read_samples(tmp_path / "new.npz", data, FORM)
    np.savez(tmp_path / "one.npz", x=np.ones((4, 2)))
    np.testing.assert_array_equal(read_samples(tmp_path / "one.npz", data, FORM), np.ones((4, 2)))
