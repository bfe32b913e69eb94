"""All parts of a check, one after the other, and what they were measured on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.device import machine, runner, surroundings
from benchmarks.device.bounds import PATIENCE, Part
from benchmarks.harness import report

BAD = ("failed", "timeout")
"""States of a part that make the check fail."""


def check(parts: Iterable[Part], stand_in: bool, logs: Path | None) -> dict[str, Any]:
    """Run the parts; each is announced on standard error, and the last lines of one that fails are shown there.

    Returns
    -------
    measured
        The command, the day, the processor, device, device_bytes, driver, cupy and commit.
    stand_in
        Whether nothing was measured on a device.
    parts
        What `runner.run` gives, for each.

    Raises
    ------
    SystemExit
        There is no device.
    """
    added = surroundings.variables(stand_in)
    asked = [sys.executable, "-m", "benchmarks.device", "--describe"]
    measured = {**report.origin(report.own_command()), **machine.ask(asked, {**os.environ, **added})}
    rows = []
    for part in parts:
        print(f"{part.name}: {part.about}", file=sys.stderr, flush=True)
        bound_s = part.bound_s * (PATIENCE if stand_in else 1.0)
        row = runner.run(part, partial(runner.command, part, stand_in), bound_s, logs, added)
        if "output" in row:
            print("\n".join(row["output"]), file=sys.stderr)
        rows.append(row)
    return {"measured": measured, "stand_in": stand_in, "parts": rows}
