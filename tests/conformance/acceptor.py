"""The acceptor: asks Spin's verifier of `tests/model/trace.pml` whether a trace is a run of the model's rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.model.search import HERE as MODEL

from .projection import Event

TIMEOUT_S = 300.0


@cache
def kinds() -> dict[str, int]:
    """Numbers of the kinds of events, from the model."""
    return {name: int(number) for name, number in re.findall(r"#define (\w+) (\d+)", (MODEL / "kinds.pml").read_text())}


@dataclass(frozen=True)
class Verdict:
    """Outcome for one trace.

    Attributes
    ----------
    accepted
        Whether the model has a run with these events.
    position
        Of the first event that no run has; of the last event, where it is accepted.
    reason
        The assertion that failed; "" where the event's action is not enabled.
    """

    accepted: bool
    position: int
    reason: str = ""


class Acceptor:
    """The compiled acceptor, in a folder of its own.

    Raises
    ------
    RuntimeError
        It cannot be compiled.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for file in MODEL.glob("*.pml"):
            shutil.copy(file, folder)
        self._call("spin", "-a", "trace.pml")
        # The run of a trace has no branches: states need no table to speak of.
        self._call("cc", "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DVECTORSZ=8192", "-o", "accept", "pan.c")

    def _call(self, *command: str) -> None:
        ended = subprocess.run(
            command, cwd=self._folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")

    def judge(self, events: Sequence[Event]) -> Verdict:
        """Whether the model accepts a trace.

        Raises
        ------
        RuntimeError
            The acceptor has printed no verdict.
        """
        numbers = kinds()
        lines = [f"{numbers[e.kind]} {e.slot} {int(e.number)} {e.flag:d} {e.other:d}" for e in events]
        ended = subprocess.run(
            [str(self._folder / "accept"), "-w10", "-m100000"],
            input="\n".join(lines),
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        verdict = re.search(r"^(accepted|rejected) (\d+)$", ended.stdout, re.MULTILINE)
        if verdict is None:
            raise RuntimeError(f"no verdict: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        error = re.search(r"^pan:1: (.+?) \(at depth", ended.stdout, re.MULTILINE)
        reason = "" if error is None or "end state" in error[1] else error[1]
        return Verdict(verdict[1] == "accepted", int(verdict[2]), reason)
