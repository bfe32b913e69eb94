"""Documents that a script or a list keeps in step: pictures, and the index of decisions."""

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_architecture_is_as_its_script_draws_it() -> None:
    drawn = runpy.run_path(str(DOCS / "pictures" / "architecture.py"))["picture"]()
    assert (DOCS / "pictures" / "architecture.svg").read_text() == drawn


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
