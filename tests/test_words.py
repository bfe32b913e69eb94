"""Words of the product and its documents: terms of the field, and processes that are not persons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("coordinator", "ps_server", "worker", "dbelief", "protos", "benchmarks", "examples", "docs", "deploy")
DOCUMENTS = ("README.md", "CONTRIBUTING.md")

BANNED = ("told", "whoever", "whom", "nobody", "somebody", "deed", "deeds", "lives", "comes on", "given up", "at hand")
STORED = {"told": "key of the stored state of L-BFGS", "lives": "key of the stored state of groups"}
"""Banned words that are keys of stored files, allowed as a quoted string."""

COMPARING = re.compile(
    r"\b(earlier|previous|old|former|last) (version|release)s?\b|\bversions? (with|before|that had)\b|\buntil now\b"
    r"|\b(formerly|previously)\b|\bused to (be|take|need)\b|^Before,|\. Before,|\bbefore:",
    re.IGNORECASE,
)
"""What compares with another version of the product: documents describe the present one, and history is in git."""
IN_RESULTS = re.compile(r"\b(before|earlier|no longer)\b", re.IGNORECASE)
EXCEPTIONS = {
    "docs/decisions": "what was tried, and why it was left",
    "docs/explanation/shared_memory.md": "shards of other versions are met",
    "docs/how-to/use_the_model.md": "models of other versions are opened",
    "docs/reference/versions.md": "files and peers of other versions",
}
"""Pages and folders that name other versions, with the reason."""

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def words(line: str) -> str:
    """The line's words in lower case, identifiers split into theirs, between single spaces."""
    return f" {' '.join(part.lower() for part in _PARTS.findall(line))} "


def found(text: str) -> Iterator[tuple[int, str]]:
    """Banned words of a text, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        for stored in STORED:
            line = line.replace(f'"{stored}"', "")
        text_words = words(line)
        yield from ((number, banned) for banned in BANNED if f" {banned} " in text_words)


@pytest.mark.parametrize(
    ("line", "banned"),
    [
        ("    self._told_s = 0.0  # when it was", ["told"]),
        ("class Deeds:", ["deeds"]),
        ('state = {"told": 3}', []),
        ("what is at hand, given  up", ["given up", "at hand"]),
        ("itOldest untold livestock", []),
    ],
)
def test_banned_words_are_found_in_names_and_sentences(line: str, banned: list[str]) -> None:
    assert [word for _, word in found(line)] == banned


def test_product_and_documents_use_the_fields_words() -> None:
    files = [path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    files += [ROOT / name for name in DOCUMENTS]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in sorted(files)
        if path.suffix in {".py", ".md", ".proto", ".yaml", ".yml", ".html", ".js", ".cu", ".sh"}
        and not re.search(r"_pb2|__pycache__", str(path))
        for line, word in found(path.read_text())
    ]
    assert not wrong, "\n".join([f"{len(wrong)} words", *wrong[:200]])


@pytest.mark.parametrize(
    ("line", "compares"),
    [
        ("Before, it took 6 s.", True),
        ("the version with direct streams took 3 ms", True),
        ("of an earlier version", True),
        ("a snapshot is taken before the signal is answered", False),
        ("0.57 versions of staleness", False),
    ],
)
def test_comparisons_with_another_version_are_found(line: str, compares: bool) -> None:
    assert bool(COMPARING.search(line)) == compares


def test_documents_describe_the_present_version() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in DOCUMENTS)]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in sorted(pages)
        if not path.relative_to(ROOT).as_posix().startswith(tuple(EXCEPTIONS))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if COMPARING.search(line) or (path.parent.name == "results" and IN_RESULTS.search(line))
    ]
    assert not wrong, "\n".join(wrong)
