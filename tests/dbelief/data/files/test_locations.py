"""Files by path, folder, pattern and URL."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from dbelief.data.files.locations import find_files
from dbelief.errors import DataError, UserError
from dbelief.storage.object_store import connect
from dbelief.url import Url

NAMES = ("a/1.x", "a/b/2.x", "a/b/3.y", "c.x")


@pytest.fixture(params=["folder", "file", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder, its URL, or a prefix in memory, that holds the files of `NAMES`, each its name."""
    if request.param == "memory":
        prefix = Url(f"memory://{uuid.uuid4().hex}")
        for name in NAMES:
            connect(prefix).replace(prefix / name, name.encode())
        return prefix
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return f"file://{tmp_path}" if request.param == "file" else str(tmp_path)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["c.x"], ["c.x"]),
        (["a"], ["a/1.x", "a/b/2.x"]),
        (["a/b"], ["a/b/2.x"]),
        (["**/*.y", "c.x"], ["a/b/3.y", "c.x"]),
        (["a/b/*"], ["a/b/2.x", "a/b/3.y"]),
        (["c.x", "a/*.x"], ["c.x", "a/1.x"]),
        (["a/**/*.x"], ["a/1.x", "a/b/2.x"]),
        (["*/b/[23].*"], ["a/b/2.x", "a/b/3.y"]),
        (["a/b/3.y"], ["a/b/3.y"]),
    ],
)
def test_files_are_found_in_order(base: str, texts: list[str], found: list[str]) -> None:
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


def put(base: str, name: str, content: bytes = b"") -> None:
    """Write one more file there."""
    if base.startswith("memory"):
        connect(Url(base)).replace(Url(base) / name, content)
        return
    path = Path(base.removeprefix("file://")) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


HIDDEN = (
    *("._c.x", ".DS_Store", "_SUCCESS", "_metadata.x", "a/.ipynb_checkpoints/1.x", "__MACOSX/a/1.x", "a/@eaDir/1.x"),
    *("_temporary/0/part.x", ".snapshot/c.x"),
)


def test_what_is_hidden_is_no_data(base: str) -> None:
    for name in HIDDEN:
        put(base, name)
    for text, found in (("", ["a/1.x", "a/b/2.x", "c.x"]), ("/*", ["c.x"]), ("/**/*.x", ["a/1.x", "a/b/2.x", "c.x"])):
        files = find_files([f"{base}{text}"], Path(), ".x")
        assert [file.where.removeprefix(f"{base}/") for file in files] == found
    put(base, "year=1/_from=2/d.x")
    for text, name in (("_meta*", "_metadata.x"), ("a/.ipynb_checkpoints", "a/.ipynb_checkpoints/1.x")):
        assert [file.where for file in find_files([f"{base}/{text}"], Path(), ".x")] == [f"{base}/{name}"], (
            "spelled out"
        )
    assert len(find_files([f"{base}/year=1"], Path(), ".x")) == 1, "a column of partitions may have any name"
    put(base, "e/._only.x")
    with pytest.raises(DataError, match=r"/e: no (file|object) below it ends in .x; 1 hidden ones are left out$"):
        find_files([f"{base}/e"], Path(), ".x")


def test_links_lead_on_but_not_back(tmp_path: Path) -> None:
    (tmp_path / "all" / "a").mkdir(parents=True)
    (tmp_path / "all" / "a" / "1.x").write_bytes(b"")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "2.x").write_bytes(b"")
    (tmp_path / "all" / "a" / "back").symlink_to(tmp_path / "all")
    (tmp_path / "all" / "b").symlink_to(tmp_path / "other")
    for text in ("all", "all/**/*.x"):
        files = find_files([text], tmp_path, ".x")
        assert [file.where.removeprefix(f"{tmp_path}/all/") for file in files] == ["a/1.x", "b/2.x"]
    (tmp_path / "all" / "self").symlink_to("self")
    with pytest.raises(DataError, match=r"/all/self: too many levels of symbolic links$"):
        find_files(["all"], tmp_path, ".x")


def test_a_variable_may_stand_for_a_url(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", base)
    assert [file.where for file in find_files(["${PLACE}/c.x"], Path("/nowhere"), ".x")] == [f"{base}/c.x"]
    monkeypatch.setenv("PLACE", "s3://KEY:SECRET@bucket")
    with pytest.raises(UserError, match="must not contain a login"):
        find_files(["${PLACE}/c.x"], Path(), ".x")
