"""Children of the launcher, with a program of a few lines in place of dbelief."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dbelief.launch.child_process import BACK_OFF_S, LOG_BYTES, ChildProcess, Direct, terminate_all
from tests.dbelief.launch.processes import runs, soon

pytestmark = pytest.mark.processes

PROGRAM = """
import os, signal, sys
what, value = sys.argv[1:]
if what == "exit":
    print("leaving with", value, flush=True)
    sys.exit(int(value))
if what == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "finish":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(value)))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""

MakeChild = Callable[..., ChildProcess]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[MakeChild]:
    """Give child("exit", "3", restarts=2): not started yet, and ended after the test."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    way = Direct([sys.executable, str(script)])
    made: list[ChildProcess] = []

    def make(what: str, value: str = "0", restarts: int = 0) -> ChildProcess:
        name = f"worker-{len(made)}"
        made.append(ChildProcess(name, [what, value], tmp_path / f"{name}.log", restarts, way))
        return made[-1]

    yield make
    for one in made:
        if one.process is not None:
            one.process.kill()
            one.process.wait()


def started(one: ChildProcess) -> ChildProcess:
    """Start it, and wait until it says so."""
    one.start()
    soon(lambda: one.log.read_text() != "" or one.code is not None, f"{one.name} said nothing")
    return one


def ended(one: ChildProcess) -> ChildProcess:
    """Wait for its end."""
    assert one.process is not None
    one.process.wait(60)
    return one


def test_one_that_was_not_started_has_no_end(child: MakeChild) -> None:
    one = child("exit")
    assert one.code is None
    assert one.restart_if_due(0.0)
    assert one.started == 0
    assert one.last_words() == ""
    one.end(0.0)


def test_wait_returns_at_the_end(child: MakeChild) -> None:
    one = child("exit", "3")
    one.wait(0.01)  # not started: as a sleep
    one.start()
    one.wait(60.0)
    assert one.code == 3
    other = started(child("stay", "0"))
    other.wait(0.01)
    assert other.code is None


def test_ctrl_c_at_the_launcher_does_not_reach_it(child: MakeChild) -> None:
    one = started(child("wait"))
    assert one.process is not None
    assert os.getsid(one.process.pid) == one.process.pid != os.getsid(0)
    assert one.last_words() == str(one.process.pid), "the guard became the program, it has no child of its own"


def test_failed_child_restarts_with_back_off(child: MakeChild) -> None:
    one = child("exit", "3", restarts=3)
    one.start()
    now_s = 1000.0
    for times, back_off_s in enumerate(BACK_OFF_S, start=1):
        ended(one)
        assert one.restart_if_due(now_s)
        assert one.restart_if_due(now_s + back_off_s - 0.01)
        assert one.started == times
        now_s += back_off_s
        assert one.restart_if_due(now_s)
        assert one.started == times + 1
    ended(one)
    assert not one.restart_if_due(now_s)
    assert not one.restart_if_due(now_s + 1e6)
    assert one.started == 4


def test_one_that_ended_well_or_still_runs_is_left_alone(child: MakeChild) -> None:
    well, running = child("exit", "0", restarts=3), started(child("wait", restarts=3))
    well.start()
    ended(well)
    for one in (well, running):
        assert one.restart_if_due(0.0)
        assert one.restart_if_due(1e6)
        assert one.started == 1


def test_one_that_was_killed_is_started_again(child: MakeChild) -> None:
    one = started(child("wait", restarts=1))
    assert one.process is not None
    first = one.process.pid
    one.process.kill()
    assert ended(one).code == -signal.SIGKILL
    assert one.restart_if_due(0.0)
    assert one.restart_if_due(1e6)
    assert one.started == 2
    assert one.process.pid != first


def test_a_mistake_is_not_tried_again(child: MakeChild) -> None:
    one = child("exit", "2", restarts=3)
    one.start()
    assert not ended(one).restart_if_due(0.0)
    assert one.fate().endswith(" ended with exit code 2: leaving with 2")


def test_death_by_signal_is_reported(child: MakeChild) -> None:
    one = started(child("wait"))
    one.end(10.0)
    assert one.fate().endswith(" was killed by SIGTERM")


def test_it_is_asked_to_end(child: MakeChild) -> None:
    one = started(child("finish", "7"))
    one.end(10.0)
    assert one.code == 7
    one.end(10.0)


def test_it_is_killed_where_it_does_not(child: MakeChild) -> None:
    one = started(child("stubborn"))
    one.end(0.05)
    assert one.code == -signal.SIGKILL


def test_all_are_given_time_to_end_by_themselves(child: MakeChild) -> None:
    by_itself = child("exit", "5")
    by_itself.start()
    terminate_all([by_itself], grace_s=30.0)
    assert by_itself.code == 5


def test_terminate_all_kills_after_the_grace_period(child: MakeChild) -> None:
    asked, other, never = started(child("wait")), started(child("finish", "7")), child("wait")
    terminate_all([asked, other, never], grace_s=0.0)
    assert (asked.code, other.code, never.code) == (-signal.SIGTERM, 7, None)


def test_log_messages_are_of_the_last_start(child: MakeChild) -> None:
    one = child("exit", "0")
    one.log.write_text("of an earlier run\n")
    for _ in range(2):
        one.start()
        assert one.process is not None
        one.process.wait(60)
    assert one.log_messages() == ["leaving with 0"]
    assert one.log.read_text().count("\n") == 3


def test_last_words_are_the_last_line_that_is_not_blank(child: MakeChild) -> None:
    one = child("exit")
    one.log.write_bytes(b"first\nError: \xff no such file\n\n  \n")
    assert one.last_words() == "Error: \ufffd no such file"
    one.log.write_text("")
    assert one.last_words() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_it_ends_with_a_launcher_that_was_killed(child: MakeChild, tmp_path: Path) -> None:
    log = tmp_path / "orphan.log"
    launcher = (
        "import pathlib, sys\n"
        "from dbelief.launch import child_process\n"
        "way = child_process.Direct([sys.executable, sys.argv[2]])\n"
        "child_process.ChildProcess('orphan', ['wait', '0'], pathlib.Path(sys.argv[1]), way=way).start()\n"
        "sys.stdin.read()"
    )
    script = tmp_path / "program.py"
    with subprocess.Popen([sys.executable, "-c", launcher, str(log), str(script)], stdin=subprocess.PIPE) as process:
        soon(lambda: log.exists() and log.read_text().endswith("\n"), "the child did not start")
        orphan = int(log.read_text())
        assert runs(orphan)
        process.kill()
    soon(lambda: not runs(orphan), "the child outlived its launcher")
    assert not runs(orphan)


def test_only_the_end_of_a_long_log_is_read(child: MakeChild) -> None:
    one = child("exit", "3")
    with one.log.open("wb") as log:
        log.seek(1 << 40)  # without blocks on the disk
        log.write(b"\n")
    one.start()
    assert one.process is not None
    one.process.wait()
    assert one.fate() == "worker-0 ended with exit code 3: leaving with 3"
    assert one.log_messages() == ["leaving with 3"]
    with one.log.open("ab") as log:
        log.write(b"x" * 3 * LOG_BYTES + b"\n\n")
    assert one.last_words() == "x" * (LOG_BYTES - 2)
