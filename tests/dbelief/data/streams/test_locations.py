"""Files by path, folder, pattern and URL; data is read from a store as from a folder."""

from __future__ import annotations

import io
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dbelief.data import load
from dbelief.data.streams.locations import find_files
from dbelief.errors import DataError
from dbelief.job import LinesData, ParquetData
from dbelief.storage.object_store import connect
from dbelief.url import Url

NAMES = ("a/1.x", "a/b/2.x", "a/b/3.y", "c.x")


@pytest.fixture(params=["folder", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, or a prefix in memory, that holds the files of `NAMES`, each its name."""
    if request.param == "memory":
        prefix = Url(f"memory://{uuid.uuid4().hex}")
        for name in NAMES:
            connect(prefix).replace(prefix / name, name.encode())
        return prefix
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["c.x"], ["c.x"]),
        (["a"], ["a/1.x", "a/b/2.x"]),
        (["a/b"], ["a/b/2.x"]),
        (["*.y", "c.x"], None),
        (["a/b/*"], ["a/b/2.x", "a/b/3.y"]),
        (["c.x", "a/*.x"], None),
        (["a/b/3.y"], ["a/b/3.y"]),
    ],
)
def test_files_are_found_in_order(base: str, texts: list[str], found: list[str] | None) -> None:
    if found is None:  # `*` matches slashes in a store
        found = {"*.y": ["a/b/3.y", "c.x"], "c.x": ["c.x", "a/1.x", "a/b/2.x"]}[texts[0]]
        texts = [text.replace("*", "**/*") if "memory" not in base and text[0] in "*a" else text for text in texts]
    files = find_files([f"{base}/{text}" for text in texts], Path("/nowhere"), ".x")
    assert [file.where.removeprefix(f"{base}/") for file in files] == found
    for file, name in zip(files, found, strict=True):
        assert file.size == len(name)
        with file.open() as opened:
            opened.seek(1)
            assert opened.read() == name[1:].encode()


@pytest.mark.parametrize("text", ["d.x", "a/*.z", "a/b/2.y"])
def test_what_is_missing_is_named(base: str, text: str) -> None:
    with pytest.raises(DataError, match=r"(no such|no file matches|no object matches)"):
        find_files([f"{base}/{text}"], Path(), ".x")
    with pytest.raises(DataError, match="named twice"):
        find_files([f"{base}/c.x", f"{base}/c.x"], Path(), ".x")


def test_a_set_in_a_store_is_the_one_in_a_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=90), "z": rng.normal(size=90), "y": np.arange(90) % 3})
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    for name, rows in (("1.parquet", 20), ("2.parquet", 30)):
        buffer = io.BytesIO()
        pq.write_table(table, buffer, row_group_size=rows)
        connect(prefix).replace(prefix / name, buffer.getvalue())
        (tmp_path / name).write_bytes(buffer.getvalue())
    sets = []
    for files in (prefix, str(tmp_path)):
        fields = {"source": "parquet", "files": files, "kind": "classes", "target": "y", "standardize": True}
        sets.append(load(ParquetData.model_validate(fields), Path()))
    for name in ("train", "validation", "test"):
        one, other = (getattr(data, name) for data in sets)
        assert np.array_equal(one.inputs, other.inputs)
        assert np.array_equal(one.targets, other.targets)


def test_lines_in_a_store(tmp_path: Path) -> None:
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    connect(prefix).replace(prefix / "a.txt", b"".join(b"%d\t%d\n" % (number % 2, number) for number in range(100)))
    fields = {"source": "lines", "files": [prefix], "length": 3, "unit": 30, "validation": 0, "test": 0}
    train = load(LinesData.model_validate(fields), tmp_path).train
    assert train is not None
    assert train.targets.tolist() == [number % 2 for number in range(100)]


def test_a_login_in_a_url_is_refused() -> None:
    with pytest.raises(ValidationError, match="must not contain a login"):
        LinesData.model_validate({"source": "lines", "files": "s3://KEY:SECRET@bucket/a.txt", "length": 3})
