"""dbelief beside the systems that people use: speed, cost, failures, a slow worker, slow links, lines of code.

    DBELIEF_DATA=... [DBELIEF_HOSTNET=...] python -m benchmarks.peers [--rounds 3] [--systems "torch DDP,dbelief"]
        [--parts speed,kills,slow,link] [--seconds 4] [--json FILE]
    python -m benchmarks.peers --plot PICTURE.png --json FILE

MNIST, 784-256-10 with ReLU, plain SGD, mini-batches of 64 for each of two workers, one thread each. Every system is
used as its documentation has it, in a virtual environment of its own below `.cache/peers` (made at the first call), one
at a time; each run is made of new processes. Rounds alternate over the systems; the figures are medians.

    speed   samples/s in a phase; seconds from the first sample to 97 % test accuracy; processor time of all processes;
            bytes over the loopback of a network namespace of their own (shared memory is not counted)
    kills   SIGKILL to a worker, to a server (what holds the parameters, or the store by which ranks meet), to the
            coordinator (launcher, lighthouse, driver, first peer, SuperLink). A supervisor starts again what ended,
            `--away` seconds later. "yes": training goes on before that. Samples lost and doubled: `reports.py`; those
            of dbelief as its summary counts them
    slow    one worker sleeps nine step times before each step
    link    each worker, and the server, on a host with a link of 50 Mbit/s and 5 ms; left out without hostnet

What cannot be installed or does not run is named with its reason. A cell is bold where a peer is better (`table.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import hosts, options, report
from benchmarks.harness.environments import python_with
from benchmarks.harness.timing import interleaved
from benchmarks.peers import course, table, user_lines
from benchmarks.peers.evaluation import Evaluator
from benchmarks.peers.systems import ENVIRONMENTS, FOLDER, SYSTEMS, System
from dbelief.errors import DbeliefError, RuntimeFailure

PARTS = ("speed", "kills", "slow", "link")
INSTALL_S = 720.0
FAILURES = (TimeoutError, LookupError, OSError, ValueError, subprocess.SubprocessError, DbeliefError)
"""What a run of one system may raise; the others go on."""


def parse() -> argparse.Namespace:
    """Parse the command line."""
    names = [system.name for system in SYSTEMS]
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", type=names_of, default=names, help='with ";" between: ' + "; ".join(names))
    parser.add_argument("--parts", type=options.words, default=list(PARTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples of a mini-batch of a worker")
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measured phase")
    parser.add_argument("--away", type=float, default=3.0, help="seconds until a process that ended is started again")
    parser.add_argument("--start", type=float, default=90.0, help="bound of a start, in seconds")
    parser.add_argument("--longest", type=float, default=25.0, help="bound of the waits for accuracy and speed, in s")
    parser.add_argument("--mbit", type=float, default=50.0, help="of a link")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of a link")
    parser.add_argument("--json", type=Path, help="file of the figures, beside the table")
    parser.add_argument("--plot", type=Path, help="draw a picture of the figures in --json, and end")
    hosts.add_hostnet(parser)
    found = parser.parse_args()
    if unknown := set(found.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: no part; there are {', '.join(PARTS)}")
    if found.plot and not found.json:
        parser.error("--plot needs --json")
    return found


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
        self.words, self.missing, self.runs = words, dict[str, str](), list[course.Row]()
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
        usual = None
        if "speed" in parts or "slow" in parts:
            row = attempt("speed", partial(course.undisturbed, system, python, setting, self.evaluator))
            usual = row.get("samples_per_s")
            yield row
            if row.get("failed"):
                return
        for role in system.kills if "kills" in parts else ():
            yield attempt("kill", partial(course.killed, system, python, setting, self.evaluator, role), role)
        if "slow" in parts and usual and system.trainers is None:
            yield attempt("slow", partial(course.slow, system, python, setting, usual))
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


def main() -> None:
    """Run the command."""
    words = parse()
    if words.plot:
        from benchmarks.peers.plot import draw

        draw(json.loads(words.json.read_text())["figures"], words.plot)
        return
    if "DBELIEF_DATA" not in os.environ:
        raise SystemExit("DBELIEF_DATA names no folder that has mnist/")
    linked = "link" in words.parts and not hosts.left_out(__file__, words.hostnet)
    comparison = Comparison(words)
    comparison.measure()
    found = comparison.figures()
    for one in table.tables(found, linked):
        Console(stderr=True, width=160).print(one)
    for row in found["failed"]:
        print(f"{row['system']}, {row['part']} {row['role'] or ''}: {row['failed']}", file=sys.stderr)
    if words.json:
        words.json.write_text(json.dumps({"measured": report.origin(report.own_command()), "figures": found}, indent=1))
    report.print_figures(found)


if __name__ == "__main__":
    main()
