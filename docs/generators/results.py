"""Pages of results: their tables are those of the measurement files, and so are the figures of their text.

    python -m docs.generators.results      writes all tables of docs/results anew

A page has `<!-- table: NAME -->`, or `<!-- table: NAME PART -->`, above each table and `<!-- end -->` below it. The
first table of a file begins with the file's command, machine and settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from . import measurements

FOLDER = Path(__file__).parents[1] / "results"
_BLOCK = re.compile(
    r"^<!-- table: (?P<name>\w+)(?: (?P<part>\w+))? -->\n(?P<made>.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE
)
_CODE = re.compile(r"```.*?^```|`[^`]*`|\]\([^)]*\)|^#.*?$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.,/^-])[-+−]?\d[\d,]*(?:\.\d+)?(?![\w/^-]|\.\d|,\d)")
_UNITS = r"%|ms|µs|us|ns|s|min|h|d|[kKMGT]i?B(?:/s)?|KiB|times|points|samples/s|leases/s|bytes|Mbit/s"
_CLAIM = re.compile(rf"({_NUMBER.pattern})(?:\s+(?:{_UNITS})(?![\w/])|%)?")


def pages() -> list[Path]:
    """All pages of results, the index first."""
    return sorted(FOLDER.glob("*.md"), key=lambda path: (path.stem != "index", path.stem))


def files_of(page: str) -> list[str]:
    """Names of the measurement files whose tables a page has."""
    return list(dict.fromkeys(found["name"] for found in _BLOCK.finditer(page)))


def with_tables(page: str) -> str:
    """The page with its tables as the measurement files have them now.

    Raises
    ------
    ValueError
        A file is missing or none, or has no such table.
    """
    seen: set[str] = set()

    def made(found: re.Match[str]) -> str:
        measurement = measurements.load(found["name"])
        head = "" if found["name"] in seen else f"{measurement.origin()}\n"
        seen.add(found["name"])
        mark = found[0].partition("\n")[0]
        return f"{mark}\n\n{head}{measurement.table(found['part'] or '')}\n<!-- end -->"

    return _BLOCK.sub(made, page)


def unfounded(page: str, *others: str, strict: bool = False) -> Iterator[str]:
    """Figures in the text of a page that stand in none of its tables, nor in these other texts.

    A figure is a number with a decimal point, or one that a unit follows. Numbers in code spans and headings are none;
    whole numbers without a unit, as of shards, are settings, unless it is `strict`. One with fewer decimals than the
    table's is its rounding.
    """
    made = [found["made"] for found in _BLOCK.finditer(page)]
    known = {_value(text) for source in (*made, *others) for text in _NUMBER.findall(source)}
    for found in _CLAIM.finditer(_CODE.sub(" ", _BLOCK.sub(" ", page))):
        text = found[1]
        if not strict and "." not in text and found[0] == text:
            continue
        decimals = len(text.partition(".")[2])
        if not any(abs(abs(_value(text)) - abs(value)) <= 0.5001 * 10**-decimals for value in known):
            yield found[0]


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def main() -> None:
    """Write all tables anew."""
    for path in pages():
        page = path.read_text()
        path.write_text(with_tables(page))


if __name__ == "__main__":
    main()
