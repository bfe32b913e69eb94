"""Orphans among a launcher's descendants: they are waited for, and nobody's exit code is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, os, subprocess, sys, time
from pathlib import Path
from dbelief.launch.orphans import reap_orphans

def zombies():
    found = Path("/proc/self/task").glob("*/children")
    pids = [pid for listed in found for pid in listed.read_text().split()]
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"]

def until(count):
    until_s = time.monotonic() + 60
    while len(zombies()) != count and time.monotonic() < until_s:
        time.sleep(0.01)
    return len(zombies())

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # a subreaper
own = [subprocess.Popen(["false"]), subprocess.Popen(["false"], start_new_session=True)]
leaves = subprocess.Popen(["sh", "-c", "(sleep 0.01 &) ; exit 5"], start_new_session=True)
print(until(4))
reap_orphans()
print(until(3), [process.wait() for process in (*own, leaves)], until(0))
"""


@pytest.mark.skipif(not list(Path("/proc/self/task").glob("*/children")), reason="a kernel that lists children")
def test_orphans_are_waited_for_and_children_are_not() -> None:
    """In a process of its own, which adopts."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90, check=True)
    assert ended.stdout == "4\n3 [1, 1, 5] 0\n"
