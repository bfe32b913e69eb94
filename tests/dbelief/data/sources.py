"""A small set of each source, as files below a folder, and the section of a job that names them there."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from dbelief.data import Dataset, load, sizes_and_units
from dbelief.data.new_samples import read_samples
from dbelief.job import Data
from dbelief.nn import SparseRows
from dbelief.storage.object_store import connect
from dbelief.url import Url

ROWS = 90


def _csv(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    rows = "".join(f"{x:.4f},{'ab'[k]},{k}\n" for x, k in zip(rng.normal(size=ROWS), np.arange(ROWS) % 2, strict=True))
    (folder / "t.csv.gz").write_bytes(gzip.compress(f"x,c,y\n{rows}".encode()))
    (folder / "test.csv").write_text("x,c,y\n0.5,a,0\n1.5,b,1\n")
    fields = {"kind": "classes", "target": "y", "categories": "c", "standardize": True}
    return {"source": "csv", "file": "t.csv.gz", "test_file": "test.csv", **fields}


def _libsvm(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    (folder / "t").write_text("".join(f"{k % 2} {1 + k % 7}:{rng.normal():.4f} 9:1\n" for k in range(ROWS)))
    (folder / "t.gz").write_bytes(gzip.compress((folder / "t").read_bytes()))
    return {"source": "libsvm", "train": "t", "test": "t.gz"}


def _idx(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    for name, end in (("train", ""), ("t10k", ".gz")):
        pixels, labels = rng.integers(0, 256, (ROWS, 3, 2), np.uint8), np.arange(ROWS, dtype=np.uint8) % 3
        for what, magic, array in (("images-idx3", 0x803, pixels), ("labels-idx1", 0x801, labels)):
            content = np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes()
            (folder / f"{name}-{what}-ubyte{end}").write_bytes(gzip.compress(content) if end else content)
    return {"source": "idx", "folder": ".", "validation": 20}


def _npz(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    np.savez(folder / "t.npz", inputs=rng.normal(size=(ROWS, 4)), targets=np.arange(ROWS) % 3)
    return {"source": "npz", "file": "t.npz"}


def _tokens(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    for name in "ab":
        rng.integers(0, 50, 400).astype("<u2").tofile(folder / f"{name}.bin")
    np.save(folder / "held.npy", rng.integers(0, 50, 100).astype(np.uint16))
    return {"source": "tokens", "files": "*.bin", "test_files": "held.npy", "vocabulary": 50, "context": 4}


def _lines(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    (folder / "t.txt").write_text("".join(f"{'xy'[k % 2]}\t{rng.integers(0, 10**6)}\n" for k in range(ROWS)))
    return {"source": "lines", "files": ["t.txt"], "length": 6}


def _images(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    from PIL import Image

    for name in ("cat", "dög"):
        (folder / "all" / name / "deep").mkdir(parents=True)
        for k in range(12):
            pixels = rng.integers(0, 256, (5, 4, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "all" / name / ("deep" if k % 2 else ".") / f"{k}.png")
    return {"source": "images", "folder": "all", "height": 4, "width": 4}


def _parquet(folder: Path, rng: np.random.Generator) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"x": rng.normal(size=ROWS), "c": list("abc") * (ROWS // 3), "y": np.arange(ROWS) % 2})
    pq.write_table(table, folder / "t.parquet", row_group_size=10)
    pq.write_table(table, folder / "u.parquet", row_group_size=30)
    fields = {"kind": "classes", "target": "y", "categories": "c", "standardize": True}
    return {"source": "parquet", "files": "*.parquet", **fields}


SOURCES: dict[str, Callable[[Path, np.random.Generator], dict[str, Any]]] = {
    "csv": _csv,
    "libsvm": _libsvm,
    "idx": _idx,
    "npz": _npz,
    "tokens": _tokens,
    "lines": _lines,
    "images": _images,
    "parquet": _parquet,
}
NEEDS = {"images": "PIL", "parquet": "pyarrow"}
NEW = {
    "csv": "test.csv",
    "libsvm": "t.gz",
    "idx": "t10k-images-idx3-ubyte.gz",
    "npz": "new.npy",
    "tokens": "new.npy",
    "lines": "t.txt",
    "images": "all/cat",
    "parquet": "t.parquet",
}
"""A file, or folder, of each that new samples are read from."""
STREAMED = ("tokens", "lines", "images", "parquet")
DATA: TypeAdapter[Data] = TypeAdapter(Data)
PLACES = ("file", "test_file", "train", "test", "folder", "files", "test_files")


def write_source(name: str, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Write the files of a source below a folder; the section of a job, whose paths start there."""
    return SOURCES[name](folder, np.random.default_rng([seed, len(name)]))


def placed(fields: dict[str, Any], base: str) -> dict[str, Any]:
    """The section with paths or URLs below a base."""

    def at(value: Any) -> Any:
        return [at(one) for one in value] if isinstance(value, list) else base if value == "." else f"{base}/{value}"

    return {name: at(value) if name in PLACES and value is not None else value for name, value in fields.items()}


def copy(folder: Path, prefix: Url) -> None:
    """Copy all files of a folder to a store."""
    for path in folder.rglob("*"):
        if path.is_file():
            connect(prefix).replace(Url(f"{prefix}/{path.relative_to(folder)}"), path.read_bytes())


def check_same(name: str, folder: Path, prefix: Url) -> None:
    """Check that a source by URL gives the bits that it gives by path."""
    fields = write_source(name, folder)
    np.save(folder / "new.npy", np.arange(8).reshape(2, 4))
    copy(folder, prefix)
    for streamed in [{"streamed": True}, {"streamed": False}] if name in STREAMED else [{}]:
        specs = [DATA.validate_python(placed(fields, base) | streamed) for base in (str(folder), prefix)]
        here, there = (load(spec, Path("/nowhere")) for spec in specs)
        assert bits(here) == bits(there)
        counted = [sizes_and_units(spec, Path("/nowhere")) for spec in specs]
        assert counted[0] == counted[1]
        assert here.form is not None
        assert (here.form.objects, replace(here.form, objects=there.objects)) == ("", there.form)
        assert bool(there.objects) == (prefix.scheme != "file")
        new = [read_samples(where / NEW[name], specs[0], here.form) for where in (folder, prefix)]
        assert _bytes(new[0]) == _bytes(new[1])


def _bytes(inputs: Any) -> bytes:
    arrays = (inputs.values, inputs.columns, inputs.indptr) if isinstance(inputs, SparseRows) else (inputs,)
    return b"".join(array.tobytes() for array in arrays)


def bits(data: Dataset) -> list[bytes]:
    """All that is in the sets, in the order of an epoch."""
    found = list[bytes]()
    for split in (data.train, data.validation, data.test):
        if split is None:
            found.append(b"")
            continue
        split = split.dense()
        batch = split.gather(split.order(3, 1)[0 : len(split)], split.buffer(len(split)))
        found += [np.asarray(batch.inputs).tobytes(), batch.targets.tobytes()]
    return [*found, repr((data.classes, data.features, data.names, data.columns, data.encoder)).encode()]
