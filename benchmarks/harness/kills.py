"""Runs of a job in which one process of a given role is killed or stopped."""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

from benchmarks.harness.options import settings
from benchmarks.harness.runs import Run, wait_for

UNDISTURBED = 3
"""Runs without a kill, at most: the reference of the others."""
STOPPED_S = 10.0


def add_kills(parser: argparse.ArgumentParser, known: Sequence[str], times: int) -> None:
    """Options: roles, runs of each, the seed, and a file of rows."""

    def roles(text: str) -> list[str]:
        chosen = [role for role in text.split(",") if role]
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
        return chosen

    only_rows = 'which, with commas between; "" only reports --rows'
    parser.add_argument("--roles", type=roles, default=",".join(known), help=only_rows)
    parser.add_argument("--times", type=int, default=times, help="runs per role; none has three at most")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--rows", type=Path, help="JSON lines: earlier parts' rows, and where new ones are added")


def planned(arguments: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """(role, number) of each run."""
    for role in arguments.roles:
        for number in range(min(arguments.times, UNDISTURBED) if role == "none" else arguments.times):
            yield role, number


def train(
    run: Run, job: Path, fields: Mapping[str, object], limit_s: float, disturb: Callable[[Popen[bytes]], None]
) -> dict[str, Any]:
    """Train the job with one disturbance; its exit code, time and processes that are left."""
    row: dict[str, Any] = {}
    began_s = time.monotonic()
    launcher = run.start("train", ["train", str(job.absolute()), *settings({**fields, "output": run.folder})])

    def exit_code() -> int | None:
        code = launcher.poll()
        if code is None:
            run.processes()  # each is seen before its end
            time.sleep(0.5)
        return code

    try:
        disturb(launcher)
        row["code"] = wait_for(exit_code, "the end of the job", limit_s - (time.monotonic() - began_s))
    except TimeoutError as error:
        row |= {"code": None, "trouble": str(error)}
        launcher.terminate()
    finally:
        row["wall_s"] = round(time.monotonic() - began_s, 1)
        row["left"] = run.end()
    return row


def strike(run: Run, role: str, how: str, rng: random.Random) -> str | None:
    """Kill one process of this role, or stop it for a while; its name, None where there is none."""
    members = run.members()[role]
    if not members:
        return None
    pid, name = rng.choice(members)
    if how == "kill":
        os.kill(pid, signal.SIGKILL)
        return name
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(STOPPED_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    return name
