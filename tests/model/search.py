"""Searches of the protocol's model (`protocol.pml`) by Spin: complete, without bitstate hashing.

`python -m tests.model.search` (`make model`) searches for cycles, for each planted error, and then completely. It needs
`spin`, a C compiler, and memory for the states (`MEMORY_BYTES`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("spin", "cc")
ABSENT = [program for program in PROGRAMS if shutil.which(program) is None]
PLANTED = {
    "ACKNOWLEDGE_EARLY": "a push is acknowledged before the follower has it",
    "CONTINUE_UNREPLICATED": "a leader that loses its follower acknowledges before the coordinator has recorded it",
    "PROMOTE_LAGGING": "a follower is promoted with its data before it is in sync",
    "MOVE_WITHOUT_LEDGER": "a segment migrates without its ledger",
    "OBEY_OLD_LEADER": "a shard executes a command of a coordinator that was replaced",
    "FORGET_OWNERSHIP": "a new coordinator does not confirm ownership after a failover",
    "SETTLE_UNFENCED": "the ledger of a failed worker is read before its pushes are refused",
    "FORGET_BASE": "a push does not name its predecessor after the placement changed",
}
"""Errors that the model can be given, by the name behind PLANT_."""

COMPLETE: Mapping[str, int] = {"CRASHES": 2, "MOVES": 1, "TAKEOVERS": 1, "CUTS": 0, "FIRST": 2}
"""The size of `make model`: pushes of worker 0, and how often each kind of disturbance happens at most."""
FAILURES = range(10)
"""Numbers of the first and the second failure, by which the complete search is divided."""
LARGE = (4,)
"""First failures after which there are so many states that the second failure divides them further."""
DEPTH = 10_000
STOPPED = ("Search not completed", "max search depth too small", "out of memory", "MEMLIM")
"""Texts of a search that was ended before all states were visited."""
MEMORY_BYTES = int(0.85 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


@dataclass(frozen=True)
class Found:
    """Outcome of a search.

    Attributes
    ----------
    error : str
        The assertion that failed, or the invalid end state; "" if there is none.
    complete : bool
        Whether all states were visited; False where an error ended the search.
    states : int
    depth : int
        Steps of the longest run.
    bytes : int
        Memory.
    seconds : float
    """

    error: str
    complete: bool
    states: int
    depth: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        size = f"{self.states:,} states, depth {self.depth}, {self.bytes / 2**30:.2f} GiB, {self.seconds:.1f} s"
        if self.error:
            return f"{size}: {self.error}"
        return f"{size}: {'complete, no error' if self.complete else 'NOT COMPLETE'}"


def search(
    sizes: Mapping[str, int], planted: str = "", cycles: bool = False, states: int = 1 << 24, timeout_s: float = 3600.0
) -> Found:
    """Visit all states that can be reached.

    Parameters
    ----------
    sizes : mapping of str to int
        Values of the names in `COMPLETE`; EXCHANGES 1: a push is an exchange.
    planted : str
        A name of `PLANTED`, or "".
    cycles : bool
        Search for cycles instead of invalid end states: without one, every run ends.
    states : int
        Slots of the hash table: about as many as states are expected.

    Raises
    ------
    RuntimeError
        The model cannot be compiled, or the search has printed no figures.
    """
    defines = [f"-D{name}={value}" for name, value in sizes.items()] + [f"-DPLANT_{planted}"] * bool(planted)
    kind = ["-DCOLLAPSE", "-DNP"] if cycles else ["-DNOCOMP", "-DSAFETY"]
    with tempfile.TemporaryDirectory() as folder:
        for file in HERE.glob("*.pml"):
            shutil.copy(file, folder)
        _run(["spin", *defines, "-a", "protocol.pml"], folder)
        _run(["cc", "-O2", "-w", *kind, f"-DMEMLIM={MEMORY_BYTES >> 20}", "-o", "pan", "pan.c"], folder)
        table = f"-w{max(20, (states - 1).bit_length())}"
        printed = _run(["./pan", *["-l"] * cycles, table, f"-m{DEPTH}"], folder, timeout_s)
    return _read(printed)


def search_divided(sizes: Mapping[str, int], states: int = 1 << 26) -> Iterator[tuple[str, Found]]:
    """Search completely in parts, by the first failure, each in less memory than the whole; see `search`.

    States of several parts are visited in each of them.

    Returns
    -------
    iterator of tuple
        Name of a part, and its outcome.
    """
    for first in FAILURES:
        for second in FAILURES if first in LARGE else (None,):
            part = {"FIRST_FAILURE": first} | ({} if second is None else {"SECOND_FAILURE": second})
            name = f"first failure {first}" + ("" if second is None else f", second {second}")
            yield name, search({**sizes, **part}, states=states)


def _run(command: list[str], folder: str, timeout_s: float = 300.0) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {ended.returncode}: {ended.stdout}{ended.stderr}")
    return ended.stdout


def _read(printed: str) -> Found:
    """Read what a search has printed."""
    error = re.search(r"^pan:1: (.+?) \(at depth \d+\)", printed, re.MULTILINE)
    return Found(
        error=" ".join(error[1].split()) if error else "",
        complete=not any(text in printed for text in STOPPED),
        states=int(_figure(r"(\d+) states, stored", printed)),
        depth=int(_figure(r"depth reached (\d+), errors", printed)),
        bytes=int(float(_figure(r"([\d.]+)\s+(?:total actual memory usage|memory usage)", printed)) * 2**20),
        seconds=float(_figure(r"elapsed time ([\d.e+]+) seconds", printed)),
    )


def _figure(pattern: str, printed: str) -> str:
    """The last match of a pattern with one group."""
    found = re.findall(pattern, printed)
    if not found:
        raise RuntimeError(f"the search has printed no {pattern}: {printed[-2000:]}")
    return str(found[-1])


def main() -> int:
    """Run all searches; 0 if they are complete without an error, and each planted error is found."""
    if ABSENT:
        print(f"not found: {', '.join(ABSENT)} (Debian: apt-get install spin gcc)", file=sys.stderr)
        return 2
    small = {**COMPLETE, "CRASHES": 1}
    none = search({**COMPLETE, "CRASHES": 0})
    print(f"no failure: {none}", flush=True)
    one_failure = search(small)
    print(f"1 failure: {one_failure}", flush=True)
    exchanges = search({**small, "EXCHANGES": 1})
    print(f"1 failure, exchanges: {exchanges}", flush=True)
    cycles = search({**small, "FIRST": 1}, cycles=True, states=1 << 23)
    print(f"1 failure, cycles: {cycles}", flush=True)
    cut = search({**small, "CUTS": 1, "FIRST": 1}, states=1 << 24)
    print(f"1 failure, 1 broken connection: {cut}", flush=True)
    found = {name: search(small, planted=name) for name in PLANTED}
    for name, one in found.items():
        print(f"planted, {PLANTED[name]}: {one}", flush=True)
    print(f"complete search ({', '.join(f'{name} {value}' for name, value in COMPLETE.items())}):", flush=True)
    parts = []
    for name, part in search_divided(COMPLETE):
        print(f"  {name}: {part}", flush=True)
        parts.append(part)
    print(f"  all: {sum(part.states for part in parts):,} states, {max(part.bytes for part in parts) / 2**30:.2f} GiB")
    sound = [one.complete and not one.error for one in (none, one_failure, exchanges, cycles, cut, *parts)]
    return 0 if all(sound) and all(one.error for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
