"""The pages of the documentation: their blocks are run, and every block states whether a test runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blocks import MarkerError, extract, unmarked
from .run_page import LONG_BLOCK_S, ROOT, Folder

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
NOT_RUN = {
    "README.md": 2,
    "docs/explanation/autoencoder.md": 2,
    "docs/explanation/model_parallelism.md": 1,
    "docs/how-to/compare_strategies.md": 1,
    "docs/how-to/containers.md": 2,
    "docs/how-to/gpu.md": 1,
    "docs/how-to/install.md": 1,
    "docs/how-to/kubernetes.md": 2,
    "docs/how-to/large_batches.md": 1,
    "docs/how-to/object_storage.md": 1,
    "docs/how-to/own_data.md": 1,
    "docs/how-to/pytorch_state.md": 1,
    "docs/how-to/simulate.md": 1,
    "docs/how-to/slurm.md": 2,
    "docs/how-to/ray.md": 3,
    "docs/how-to/ssh.md": 1,
    "docs/how-to/tls.md": 1,
    "docs/how-to/torch_model.md": 1,
    "docs/how-to/track.md": 1,
    "docs/how-to/use_the_model.md": 1,
    "docs/index.md": 1,
}
"""Number of blocks that no test runs, by page: they need what no test has, or hours. This list may only shrink."""

README_WORDS, README_SENTENCE = 1_300, 20
"""Most words of the README, and most words of a sentence on average."""
PAGE_WORDS = 1_500
UNLIMITED = ("docs/reference/",)
"""Pages that are looked up, not read."""

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


def _extras(page: str) -> list[pytest.MarkDecorator]:
    """The marker of a page with blocks that need torch; without it they are left out."""
    return [pytest.mark.torch] if ", needs torch -->" in _text(page) else []


def _text(page: str) -> str:
    return (ROOT / page).read_text()


@pytest.mark.processes
@pytest.mark.parametrize("page", _with("test"))
def test_page(page: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path, pictures=False)
    folder.prepare()
    blocks = [block for block in extract(page, _text(page)) if block.kind in ("test", "file")]
    done = folder.run(blocks)
    assert [block for block in blocks if block not in done and not block.needs] == [], "left out without a reason"


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("page", [pytest.param(page, marks=_extras(page)) for page in _with("long")])
def test_whole_page(page: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path, LONG_BLOCK_S)
    folder.prepare()
    blocks = [block for block in extract(page, _text(page)) if block.kind in ("test", "long", "file")]
    done = folder.run(blocks)
    assert [block for block in blocks if block not in done and not block.needs] == [], "left out without a reason"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_states_whether_it_is_run(page: str) -> None:
    blocks = extract(page, _text(page))
    assert [block.place for block in unmarked(blocks)] == [], MARKER_HELP
    not_run = [block.place for block in blocks if block.kind == "not run"]
    assert len(not_run) == NOT_RUN.get(page, 0), f"not run: {not_run}; a block that no test runs is listed in NOT_RUN"


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(UNLIMITED)])
def test_a_page_can_be_read_at_once(page: str) -> None:
    """Words as `wc -w` counts them: code and markers are read too."""
    words = len(_text(page).split())
    most = README_WORDS if page == "README.md" else PAGE_WORDS
    assert words <= most, f"{page} has {words} words, {most} at most: shorten it, or begin another page"


def test_sentences_of_the_readme_are_short() -> None:
    lengths = [len(sentence.split()) for sentence in sentences(_text("README.md"))]
    assert len(lengths) > 20
    assert sum(lengths) / len(lengths) <= README_SENTENCE


def test_sentences_are_found_in_paragraphs_and_lists_alone() -> None:
    text = """\
# A title

One sentence
here. Another: with [a link](x.md#y), v2.0 and `code.py`!

| a table | of words. And more. |
|---|---|

<!-- test -->
```sh
echo not a. Sentence
```

* **First.** Item
  of two lines.
* A second item
"""
    assert list(sentences(text)) == [
        "One sentence here.",
        "Another: with a link, v2.0 and `code.py`!",
        "First.",
        "Item of two lines.",
        "A second item",
    ]


def sentences(page: str) -> Iterator[str]:
    """Sentences of the paragraphs and lists of a page, without code, tables and titles."""
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")
    for paragraph in re.split(r"\n\s*\n|\n(?=[*-] )", text):
        plain = " ".join(re.sub(r"^[*-] ", "", paragraph.strip()).split())
        if plain and not plain.startswith(("#", "|")):
            yield from re.split(r"(?<=[.!?]) (?=[A-Z`])", plain)
