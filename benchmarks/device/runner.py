"""One part after the other, each a process of its own: a crash, or a part that waits for ever, stops no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from benchmarks.device import findings
from benchmarks.device.bounds import Part
from benchmarks.harness import runs
from benchmarks.harness.timing import processor_s

State = Literal["ok", "failed", "timeout", "skipped"]
Row = dict[str, Any]
FINDINGS = "findings.jsonl"
WORDS = 20
"""Lines of its output that are shown of a part that has failed."""


def command(part: Part, small: bool, file: Path) -> list[str]:
    """The command that runs one part in its process, and writes its findings to a file."""
    size = ["--stand-in"] if small else []
    return [sys.executable, "-m", "benchmarks.device", part.name, *size, "--findings", str(file)]


def run(
    part: Part,
    words: Callable[[Path], Sequence[str]],
    bound_s: float,
    logs: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Row:
    """Run a part until its end, or its bound; then none of its processes, however far down, is left.

    Parameters
    ----------
    words
        Its command, from the path of the file to which it writes its findings.
    bound_s
        Seconds until it is ended.
    logs
        Folder that keeps its output as NAME.log; None: only its last lines are kept, of a part that has failed.
    environment
        Variables of its processes, beside those of this one.

    Returns
    -------
    name, state, reason (why it failed, and what was left out), seconds, processor_s, bound_s, figures, and `output`:
    the last lines that it wrote, where it has failed
    """
    began_s, used_s = time.monotonic(), processor_s()
    with runs.temporary_run("part") as folder:
        file = folder.folder / FINDINGS
        process = folder.start_program(part.name, words(file), environment)
        try:
            code: int | None = process.wait(bound_s)
        except subprocess.TimeoutExpired:
            code = None
            for pid in folder.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        seconds = time.monotonic() - began_s
        folder.end()
        output = folder.output(part.name)
        figures, left_out, errors = findings.read(file)
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / f"{part.name}.log").write_text("\n".join([*output, ""]))
    state = _state(code, figures, left_out, errors)
    why = {"timeout": f"still at work after {bound_s:g} s", "failed": _why(code, errors)}.get(state, "")
    return {
        "name": part.name,
        "state": state,
        "reason": "; ".join([*filter(None, [why]), *left_out]),
        "seconds": round(seconds, 1),
        "processor_s": round(processor_s() - used_s, 1),
        "bound_s": bound_s,
        "figures": figures,
        **({"output": output[-WORDS:]} if state in ("failed", "timeout") else {}),
    }


def _state(code: int | None, figures: Sequence[Any], left_out: Sequence[str], errors: Sequence[str]) -> State:
    if code is None:
        return "timeout"
    if code or errors or not (figures or left_out):
        return "failed"
    return "ok" if figures else "skipped"


def _why(code: int | None, errors: Sequence[str]) -> str:
    if errors:
        return "; ".join(errors)
    if code:
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return "it found nothing"
