"""For which processors this host can compile and run, and processes of a test that run as if on one of them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240.0
HOST = "host"
"""This host's processor, with all that it has."""
NEEDS: dict[str, tuple[str, ...]] = {
    "generic": (),
    "x86-64-v2": ("sse4.2", "ssse3", "popcnt"),
    "haswell": ("avx2", "fma", "bmi", "bmi2", "lzcnt", "movbe", "f16c"),
}
"""Names for NUMBA_CPU_NAME, from the least on, and what of this host each needs."""


def missing(name: str) -> list[str]:
    """What this host lacks of a processor; none where it can run the processor's code."""
    import llvmlite.binding as llvm

    if name != "generic" and platform.machine() not in ("x86_64", "AMD64"):
        return ["x86-64"]
    here = llvm.get_host_cpu_features()
    return [feature for feature in NEEDS[name] if not here.get(feature)]


def runnable() -> list[str]:
    """Names that this host can run the code of; "host" last."""
    return [name for name in NEEDS if not missing(name)] + [HOST]


def settings(name: str) -> dict[str, str]:
    """Environment variables for a processor: with no features named, numba takes the host's."""
    return {} if name == HOST else {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": ""}


class Program:
    """A module of this folder as a process on a processor of a name; speaks in lines."""

    def __init__(self, module: str, name: str, arguments: Sequence[str] = ()) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_CPU_")}
        command = [sys.executable, "-m", f"tests.portable.{module}", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**environment, **settings(name)},
        )
        self._watch = threading.Timer(DEADLINE_S, self.process.kill)
        self._watch.start()

    def ask(self, line: str = "") -> str:
        """Write a line, where there is one, and wait for the next one from there."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if line:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"{self.process.args!r} ended, or said nothing for {DEADLINE_S:g} s"
        return answer

    def kill(self) -> None:
        """End it at once."""
        self._watch.cancel()
        self.process.kill()
        self.process.communicate()


@contextmanager
def running(module: str, *names: str, arguments: Sequence[str] = ()) -> Iterator[list[Program]]:
    """One process for each name; ended at the end of the block."""
    with ExitStack() as stack:
        programs = [Program(module, name, arguments) for name in names]
        for program in programs:
            stack.callback(program.kill)
        yield programs
