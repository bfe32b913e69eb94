"""The acceptor: asks Spin's verifier of `tests/model/trace.pml` whether a trace is a run of the model's rules."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.model.search import HERE as MODEL

from .events import Event, text_of

TIMEOUT_S = 300.0
NO_END = 2
"""Exit code for a trace without STOP."""


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
    """A compiled acceptor.

    Parameters
    ----------
    folder
        Where `compile` has put it.
    """

    def __init__(self, folder: Path) -> None:
        self._program = folder / "accept"

    @classmethod
    def compile(cls, folder: Path) -> Acceptor:
        """Compile it in an empty folder.

        Raises
        ------
        RuntimeError
            The model has an error, or a program is missing.
        """
        for file in MODEL.glob("*.pml"):
            shutil.copy(file, folder)
        _call(folder, "spin", "-a", "trace.pml")
        _call(folder, "cc", "-O1", "-w", "-DSAFETY", "-DNOREDUCE", "-DVECTORSZ=8192", "-o", "accept", "pan.c")
        return cls(folder)

    def judge(self, events: Sequence[Event]) -> Verdict:
        """Whether the model accepts a trace.

        Raises
        ------
        RuntimeError
            The acceptor has printed no verdict.
        """
        ended = subprocess.run(
            [str(self._program), "-w10", "-m100000"],
            input=text_of(events),
            cwd=self._program.parent,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        verdict = re.search(r"^(accepted|rejected) (\d+)$", ended.stdout, re.MULTILINE)
        if verdict is None or ended.returncode == NO_END:
            raise RuntimeError(f"no verdict: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        error = re.search(r"^pan:1: (.+?) \(at depth", ended.stdout, re.MULTILINE)
        reason = "" if error is None or "end state" in error[1] else error[1]
        return Verdict(verdict[1] == "accepted", int(verdict[2]), reason)


def _call(folder: Path, *command: str) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")
