"""`sizes` counts what `load` would load, without loading it."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.data import load, sizes
from dbelief.errors import DataError
from tests.dbelief.data.formats.test_idx import images, labels
from tests.dbelief.data.sources import DATA
from tests.examples import examples

RNG = np.random.default_rng(0)


def counted(where: Path, **spec: Any) -> tuple[int, int, int]:
    """The sizes, which have to be those of what is loaded."""
    data = DATA.validate_python(spec)
    loaded = load(data, where)
    found = sizes(data, where)
    assert found == tuple(len(split or ()) for split in (loaded.train, loaded.validation, loaded.test))
    return found


def arrays(count: int, groups: bool = False) -> dict[str, Any]:
    """Inputs and labels of three classes; groups of two samples of one class."""
    label = np.arange(count) // 2 % 3
    held = {"inputs": RNG.standard_normal((count, 4)).astype(np.float32), "targets": label}
    return {**held, "groups": np.arange(count) // 2} if groups else held


@pytest.mark.parametrize("spec", [
    {"source": "digits"},
    {"source": "none"},
    {"source": "synthetic", "kind": "classes", "samples": 77, "classes": 5, "features": 3, "noise": 0.1, "seed": 1},
    {"source": "synthetic", "kind": "regression", "samples": 64, "features": 3, "noise": 0.1, "seed": 1},
], ids=lambda spec: spec.get("kind", spec["source"]))  # fmt: skip
def test_sources_without_files(tmp_path: Path, spec: dict[str, Any]) -> None:
    counted(tmp_path, **spec)


@pytest.mark.parametrize("packed", [False, True])
def test_idx(tmp_path: Path, packed: bool) -> None:
    for name, count in (("train", 30), ("t10k", 7)):
        for kind, content in (
            ("images-idx3", images(count)),
            ("labels-idx1", labels([number % 3 for number in range(count)])),
        ):
            path = tmp_path / f"{name}-{kind}-ubyte{'.gz' * packed}"
            path.write_bytes(gzip.compress(content) if packed else content)
    assert counted(tmp_path, source="idx", folder=".", validation=6) == (24, 6, 7)
    (tmp_path / f"t10k-images-idx3-ubyte{'.gz' * packed}").unlink()
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte: no such file"):
        sizes(DATA.validate_python({"source": "idx", "folder": ".", "validation": 6}), tmp_path)


@pytest.mark.parametrize("given_sets", [(), ("validation",), ("validation", "test")])
@pytest.mark.parametrize("groups", [False, True])
def test_npz(tmp_path: Path, given_sets: tuple[str, ...], groups: bool) -> None:
    held = arrays(40, groups)
    if given_sets:
        held = {f"train_{name}": array for name, array in held.items()}
        for number, one in enumerate(given_sets):
            held |= {f"{one}_{name}": array for name, array in arrays(6 + 6 * number, groups).items()}
    np.savez(tmp_path / "a.npz", allow_pickle=False, **held)
    counted(tmp_path, source="npz", file="a.npz", validation=0.2, test=4)


words = st.sampled_from(["a", "b", 'with "quotes"', "two\nlines", "a, b", "1"])
breaks = st.sampled_from(["\n", "\r\n"])


@examples(30)
@given(st.lists(words, min_size=24, max_size=40), breaks, st.integers(0, 3), st.booleans())
def test_csv(
    tmp_path_factory: pytest.TempPathFactory, classes: list[str], ends: str, empty: int, has_file: bool
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator=ends)
    writer.writerow(["x", "class"])
    for number, word in enumerate(["a", "b", *{*classes}] * 8 + classes):
        text.write(ends * (empty if number % 3 == 0 else 0))
        writer.writerow([number, word])
    (folder / "a.csv").write_bytes(text.getvalue().encode())
    more = {"test_file": "a.csv"} if has_file else {}
    counted(folder, source="csv", file="a.csv", kind="classes", target="class", validation=3, **more)


@pytest.mark.parametrize("spec", [
    {"source": "npz", "file": "nowhere/a.npz"},
    {"source": "csv", "file": "nowhere/a.csv", "kind": "classes", "target": -1},
    {"source": "libsvm", "train": "nowhere/a"},
    {"source": "idx", "folder": "nowhere"},
], ids=lambda spec: spec["source"])  # fmt: skip
@pytest.mark.parametrize("way", [load, sizes])
def test_a_missing_folder_is_named(tmp_path: Path, spec: dict[str, Any], way: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match=r"/nowhere: no such folder$"):
        way(DATA.validate_python(spec), tmp_path)
