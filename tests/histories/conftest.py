"""Fixtures of the tests with real processes, and the history that client programs have recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.processes.conftest import operator, write_job

__all__ = ["operator", "write_job"]


def merge(files: Sequence[Path], segments: Sequence[str]) -> list[dict[str, Any]]:
    """The history that files of client programs describe; a call without a second line has no end."""
    history: list[dict[str, Any]] = []
    for file in files:
        begun: dict[str, Any] | None = None
        for line in map(json.loads, file.read_text().splitlines()):
            if not line.get("done"):
                begun = line
                continue
            assert begun is not None
            history += _calls(begun, line, segments)
            begun = None
        if begun is not None:
            history += _calls(begun, None, segments)
    return history


def _calls(begun: dict[str, Any], done: dict[str, Any] | None, segments: Sequence[str]) -> list[dict[str, Any]]:
    end = done["time"] if done is not None else None
    read = (done or {}).get("read", {})
    common = {"client": begun["client"], "start": begun["time"], "end": end, "push": begun["push"]}
    return [common | {"segment": place, "read": read.get(name)} for place, name in enumerate(segments)]
