"""Fenced blocks of a page of the documentation, with the markers that state how a test handles them.

A marker is an HTML comment before a fence, on the line before it or with empty lines between:

``<!-- test -->``
    `make test` runs the block.
``<!-- test: long -->``
    `make test-long` runs it, with the blocks of `make test` before and after it.
``<!-- test: exit 2 -->``, ``<!-- test: long, exit 2 -->``
    As above, and the block ends with this exit code.
``<!-- test: long, needs PROGRAM -->``
    As `test: long`; where the machine has no such program or Python module, the block is left out.
``<!-- test: host N -->``
    The test of the page (such as `tests/docs/test_two_sites.py`) runs it, on the host of this number.
``<!-- not run: REASON -->``
    No test runs it.
``<!-- file: NAME -->``
    The block is written to the file NAME.
``<!-- output -->``
    What the last block that was run prints; ``...`` stands for any text.
``<!-- output: any numbers -->``
    The same, and a number stands for any number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

RUN_LANGUAGES = {"sh": "sh", "bash": "sh", "python": "python", "py": "python"}
"""Languages of blocks that a test can run."""

_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`]*)$")
_COMMENT = re.compile(r" *<!--\s*(.*?)\s*-->\s*$")
_TEST = re.compile(r"test(?:: (?P<long>long))?(?:(?P<joint>: |, )exit (?P<code>\d+))?(?:, needs (?P<needs>[\w-]+))?")
_HOST = re.compile(r"test: host (\d)")
_NUMBER = r"\d+(?:[.,:]\d+)*"


class MarkerError(Exception):
    """A page has a fence or a marker that cannot be understood; the message names page and line."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes
    ----------
    page : str
    line : int
        Of the opening fence, from 1.
    language : str
        First word of the fence; empty if there is none.
    code : str
        Without the indentation of the fence.
    kind : str
        "test", "long", "host", "not run", "file", "output", or "" without a marker.
    argument : str
        The number of "host", the reason of "not run", the name of "file", the option of "output".
    exit_code : int
        That the block has to end with.
    needs : str
        Program or Python module without which the block is left out; "" if there is none.
    output : Block or None
        The block of what this one prints.
    """

    page: str
    line: int
    language: str
    code: str
    kind: str = ""
    argument: str = ""
    exit_code: int = 0
    needs: str = ""
    output: Block | None = None

    @property
    def place(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"


def extract(page: str, text: str) -> list[Block]:
    """All fenced blocks of a page; expected outputs are with the blocks that print them.

    Raises
    ------
    MarkerError
        If a fence does not end, a comment before a fence is not a marker, or a marker does not suit its block.
    """
    blocks: list[Block] = []
    comment: tuple[int, str] | None = None
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := _FENCE.match(line):
            code, end = _body(page, lines, number, found)
            block = Block(page, number, (found["info"].split() or [""])[0], code)
            _add(blocks, _marked(block, comment))
            comment, number = None, end
        elif found := _COMMENT.match(line):
            _no_lost_marker(page, comment)
            comment = number, found[1]
        elif line.strip():
            _no_lost_marker(page, comment)
            comment = None
    _no_lost_marker(page, comment)
    return blocks


def unmarked(blocks: list[Block]) -> list[Block]:
    """Shell and Python blocks without a marker."""
    return [block for block in blocks if block.language in RUN_LANGUAGES and not block.kind]


def matches(expected: Block, printed: str) -> bool:
    """Whether this was printed. The number of blanks between words, and empty lines at the end, do not count."""
    pattern = re.escape(_plain(expected.code)).replace(r"\.\.\.", ".*")
    if expected.argument == "any numbers":
        pattern = re.sub(r"\d+(?:(?:\\\.|[,:])\d+)*", lambda _: _NUMBER, pattern)
    return re.fullmatch(pattern, _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines()).strip()


def _body(page: str, lines: list[str], start: int, opening: re.Match[str]) -> tuple[str, int]:
    """Text of the block whose first line has the index `start`, and the index after its closing fence."""
    indent = len(opening["indent"])
    for end in range(start, len(lines)):
        closing = lines[end].strip()
        if closing.startswith(opening["fence"]) and not closing.strip("`"):
            code = (line[indent:] if not line[:indent].strip() else line for line in lines[start:end])
            return "".join(f"{line}\n" for line in code), end + 1
    raise MarkerError(f"{page}:{start}: this fence does not end")


def _marked(block: Block, comment: tuple[int, str] | None) -> Block:
    """The block with what the comment before it says."""
    if comment is None:
        return block
    number, text = comment
    where = f"{block.page}:{number}"
    word, _, argument = (part.strip() for part in text.partition(":"))
    if on_host := _HOST.fullmatch(text):
        _runs(where, block)
        return replace(block, kind="host", argument=on_host[1])
    if word == "test":
        kind, exit_code, needs = _test(where, block, text)
        return replace(block, kind=kind, exit_code=exit_code, needs=needs)
    if word == "not run":
        if not argument:
            raise MarkerError(f"{where}: `not run` needs a reason")
        return replace(block, kind=word, argument=argument)
    if word == "file":
        path = PurePosixPath(argument)
        if not argument or path.is_absolute() or ".." in path.parts:
            raise MarkerError(f"{where}: `file` needs a name below the folder of the test, not {argument!r}")
        return replace(block, kind=word, argument=argument)
    if word == "output":
        if argument not in ("", "any numbers"):
            raise MarkerError(f"{where}: `output` allows `any numbers`, not {argument!r}")
        return replace(block, kind=word, argument=argument)
    raise MarkerError(f"{where}: {text!r} before a fence is no marker (test, not run, file, output)")


def _test(where: str, block: Block, text: str) -> tuple[str, int, str]:
    """Kind and exit code of a block that is run, and the program that it needs."""
    found = _TEST.fullmatch(text)
    joint_wrong = found and found["joint"] and found["joint"] != (", " if found["long"] else ": ")
    if not found or joint_wrong or (found["needs"] and not found["long"]):
        raise MarkerError(
            f"{where}: {text!r} is no marker (test, test: long, test: exit 2, test: long, exit 2, "
            "test: long, needs PROGRAM; test: host 1)"
        )
    _runs(where, block)
    return "long" if found["long"] else "test", int(found["code"] or 0), found["needs"] or ""


def _runs(where: str, block: Block) -> None:
    """Refuse a block that no test can run."""
    if block.language not in RUN_LANGUAGES:
        raise MarkerError(f"{where}: a test runs blocks of sh and python, not of {block.language or 'no language'}")


def _add(blocks: list[Block], block: Block) -> None:
    """Add a block to the others, or its output to the last block that is run."""
    if block.kind != "output":
        blocks.append(block)
        return
    last = blocks[-1] if blocks else None
    if last is None or last.kind not in ("test", "long", "host") or last.output:
        raise MarkerError(f"{block.place}: no block that a test runs is before this output")
    blocks[-1] = replace(last, output=block)


def _no_lost_marker(page: str, comment: tuple[int, str] | None) -> None:
    """Refuse a marker that no fence follows."""
    if comment and re.match(r"(test|not run|file|output)\s*(:|$)", comment[1]):
        raise MarkerError(f"{page}:{comment[0]}: no fence follows the marker {comment[1]!r}")
