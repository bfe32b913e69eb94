"""The pages of the documentation: their blocks are run, and every block states whether a test runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .blocks import MarkerError, extract, unmarked
from .run_page import LONG_BLOCK_S, ROOT, Folder

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
MARKED = ("README.md", "docs/tutorial.md", "docs/how-to/")
"""Pages, and folders of pages, each of whose shell and Python blocks has a marker."""
NOT_MARKED_YET: frozenset[str] = frozenset()
"""Pages of these that are older than the markers. This list may only shrink."""

MARKER_HELP = (
    "put `<!-- test -->`, `<!-- test: long -->`, `<!-- not run: REASON -->` or `<!-- file: NAME -->` before it"
)


def _with(kind: str) -> list[str]:
    """Pages with a block of this kind, and pages with a wrong marker, whose tests then fail."""
    return [page for page in PAGES if _has(page, kind)]


def _has(page: str, kind: str) -> bool:
    try:
        return any(block.kind == kind for block in extract(page, _text(page)))
    except MarkerError:
        return True


def _text(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.processes
@pytest.mark.parametrize("page", _with("test"))
def test_page(page: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path, pictures=False)
    folder.prepare()
    folder.run([block for block in extract(page, _text(page)) if block.kind in ("test", "file")])


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("page", _with("long"))
def test_whole_page(page: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path, LONG_BLOCK_S)
    folder.prepare()
    folder.run([block for block in extract(page, _text(page)) if block.kind in ("test", "long", "file")])


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(MARKED)])
def test_every_block_states_whether_it_is_run(page: str) -> None:
    without = [block.place for block in unmarked(extract(page, _text(page)))]
    if page in NOT_MARKED_YET:
        assert without, f"{page} has a marker before every block: take it from NOT_MARKED_YET"
    else:
        assert without == [], MARKER_HELP


def test_pages_that_are_not_marked_yet_exist() -> None:
    assert NOT_MARKED_YET.issubset(PAGES)
    assert NOT_MARKED_YET.issubset({"README.md"}), "this list may only shrink"
