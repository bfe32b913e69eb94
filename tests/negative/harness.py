"""One wrong input, and all that must come of it: one line, an exit code, and nothing else.

A command runs in this process, in a folder of its own, unless a row wants a real one. Afterwards there must be no
thread, no child and no file more than before, and none less; every file still holds what it held.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from dbelief.cli.main import main
from dbelief.rundir.claim import CLAIM

JOB = {
    "name": "wrong",
    "model": "{layers: [{dense: 10}], loss: softmax_cross_entropy}",
    "data": "{source: digits}",
    "strategy": "{name: downpour, rule: {name: sgd, rate: 0.1}}",
    "limits": "{epochs: 1}",
}
GRACE_S = 60.0
Content = str | bytes


def job(**sections: str | None) -> str:
    """The text of a good job file with some sections replaced, or left out where they are None."""
    return "".join(f"{name}: {text}\n" for name, text in {**JOB, **sections}.items() if text is not None)


@dataclass(frozen=True)
class Wrong:
    """A row of the tables.

    Attributes
    ----------
    argv
        What follows `dbelief`, as typed into a shell whose folder holds `files`. TAKEN stands for an address where
        somebody listens, and says nothing.
    says
        The error, without "Error: ", as a regular expression for all of it.
    code
        2: a person can put it right; 1: something failed.
    files
        By path; those with a "/" at the end are folders. A good job.yaml is there anyway.
    first
        Regular expression of the lines that may come before the error: what it waited for.
    real
        Run it as a process.
    environment
        Variables, besides those that are there anyway; of what is no process of its own.
    """

    name: str
    argv: str
    says: str
    code: int = 2
    files: Mapping[str, Content] = field(default_factory=dict)
    first: str | None = None
    real: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name of the test."""
        return self.name


def check(wrong: Wrong, folder: Path, taken: str) -> None:
    """Run a row in `folder`, the current one, and see that only what must happen happens."""
    argv = shlex.split(wrong.argv.replace("TAKEN", taken))
    _write(folder, {"job.yaml": job(), **wrong.files})
    before, threads, children = _content(folder), set(threading.enumerate()), _children()
    code, out, err = _in_a_process(argv) if wrong.real else _in_this_process(argv, wrong.environment)
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("Error: ")]
    assert len(errors) == 1, f"wanted one line of error, got:\n{out}{err}"
    assert errors == lines[-1:], f"lines after the error:\n{err}"
    assert re.fullmatch(wrong.says, errors[0].removeprefix("Error: ")), errors[0]
    others = [line for line in lines[:-1] if wrong.first is None or not re.fullmatch(wrong.first, line)]
    assert others == [], "lines beside the error"
    assert (code, out) == (wrong.code, "")
    assert _content(folder) == before
    until_s = time.monotonic() + GRACE_S
    while (left := [*(set(threading.enumerate()) - threads), *(_children() - children)]) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert left == [], "left running"


def _in_this_process(argv: list[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, argv, prog_name="dbelief", env=environment)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def _in_a_process(argv: list[str]) -> tuple[int, str, str]:
    command = [sys.executable, "-P", "-m", "dbelief", *argv]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def _write(folder: Path, files: Mapping[str, Content]) -> None:
    for name, content in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def _content(folder: Path) -> dict[str, bytes | None]:
    """All that a folder holds, but for the lock files of run folders; None for a folder."""
    paths = (path for path in folder.rglob("*") if path.name != CLAIM)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def _children() -> set[str]:
    """Processes that this one started and that have not ended, or that nobody waited for."""
    found: set[str] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended while we looked
            found.update(f"process {number}" for number in task.read_text().split())
    return found
