"""Data by URL is the data by path, to the bit: sets, sizes, units, and what is predicted from new samples."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic import ValidationError

from dbelief.data import load, sizes_and_units
from dbelief.errors import DataError
from dbelief.storage.object_store import connect
from dbelief.url import Url
from tests.dbelief.data.sources import DATA, NEEDS, SOURCES, check_same, copy, placed, write_source

EACH = [
    pytest.param(name, marks=pytest.mark.skipif(name in NEEDS and find_spec(NEEDS[name]) is None, reason="no library"))
    for name in SOURCES
]


@pytest.mark.parametrize("scheme", ["memory", "file"])
@pytest.mark.parametrize("name", EACH)
def test_a_source_by_url_is_the_one_by_path(name: str, scheme: str, tmp_path: Path) -> None:
    prefix = Url(f"memory://{uuid.uuid4().hex}" if scheme == "memory" else f"file://{tmp_path}/store")
    (tmp_path / "here").mkdir()
    check_same(name, tmp_path / "here", prefix)


@pytest.mark.parametrize("name", EACH)
def test_what_was_written_again_is_other_data(name: str, tmp_path: Path) -> None:
    """A worker that begins after it is refused, with these words."""
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    spec = DATA.validate_python(placed(write_source(name, tmp_path), prefix))
    copy(tmp_path, prefix)
    before = load(spec, tmp_path).form
    (tmp_path / "other").mkdir()
    write_source(name, tmp_path / "other", seed=1)
    copy(tmp_path / "other", prefix)
    after = load(spec, tmp_path).form
    assert before is not None
    assert after is not None
    assert after.difference(before)
    same = replace(after, objects=before.objects, encoder=before.encoder)
    assert same.difference(before) == "", "nothing else tells them from each other"


@pytest.mark.parametrize("name", EACH)
def test_statistics_of_objects_are_computed_once_for_a_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process finds sizes, classes, means and row groups without reading an object."""
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    spec = DATA.validate_python(placed(write_source(name, tmp_path), prefix))
    copy(tmp_path, prefix)
    first = sizes_and_units(spec, tmp_path), load(spec, tmp_path).form
    store, made = connect(prefix), list[Url]()
    read = store.read_range

    def counted(url: Url, start: int, stop: int, tag: str) -> bytes:
        made.append(url)
        return read(url, start, stop, tag)

    monkeypatch.setattr(store, "read_range", counted)
    assert (sizes_and_units(spec, tmp_path), load(spec, tmp_path).form) == first
    assert made == []
    connect(prefix).replace(next(iter(connect(prefix).list(prefix))), b"another " * 9)
    with suppress(DataError):
        load(spec, tmp_path)
    assert made or name == "images", "it is looked at again; images are, when they are used"


@pytest.mark.parametrize("name", EACH)
def test_what_is_missing_in_a_store_is_one_line(name: str, tmp_path: Path) -> None:
    prefix = Url(f"memory://{uuid.uuid4().hex}")
    connect(prefix).replace(prefix / "x", b"")
    spec = DATA.validate_python(placed(write_source(name, tmp_path), prefix))
    with pytest.raises(DataError, match=rf"^{prefix}.*(no such|no object|has 0 folders)"):
        load(spec, tmp_path)


@pytest.mark.parametrize("name", EACH)
def test_logins_and_options_in_urls_are_refused(name: str, tmp_path: Path) -> None:
    fields = write_source(name, tmp_path)
    refused = {
        "s3://K:S@bucket": "a login",
        "s3://bucket/x?X-Amz-Signature=5": "options",
        "http://host": "one of s3://",
    }
    for base, words in refused.items():
        with pytest.raises(ValidationError, match=words):
            DATA.validate_python(placed(fields, base))
