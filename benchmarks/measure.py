"""A measurement again: runs the command of a measurement file, compares, and writes the file anew.

    make measure SUBJECT=small_step              docs/measurements/small_step.json, and the tables that show it
    make measure SUBJECT=small_step ARGS=--check compares only
    make measure                                 all subjects, with their minutes

Several subjects run one after the other; the last line is JSON with a row for each. Exit code 1 if a command failed, or
if a number is missing or not within the spread that its column states.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.options import new_parser
from benchmarks.harness.report import origin
from docs.generators import measurements, results
from docs.generators.measurements import Again, Measurement

ROOT = Path(__file__).parents[1]
LONGEST = 4.0
"""Deadline of a command, as a multiple of the time that its file states."""


def main() -> int:
    """Measure one subject, or list all."""
    parser = new_parser(__doc__)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="name of a file in docs/measurements")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    if not arguments.subjects:
        return _list()
    for subject in arguments.subjects:
        if subject not in measurements.names():
            parser.error(f"no subject {subject!r}; there are {', '.join(measurements.names())}")
    rows = [_measure(measurements.load(subject), check=arguments.check) for subject in arguments.subjects]
    if not arguments.check:
        results.main()
    print(json.dumps({"rows": rows}))
    return 0 if all(row["within"] and row["within"] == row["numbers"] for row in rows) else 1


def _list() -> int:
    for name in measurements.names():
        found = measurements.load(name)
        print(f"{name:28} {found.minutes:6g} min  {found.measured['command']}")
    return 0


def _measure(old: Measurement, *, check: bool) -> dict[str, Any]:
    """Run a subject's command, and compare: its cells, those within their spread, the most of a spread that is used."""
    row = {"subject": old.name, "numbers": 0, "within": 0, "used": None}
    missing = [name for name in old.needs if not os.environ.get(name)]
    if missing:
        print(f"{old.name}: needs the environment variable {', '.join(missing)}", file=sys.stderr)
        return row
    try:
        figures = measurements.figures_in(_output(old), old.patterns)
    except (ValueError, subprocess.SubprocessError) as error:
        print(f"{old.name}: {error}", file=sys.stderr)
        return row
    new = dataclasses.replace(old, figures=figures, measured=origin(old.measured["command"]))
    try:
        found = _compare(old, new)
    except ValueError as error:
        print(f"{old.name}: other rows than in the file: {error}", file=sys.stderr)
        return row
    if not check:
        _write(new)
    used = [cell.used for cell in found]
    return {**row, "numbers": len(found), "within": sum(one <= 1 for one in used), "used": _finite(max(used))}


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _output(old: Measurement) -> str:
    """What the command prints, on both streams, its standard output last.

    Raises
    ------
    subprocess.SubprocessError
        It failed, or took more than `LONGEST` times as long as its file states.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    began_s = time.monotonic()
    with subprocess.Popen(
        ["bash", "-c", old.measured["command"]],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=60 * LONGEST * old.minutes)
        except BaseException:  # its children too: they hold the ends of the pipes
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise subprocess.SubprocessError(f"exit code {process.returncode}\n{errors[-2000:]}")
    print(f"{old.name}: {(time.monotonic() - began_s) / 60:.1f} min", file=sys.stderr)
    return f"{errors}\n{output}"


def _compare(old: Measurement, new: Measurement) -> list[Again]:
    """Print each cell of the tables beside the file's; those that are figures."""
    shown = Table("what", "in the file", "now", "within the spread")
    found = list(measurements.compared(old, new))
    for cell in found:
        shown.add_row(f"{cell.row}: {cell.column}", cell.before, cell.now, "yes" if cell.used <= 1 else "NO")
    Console(stderr=True).print(shown)
    return [cell for cell in found if cell.before and not cell.names]


def _write(new: Measurement) -> None:
    path = measurements.FOLDER / f"{new.name}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    path.write_text(measurements.text_of({**found, "measured": new.measured, "figures": new.figures}))


if __name__ == "__main__":
    sys.exit(main())
