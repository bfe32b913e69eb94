"""All runs of the comparison, round after round; what fails is named, and the others go on."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import report, runs
from benchmarks.harness.environments import python_with
from benchmarks.harness.timing import interleaved
from benchmarks.peers import course, table, user_lines
from benchmarks.peers.evaluation import Evaluator
from benchmarks.peers.systems import ENVIRONMENTS, FOLDER, SYSTEMS, System
from dbelief.errors import DbeliefError, RuntimeFailure

INSTALL_S = 720.0
FAILURES = (TimeoutError, LookupError, OSError, ValueError, subprocess.SubprocessError, DbeliefError)
"""What a run of one system may raise; the others go on."""


def names_of(text: str) -> list[str]:
    """Names of systems, with semicolons or commas between; a comma of a name counts as part of it where it fits."""
    known = {system.name for system in SYSTEMS}
    found: list[str] = []
    for word in (one.strip() for one in text.replace(";", ",").split(",")):
        if found and f"{found[-1]}, {word}" in known:
            found[-1] = f"{found[-1]}, {word}"
        elif word in known:
            found.append(word)
        else:
            raise argparse.ArgumentTypeError(f"{word}: no system; there are {'; '.join(sorted(known))}")
    return found


def pythons(systems: list[System], missing: dict[str, str]) -> dict[str, Path]:
    """By name of the environment: its interpreter; systems without one are recorded in `missing`."""
    found = {"": Path(sys.executable)}
    for name in dict.fromkeys(system.environment for system in systems if not system.ours):
        try:
            found[name] = python_with(f"peers/{name}", ENVIRONMENTS[name], INSTALL_S)
        except RuntimeFailure as error:
            missing |= {system.name: str(error) for system in systems if system.environment == name}
    return found


class Comparison:
    """All runs of the command, and their rows."""

    def __init__(self, words: argparse.Namespace) -> None:
        data = Path(os.environ["DBELIEF_DATA"]) / "mnist"
        self.words, self.missing, self.runs = words, dict[str, str](), runs.Rows(words.rows)
        self.setting = course.Setting(
            data, words.workers, words.batch, words.rate, words.seed, words.seconds, words.away, words.start,
            words.longest, Path(words.hostnet) if words.hostnet else None, words.mbit, words.delay_ms,
        )  # fmt: skip
        self.evaluator = Evaluator(data)
        self.systems = [system for system in SYSTEMS if system.name in words.systems]
        self.pythons = pythons(self.systems, self.missing)

    def measure(self) -> None:
        """Run everything; a system whose first run fails is left out."""
        for number, system in interleaved(self.systems, self.words.rounds):
            if system.name in self.missing:
                continue
            for row in self.rows_of(system):
                row = {"system": system.name, "round": number, **row}
                self.runs.append(row)
                report.progress(row)
            mine = [row for row in self.runs if row["system"] == system.name]
            if all(row.get("failed") for row in mine):
                self.missing[system.name] = mine[0]["failed"]

    def rows_of(self, system: System) -> Iterator[course.Row]:
        """The rows of one round; without a first run the others are left out."""
        parts, python, setting = self.words.parts, self.pythons[system.environment], self.setting
        step_s = None
        if "speed" in parts or "slow" in parts:
            row = attempt("speed", partial(course.undisturbed, system, python, setting, self.evaluator))
            step_s = row.get("step_s")
            yield row
            if row.get("failed"):
                return
        for role in (role for role in system.kills if "kills" in parts and role in self.words.roles):
            yield attempt("kill", partial(course.killed, system, python, setting, self.evaluator, role), role)
        if "slow" in parts and step_s and system.trainers is None:
            yield attempt("slow", partial(course.slow, system, python, setting, step_s))
        if "link" in parts and system.linked and setting.hostnet:
            yield attempt("link", partial(course.linked, system, python, setting))

    def figures(self) -> dict[str, Any]:
        """All figures."""
        lines = {one.name: user_lines.of_files(FOLDER / name for name in one.files) for one in self.systems}
        packages = {one.name: ", ".join(ENVIRONMENTS.get(one.environment, ())) for one in self.systems}
        found = table.figures(self.runs, [system.name for system in self.systems], self.missing, lines)
        kept = ("rounds", "workers", "batch", "rate", "seconds", "away", "mbit", "delay_ms")
        return {"settings": {name: getattr(self.words, name) for name in kept}, "packages": packages, **found}


def attempt(part: str, run: Callable[[], course.Row], role: str | None = None) -> course.Row:
    """The row of a run; where it fails, `failed` says why."""
    row: course.Row = {"part": part, **({"role": role} if role else {})}
    try:
        return row | run()
    except FAILURES as error:
        return row | {"failed": f"{type(error).__name__}: {error}"}
