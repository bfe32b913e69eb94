"""Time slices of a thread, asked of the kernel that runs the test."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import pytest

from dbelief.process import time_slice
from dbelief.process.time_slice import request_slice

_VERSION = re.match(r"(\d+)\.(\d+)", platform.release()) if platform.system() == "Linux" else None
GRANTED = _VERSION is not None and tuple(map(int, _VERSION.groups())) >= (6, 12)
needs_slices = pytest.mark.skipif(not GRANTED, reason="Linux has slices of a thread's own from 6.12 on")

PROGRAM = """
import os, threading
from dbelief.process.time_slice import _attributes, request_slice
os.nice(3)
os.sched_setscheduler(0, {policy}, os.sched_param(0))
before, found = _attributes(), []
def compute():
    print(request_slice({slice_s}))
    now = _attributes()
    print(now.runtime_ns, now.policy, now.nice)
thread = threading.Thread(target=compute)
thread.start(); thread.join()
print(_attributes().runtime_ns == before.runtime_ns)
"""


def run(policy: int, slice_s: float) -> list[str]:
    """Output of a thread that requests slices, with a niceness of 3."""
    program = PROGRAM.format(policy=policy, slice_s=slice_s)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.split("\n")[:-1]


@needs_slices
@pytest.mark.parametrize("policy", [os.SCHED_OTHER, os.SCHED_BATCH])
def test_the_thread_has_them_with_its_policy_and_niceness_and_no_other_thread_has(policy: int) -> None:
    assert run(policy, 0.03) == ["True", f"30000000 {policy} 3", "True"]


@needs_slices
def test_a_slice_that_the_kernel_limits_is_not_called_granted() -> None:
    assert run(os.SCHED_OTHER, 0.5)[0] == "False"


def test_a_thread_that_is_scheduled_otherwise_is_left_alone() -> None:
    found = run(os.SCHED_IDLE, 0.03)
    assert (found[0], found[1].split()[1:], found[2]) == ("False", [str(os.SCHED_IDLE), "3"], "True")


def test_a_system_without_them_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "_GET_ATTRIBUTES", 0)
    assert not request_slice(0.03)
