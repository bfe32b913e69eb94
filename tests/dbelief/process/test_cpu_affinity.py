"""Lists of cores: syntax, division among workers, and permitted cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.errors import UserError
from dbelief.process.cpu_affinity import available_cores, format_cores, parse_cores, pin, split_cores


@pytest.mark.parametrize(
    ("text", "cores"), [("0", (0,)), ("0-3,8", (0, 1, 2, 3, 8)), ("5,1-2,2", (1, 2, 5)), ("7-7", (7,))]
)
def test_a_list_of_cores(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1,", "1--2", "1.5", "3-1"])
def test_malformed_core_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"cores are written as 0-3,8|ends before it begins"):
        parse_cores(text)


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 20))
def test_shares_are_neighbours_and_differ_by_one_at_most(cores: set[int], parts: int) -> None:
    if len(cores) < parts:
        with pytest.raises(
            UserError, match=f"{parts} parts cannot each have a core of their own: there are {len(cores)}"
        ):
            split_cores(cores, parts)
        return
    cut = split_cores(cores, parts)
    assert [core for part in cut for core in part] == sorted(cores)
    sizes = [len(part) for part in cut]
    assert max(sizes) - min(sizes) <= 1
    assert [parse_cores(format_cores(part)) for part in cut] == cut


def test_cores_that_are_not_there_are_named() -> None:
    with pytest.raises(UserError, match="core 100000 is none that this process may run on: "):
        pin([100_000])


def test_all_threads_keep_to_them() -> None:
    """Those of NumPy, which were there before, and those that are started later."""
    last = available_cores()[-1]
    program = f"""
import os, threading, numpy
from contextlib import suppress
from dbelief.process.cpu_affinity import pin
pin([{last}])
found = []
thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
thread.start(); thread.join()
for task in os.listdir("/proc/self/task"):
    with suppress(ProcessLookupError):  # the kernel's thread may end after its join
        found.append(os.sched_getaffinity(int(task)))
assert all(one == {{{last}}} for one in found), found
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "3"})
