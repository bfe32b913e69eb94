"""A process that ends without the interpreter's teardown does all that one should do before it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

START = """
import atexit, sys, threading, time
from dbelief.process.quick_end import end_after
class Kept:
    def __del__(self): print("teardown")
kept = Kept()
"""


def end(program: str) -> subprocess.CompletedProcess[str]:
    code = f"{START}\ndef program():\n    {program}\nend_after(program)\n"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def buffered() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize(
    ("program", "code"),
    [("pass", 0), ("return 3", 0), ("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit(-1)", 255), ("sys.exit(True)", 1)],
)
def test_the_exit_code_is_the_programs(program: str, code: int) -> None:
    ended = end(program)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


def test_the_text_of_an_exit_is_printed() -> None:
    ended = end("sys.exit('no job')")
    assert (ended.returncode, ended.stderr) == (1, "no job\n")


def test_output_is_flushed_handlers_run_and_threads_are_awaited() -> None:
    ended = end("""
    atexit.register(lambda: print("handler"))
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    sys.stdout.write("program, ")
""")
    assert (ended.returncode, ended.stdout) == (0, "program, thread\nhandler\n")


def test_an_error_is_raised_with_its_traceback() -> None:
    ended = end("1 / 0")
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "teardown" in ended.stdout, "the interpreter ends as usual"


def test_a_pipe_without_a_reader_is_no_error() -> None:
    code = f"{START}\ndef program():\n    sys.stdin.read()\n    print('x' * 100)\nend_after(program)\n"
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code], **pipes, text=True, env=buffered()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def shell(program: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """End a program with its streams redirected by a shell."""
    code = f"{START}\ndef program():\n    {program}\nend_after(program)\n"
    words = ["sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, code]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=buffered())


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(closed: str, tmp_path: Path) -> None:
    """And no file that the program opens takes the place of one."""
    file = tmp_path / "file"
    program = f"print('out'); print('err', file=sys.stderr); open('{file}', 'w').write(str(open('{file}').fileno()))"
    ended = shell(f"open('{file}', 'w').close(); {program}", closed)
    assert ended.returncode == 0
    assert ended.stdout == ("" if closed.startswith((">", "<")) else "out\n")
    assert ended.stderr == ("err\n" if closed == ">&-" else "")
    assert int(file.read_text()) > 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_output_that_finds_no_room_is_an_error() -> None:
    ended = shell("print('a result')", ">/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "Error: standard output cannot be written: No space left on device\n"
