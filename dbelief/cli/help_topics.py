"""Implementation of `dbelief help`: the how-to and explanation pages of the documentation, in a terminal.

The pages are the site's own files, package data of `dbelief.pages` (`docs/` in the tree).
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Collection
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import ClassVar

from rich.console import Console, JustifyMethod
from rich.markdown import Markdown, TableDataElement

from dbelief.errors import UserError

SECTIONS = {"how-to": "How-to", "explanation": "Explanation"}
"""Headings by the folder of their pages."""
WIDTH = 80
"""Columns, fewer in a narrower terminal."""

_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (\S+) -->$", re.MULTILINE)
_COMMENT = re.compile(r"^ *<!--.*?-->\n?|<!--.*?-->", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")


class _Cell(TableDataElement):
    """A table's cell whose long words are broken, not cut."""

    def __init__(self, justify: JustifyMethod) -> None:
        super().__init__(justify)
        self.content.overflow = "fold"


class _Page(Markdown):
    """Markdown with such cells."""

    elements: ClassVar = {**Markdown.elements, "th_open": _Cell, "td_open": _Cell}


def topics(section: str) -> dict[str, Traversable]:
    """Pages of a section by their topic.

    Parameters
    ----------
    section
        A folder of `SECTIONS`.

    Returns
    -------
    dict
        In the order of the names.
    """
    found = (page for page in (files("dbelief.pages") / section).iterdir() if page.name.endswith(".md"))
    return {page.name.removesuffix(".md"): page for page in sorted(found, key=lambda page: page.name)}


def list_topics() -> str:
    """All topics with their titles, a line each.

    Returns
    -------
    str
        Lines of at most `WIDTH` columns.
    """
    names = max(len(name) for section in SECTIONS for name in topics(section))
    lines = []
    for section, heading in SECTIONS.items():
        lines += [f"{heading}:"]
        lines += [f"  {name:{names}}  {_title(page)}" for name, page in topics(section).items()]
        lines += [""]
    return "\n".join([*lines, "dbelief help TOPIC shows a page, dbelief help COMMAND the options of a command."])


def show_topic(name: str, commands: Collection[str]) -> bool:
    """Print a topic's page, if there is one.

    Parameters
    ----------
    name
        A topic; `-` and `_` are the same.
    commands
        Names for which there is help without a page.

    Returns
    -------
    bool
        Whether there is such a page; without one, `name` is a command.

    Raises
    ------
    UserError
        It is neither a topic nor a command; the message has the names that are near.
    """
    pages = {topic: page for section in SECTIONS for topic, page in topics(section).items()}
    topic = name.lower().replace("-", "_")
    if topic in pages:
        columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
        Console(width=columns).print(_Page(as_plain(pages[topic].read_text("utf-8"))))
        return True
    if name in commands:
        return False
    near = difflib.get_close_matches(topic, dict.fromkeys([*pages, *commands]), n=3)
    hint = f", did you mean {' or '.join(near)}?" if near else ""
    raise UserError(f"help: no topic or command {name!r}{hint} (`dbelief help` lists the topics)")


def as_plain(page: str) -> str:
    """A page without comments and links: names of files stand before their blocks, code blocks stay as they are."""
    parts, end = [], 0
    page = _COMMENT.sub("", _FILE.sub(r"`\1`:", page))
    for code in _FENCED.finditer(page):
        parts += [_LINK.sub(r"\1", page[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(r"\1", page[end:])])


def _title(page: Traversable) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
