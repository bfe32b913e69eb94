"""A batch job of Slurm that runs this command: submitted, followed and ended from outside of the nodes."""

from __future__ import annotations

import codecs
import logging
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dbelief.errors import RuntimeFailure
from dbelief.launch.child_process import PROGRAM
from dbelief.process.terminal.console import Interrupt, cause_of, interrupt_event

from .allocation import DEADLINE_S, Run, run

log = logging.getLogger(__name__)

LOOK_S = 1.0
STOPPED = 130
"""Exit code of a job that a signal to this process has stopped, as on one machine."""
TRIES = 60
"""Looks at the job in a row that may fail, as while the controller is restarted."""
OPTIONS = "--cpus-per-task=1", "--signal=B:TERM@120", "--no-kill", "--requeue", "--open-mode=append"
"""Of `sbatch`: a last snapshot set before the time limit, and nodes that fail end only their own members."""
_FIELD = re.compile(r"\b(JobState|Reason|ExitCode)=(\S+)|\b(StdOut)=(.*)$", re.MULTILINE)
_OVER = {
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
    "PREEMPTED",
}


_ENDS = {
    "PENDING": ([], "it is cancelled"),
    "RUNNING": (["--batch", "--signal=TERM"], "it takes a last snapshot set, and ends"),
}
"""Options of `scancel` for a job in a state, and what it does then."""


def submit(name: str, words: Sequence[str], tasks: int, options: Sequence[str]) -> str:
    """Submit `dbelief` with these words as a batch job in the current folder; its number.

    Parameters
    ----------
    options
        Of `sbatch`, behind our own.

    Raises
    ------
    RuntimeFailure
        There is no `sbatch`, or it refuses the job; names its reason.
    """
    script = f"#!/bin/sh\nexec {shlex.join([*PROGRAM, *words])}\n"
    command = ["sbatch", "--parsable", f"--job-name={name}", f"--ntasks={tasks}", *OPTIONS, *options]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except OSError as error:
        raise RuntimeFailure(f"sbatch: {error.strerror or error}; --on slurm needs Slurm's commands") from error
    except subprocess.TimeoutExpired:
        raise RuntimeFailure(f"sbatch did not answer within {DEADLINE_S:g} s") from None
    if done.returncode:
        raise RuntimeFailure(" ".join(done.stderr.split()) or f"sbatch: exit code {done.returncode}")
    return done.stdout.strip().partition(";")[0]


class BatchJob:
    """A job that Slurm has queued, as this process follows it.

    Parameters
    ----------
    number
        Slurm's.
    write
        Takes what the job has written.
    """

    def __init__(self, number: str, write: Callable[[str], object] = sys.stderr.write, run: Run = run) -> None:
        self._number, self._write, self._run = number, write, run
        self._shown = 0
        self._failures = 0
        self._fields: dict[str, str] = {}
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def follow(self, interrupted: Interrupt) -> int:
        """Show the job's states and its output until its end; its exit code.

        It waits in the queue for as long as Slurm has no room. At SIGINT or SIGTERM the job is asked to end: it takes
        a last snapshot set, and the exit code is 130. A second signal ends this process alone. At SIGHUP, as when the
        terminal is closed, this process ends, and the job goes on.

        Raises
        ------
        RuntimeFailure
            Slurm ended the job, or does not answer.
        """
        state, asked = "", ""
        while True:
            self._look()
            self._show()
            now = self._fields.get("JobState", "")
            if now != state:
                reason = self._fields.get("Reason", "None")
                log.info(f"Slurm job {self._number}: {now.lower()}" + (f" ({reason})" if reason != "None" else ""))
                state = now
            if state in _OVER:
                return self._code(state, bool(asked))
            if interrupted.is_set() and interrupted.number == signal.SIGHUP:
                log.info(f"Slurm job {self._number} goes on, and is not followed any further")
                return STOPPED
            if interrupted.is_set() and state != asked and state in _ENDS and self._ask_to_end(interrupted, state):
                asked = state
            (time.sleep if interrupted.is_set() else interrupted.wait)(LOOK_S)

    def _look(self) -> None:
        try:
            found = self._run(["scontrol", "show", "job", self._number])
        except RuntimeFailure as error:
            self._failures += 1
            if self._failures > TRIES or "Invalid job id" in str(error):
                raise RuntimeFailure(f"Slurm job {self._number}: {error}") from error
            return
        self._failures = 0
        self._fields = {name or path: value or file for name, value, path, file in _FIELD.findall(found)}

    def _show(self) -> None:
        """Write what is new in the job's output, which may not be there yet."""
        with suppress(OSError), Path(self._fields.get("StdOut", "")).open("rb") as output:
            output.seek(self._shown)
            new = output.read()
            self._shown += len(new)
            self._write(self._decoder.decode(new))

    def _ask_to_end(self, interrupted: Interrupt, state: str) -> bool:
        """Ask the job to end, in the queue or on its nodes; whether Slurm has taken it."""
        options, words = _ENDS[state]
        try:
            self._run(["scancel", *options, self._number])
        except RuntimeFailure as error:
            log.warning(f"{error}; trying again")
            return False
        log.info(f"{cause_of(interrupted)}: Slurm job {self._number}: {words}")
        return True

    def _code(self, state: str, asked: bool) -> int:
        if asked and state in ("COMPLETED", "CANCELLED"):
            return STOPPED
        code, _, killed = self._fields.get("ExitCode", "1:0").partition(":")
        if state not in ("COMPLETED", "FAILED"):
            raise RuntimeFailure(f"Slurm job {self._number}: {state.lower()}")
        return int(code) or (128 + int(killed) if int(killed) else 0)


def submit_and_follow(name: str, words: Sequence[str], tasks: int, options: Sequence[str]) -> int:
    """Submit a command, and follow the job to its end; its exit code. Arguments as of `submit`; errors too."""
    with interrupt_event() as interrupted:
        number = submit(name, words, tasks, options)
        log.info(f"Slurm job {number}: submitted")
        return BatchJob(number).follow(interrupted)
