"""Missing values of tables: what pandas takes for one, in files, in new samples and in targets."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dbelief.core.sample_form import SampleForm
from dbelief.data import load
from dbelief.data.new_samples import read_samples
from dbelief.data.tables.missing_values import MissingValues
from dbelief.data.tables.table_encoder import TableEncoder
from dbelief.errors import DataError
from dbelief.job import CsvData
from dbelief.job.sources import MISSING_WORDS
from tests.dbelief.data.formats.test_odd_tables import spec


def form(folder: Path, job: CsvData) -> tuple[np.ndarray, SampleForm]:
    """The training inputs, and the form as a model file has it."""
    data = load(job, folder)
    assert data.train is not None
    assert data.form is not None
    return np.asarray(data.train.inputs), SampleForm.parse(data.form.text)


def test_the_words_are_those_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    missing = MissingValues.of(MISSING_WORDS)
    for word in (*MISSING_WORDS, "", " ", "none", "na", "-", "0", "inf", "Nothing", "NULL ", "missing", "N.A."):
        read = pandas.read_csv(io.StringIO(f"a,b\n{word},1\n"), skipinitialspace=True)["a"].isna()[0]
        assert missing.has_text(word) == (read or word in ("NaT", "NULL ")), word  # blanks do not count here


@pytest.mark.parametrize("marker", ["-999", "-999.0", "-9.99e2"])
def test_a_number_is_missing_in_every_form_and_every_way_to_read_it(tmp_path: Path, marker: str) -> None:
    """In the file that is trained on, in new files, texts, numbers and arrays."""
    rows = "".join(f"{x},{i % 2}\n" for i, x in enumerate(["-999", "-999.0", " -999 ", "1", "2", "6"]))
    job = spec(tmp_path, "a,y\n" + rows, missing="mean", missing_values=[marker])
    inputs, kept = form(tmp_path, job)
    assert inputs.ravel().tolist() == [3, 3, 3, 1, 2, 6]
    assert np.array_equal(read_samples(tmp_path / "t.csv", job, kept), inputs)
    assert kept.encoder is not None
    encoder = TableEncoder.restore(kept.encoder)
    texts = [["-999"], ["-999.00"], [-999], [1.0], [np.float32(2)], [np.int64(6)]]
    assert np.array_equal(encoder.encode_rows(texts, "f"), inputs)
    for dtype in (np.float64, np.float32, np.int16):
        array = np.array([[-999], [-999], [-999], [1], [2], [6]], dtype)
        assert np.array_equal(encoder.encode_rows(array, "f"), inputs)
        np.save(tmp_path / "new.npy", array)
        assert np.array_equal(read_samples(tmp_path / "new.npy", job, kept), inputs)


def test_floats_of_fewer_bits_are_compared_in_their_own_type() -> None:
    missing = MissingValues.of(["-999.9", "inf"])
    assert missing.among(np.array([-999.9, 1, np.inf, np.nan], np.float32)).tolist() == [True, False, True, True]
    assert missing.among(np.array([-999, 1])).tolist() == [False, False]


def test_what_is_missing_without_being_a_text() -> None:
    missing = MissingValues.of(["-1"])
    values = [None, math.nan, np.float32("nan"), np.datetime64("NaT"), "", "  ", -1, -1.0, "-1.00"]
    assert all(map(missing.has, values))
    assert not any(map(missing.has, [0, 1.5, "x", True, np.datetime64("2026-01-01")]))


@pytest.mark.parametrize("kind", ["categories", "hashed", "dates"])
@pytest.mark.parametrize(("gap", "why"), [("", "is empty"), ("NA", "'NA' stands for a missing value"), ("?", "'?' s")])
def test_a_gap_of_a_text_is_refused_where_gaps_are(tmp_path: Path, kind: str, gap: str, why: str) -> None:
    text = f"a,t,y\n1,2026-01-01,0\n2,{gap},1\n"
    options: dict[str, Any] = {kind: ["t"], "missing_values": ["?"]}
    with pytest.raises(DataError) as caught:
        load(spec(tmp_path, text, **options), tmp_path)
    assert f"t.csv, line 3, column 2 ('t'): {why}" in str(caught.value)
    job = spec(tmp_path, text, missing="zero", **options)
    _, kept = form(tmp_path, job)
    assert read_samples(tmp_path / "t.csv", job, kept).shape == (2, *kept.features)
    full = spec(tmp_path, text.replace(gap or "2,,", "2026-01-02" if gap else "2,2026-01-02,"), **options)
    _, kept = form(tmp_path, full)
    assert kept.encoder is not None
    with pytest.raises(DataError, match=r"is missing in row 1"):
        TableEncoder.restore(kept.encoder).encode_rows([[1, gap]], "f")


def test_words_may_be_values(tmp_path: Path) -> None:
    """NA is Namibia."""
    text = "t,y\nNA,None\nDE,some\n"
    data = load(spec(tmp_path, text, categories="t", missing_words=False), tmp_path)
    assert (data.columns, data.names) == (("t=DE", "t=NA"), ("None", "some"))
    with pytest.raises(DataError, match=r"line 2, column 2 \('y'\): 'None' stands for .*missing_words\), must name a "):
        load(spec(tmp_path, text, categories="t", missing="zero"), tmp_path)


TARGETS = [
    ("1,\n2,3\n", "line 2, column 2 ('y'): is empty, must be a number; a target is never filled"),
    ("1,2\n2,nan\n", "line 3, column 2 ('y'): 'nan' stands for a missing value, must be a number; a target is never"),
    ("1,2\n2,-999\n", "line 3, column 2 ('y'): '-999' stands for a missing value, must be a number; a target is never"),
    ("1,2\n2,inf\n", "line 3, column 2 ('y'): 'inf' is not a finite float32"),
]


@pytest.mark.parametrize("file", ["train", "validation_file", "test_file"])
@pytest.mark.parametrize(("rows", "why"), TARGETS, ids=[row[1][:35] for row in TARGETS])
def test_a_target_without_a_value_is_refused_in_every_file(tmp_path: Path, file: str, rows: str, why: str) -> None:
    own = {} if file == "train" else {file: "bad.csv"}
    fields: dict[str, Any] = {"kind": "regression", "missing": "mean", "missing_values": ["-999"], **own}
    job = spec(tmp_path, f"a,y\n{rows}" if file == "train" else "a,y\n1,2\n2,3\n", **fields)
    (tmp_path / "bad.csv").write_text(f"a,y\n{rows}")
    with pytest.raises(DataError) as caught:
        load(job, tmp_path)
    assert f"{'t' if file == 'train' else 'bad'}.csv, {why}" in str(caught.value)


def test_a_frame_is_read_by_its_names(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    job = spec(tmp_path, "a,t,y\n1,x,0\n,z,1\n3,,0\n", missing="mean", categories="t")
    inputs, kept = form(tmp_path, job)
    frame = pandas.read_csv(tmp_path / "t.csv")[["y", "t", "a"]]
    assert kept.encoder is not None
    encoder = TableEncoder.restore(kept.encoder)
    assert np.array_equal(encoder.encode_rows(frame, "f"), inputs)
    with pytest.raises(DataError, match=r"^f: no column is called 'a'"):
        encoder.encode_rows(frame.drop(columns="a"), "f")


def test_whole_floats_are_the_categories_that_files_have(tmp_path: Path) -> None:
    inputs, kept = form(tmp_path, spec(tmp_path, "a,t,y\n1,3,0\n2,4,1\n", categories="t"))
    assert kept.encoder is not None
    assert np.array_equal(TableEncoder.restore(kept.encoder).encode_rows(np.array([[1.0, 3], [2, 4]]), "f"), inputs)
