"""Markdown tables and checks that all generators use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Undocumented(Exception):
    """Something public has no description; the message names it."""


def required(description: str | None, what: str) -> str:
    """The description as one line.

    Raises
    ------
    Undocumented
        It is empty.
    """
    text = " ".join((description or "").split())
    if not text:
        raise Undocumented(f"{what} has no description")
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a cell's text is one line."""
    lines = [f"| {' | '.join(map(_cell, line))} |\n" for line in (head, *rows)]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]])


def code(text: str) -> str:
    """Text in a code span."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def plain(text: str) -> str:
    """Text of the program as Markdown that shows exactly these characters, code spans excepted."""
    parts = text.split("`")
    parts[::2] = [_escaped(part) for part in parts[::2]]
    return "`".join(parts)


def _escaped(text: str) -> str:
    for character in "\\*_<>[]":
        text = text.replace(character, {"<": "&lt;", ">": "&gt;"}.get(character, "\\" + character))
    return text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
