"""The history that files of client programs describe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def merge(files: Sequence[Path], segments: int) -> tuple[list[dict[str, Any]], int, int]:
    """Lines of the history, for each call one for each segment; the number of calls; pushes reported as lost.

    A call without a second line has no end. The last line of a killed program may be incomplete.
    """
    history: list[dict[str, Any]] = []
    calls = lost = 0
    for file in files:
        for begun, done in _pairs(file):
            calls += 1
            lost += (done or {}).get("lost", 0)
            fields = {name: value for name, value in begun.items() if name != "time"}
            fields |= {"start": begun["time"], "end": done["time"] if done is not None else None}
            reads = (done or {}).get("read") or [None] * segments
            history += [fields | {"segment": place, "read": read} for place, read in enumerate(reads)]
    return history, calls, lost


def _pairs(file: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each call's first line, and its second, if there is one."""
    begun: dict[str, Any] | None = None
    for text in file.read_text().splitlines(keepends=True):
        if not text.endswith("\n"):
            continue
        line = json.loads(text)
        if line.get("done"):
            assert begun is not None
            yield begun, line
            begun = None
        else:
            begun = line
    if begun is not None:
        yield begun, None
