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
