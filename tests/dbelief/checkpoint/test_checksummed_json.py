from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.checkpoint.checksummed_json import checksum, read_checksummed, write_checksummed
from dbelief.errors import CorruptSnapshot, SnapshotError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
contents = st.dictionaries(st.text().filter(lambda name: name not in ("format", "crc32")), values, max_size=4)


@given(content=contents)
def test_round_trip(content: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "sealed.json"
    write_checksummed(path, 2, content)
    assert read_checksummed(path, 2) == {"format": 2, **content}


def test_spacing_does_not_matter(tmp_path: Path) -> None:
    write_checksummed(tmp_path / "a.json", 1, {"samples": 40})
    (tmp_path / "a.json").write_text(json.dumps(json.loads((tmp_path / "a.json").read_text()), indent=4))
    assert read_checksummed(tmp_path / "a.json", 1)["samples"] == 40


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", '{"format": 1}', '{"format": "x"}', "\xff"])
def test_unreadable_file_is_corrupt(text: str, tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    path.write_text(text, "latin-1")
    with pytest.raises(CorruptSnapshot, match=r"set\.json: cannot be read: "):
        read_checksummed(path, 1)


@pytest.mark.parametrize(("form", "age"), [(1, "older"), (3, "newer")])
def test_another_format_is_no_damage(form: int, age: str, tmp_path: Path) -> None:
    write_checksummed(tmp_path / "set.json", form, {})
    with pytest.raises(SnapshotError, match=f"format {form} is {age} than 2, which this version reads") as caught:
        read_checksummed(tmp_path / "set.json", 2)
    assert not isinstance(caught.value, CorruptSnapshot)
    assert checksum({"format": form}) == json.loads((tmp_path / "set.json").read_text())["crc32"]
