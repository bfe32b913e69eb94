"""What a part finds, as JSON lines in a file: each is there as soon as it is known, whatever happens to the process."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Figure = dict[str, Any]


class Findings:
    """The file, as the part's process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def figure(self, what: str, value: float, unit: str = "", beside: Mapping[str, float | None] | None = None) -> None:
        """Add a measurement, and by name what it is to be compared with: in its unit, or a share as the name says."""
        known = {name: float(number) for name, number in (beside or {}).items() if number is not None}
        self._add({"what": what, "value": float(value), "unit": unit, "beside": known})

    def left_out(self, what: str, why: str) -> None:
        """Add the reason for which something was not measured here."""
        self._add({"left_out": f"{what}: {why}"})

    def failed(self, why: str) -> None:
        """Add the error that ends the part, in one line."""
        self._add({"failed": why})

    def _add(self, row: dict[str, Any]) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")


def read(path: Path) -> tuple[list[Figure], list[str], list[str]]:
    """Figures, reasons for what was left out, and errors in a file; a line that was not finished is none."""
    figures: list[Figure] = []
    left_out, failed = [], []
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        if not line.endswith("\n"):
            break  # its process was killed meanwhile
        row = json.loads(line)
        if "what" in row:
            figures.append(row)
        left_out += [row["left_out"]] if "left_out" in row else []
        failed += [row["failed"]] if "failed" in row else []
    return figures, left_out, failed


def check_close(what: str, found: float | None, wanted: float | None, apart: float) -> None:
    """Check that a number of the device is the host's, but for `apart`.

    Raises
    ------
    AssertionError
        It is not, or there is none.
    """
    numbers = [math.nan if number is None else number for number in (found, wanted)]
    assert abs(numbers[0] - numbers[1]) <= apart, f"{what}: {numbers[0]:g}, and {numbers[1]:g} was expected"
