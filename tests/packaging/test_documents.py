"""Documents that a script or a list keeps in step: pictures, and the index of decisions."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from coordinator.job import persistence
from dbelief.checkpoint import shard_file, snapshot_set
from dbelief.data.files import scan_cache

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ["architecture", "fragment"])
def test_a_picture_is_as_its_script_draws_it(name: str) -> None:
    drawn = runpy.run_path(str(DOCS / "pictures" / f"{name}.py"))["picture"]()
    assert (DOCS / "pictures" / f"{name}.svg").read_text() == drawn


def test_the_newest_release_of_the_changelog_is_the_packages_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_the_index_has_every_decision_under_its_title() -> None:
    folder = DOCS / "decisions"
    titles = {path.name: path.read_text().partition("\n")[0].removeprefix("# ") for path in folder.glob("0*.md")}
    listed = {
        file: title for title, file in re.findall(r"\[(\d+: [^]]+)\]\(([\w.-]+)\)", (folder / "index.md").read_text())
    }
    assert listed == titles


def test_the_page_of_versions_has_the_formats_of_the_code() -> None:
    page = (DOCS / "reference" / "versions.md").read_text()
    assert dict(re.findall(r"^\| ([^|]+) \| (\d+) \|", page, re.MULTILINE)) == {
        "snapshot set": str(snapshot_set.FORMAT),
        "state in the registry": str(persistence.FORMAT),
        "cache of scanned data": str(scan_cache.FORMAT),
    }
    assert shard_file.FORMAT == snapshot_set.FORMAT
