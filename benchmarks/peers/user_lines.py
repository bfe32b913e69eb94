"""Lines that a user writes for a system: those between markers in its trainer, or all of a job file.

A part begins with the comment `# -- user --` and ends with `# -- end --`. Blank lines, comments, docstrings of one line
and lines that end with the comment `# measured` do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

BEGIN, END, MEASURED = "# -- user --", "# -- end --", "# measured"
_DOCSTRING = re.compile(r'"""[^"]*"""')


def user_lines(text: str, marked: bool = True) -> int:
    """Number of lines of a file's text; without markers all count.

    Raises
    ------
    ValueError
        A marker has no other, or there is none.
    """
    inside, found, parts = not marked, 0, 0
    for line in map(str.strip, text.splitlines()):
        if marked and line in (BEGIN, END):
            if inside == (line == BEGIN):
                raise ValueError(f"{line}: does not follow {END if inside else BEGIN}")
            inside, parts = line == BEGIN, parts + 1
        elif inside and line and not line.startswith("#") and not line.endswith(MEASURED):
            found += not _DOCSTRING.fullmatch(line)
    if marked and (inside or not parts):
        raise ValueError(f"no {END if inside else BEGIN}")
    return found


def of_files(paths: Iterable[Path]) -> int:
    """The same over several files; only those of Python have markers."""
    return sum(user_lines(path.read_text(), path.suffix == ".py") for path in paths)
