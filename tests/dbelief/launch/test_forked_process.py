"""Processes that a fork server starts: the launcher's children, in all that an exec would make of them."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest

from dbelief.errors import RuntimeFailure
from dbelief.launch import forked_process
from dbelief.launch.forked_process import ForkedProcess, ForkServer
from tests.dbelief.launch.processes import parent_of, runs, soon

pytestmark = pytest.mark.processes

WAITS = ["worker", "--coordinator", "127.0.0.1:1", "--name", "waits", "--patience", "60"]
"""A program that runs until a signal ends it: it has no coordinator."""

Start = Callable[..., ForkedProcess]


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with ForkServer(modules=()) as started:
        yield started


@pytest.fixture
def start(server: ForkServer, tmp_path: Path) -> Iterator[Start]:
    """Give start("--version"): a process of the server, with its output in `log`."""
    made: list[ForkedProcess] = []

    def start(*arguments: str) -> ForkedProcess:
        made.append(server.start(list(arguments), tmp_path / "log"))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait(60)


def children() -> dict[int, str]:
    """Command lines of this process's children, by pid."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if parent_of(int(folder.name)) == os.getpid():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
    return found


def test_it_is_a_child_of_its_launcher_in_a_session_of_its_own(start: Start) -> None:
    process = start(*WAITS)
    assert parent_of(process.pid) == os.getpid()
    soon(lambda: os.getsid(process.pid) == process.pid, "it has no session of its own")
    soon(lambda: children()[process.pid] == " ".join(["dbelief", *WAITS]), "ps shows another command line")
    assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
    assert process.poll() is None


@pytest.mark.parametrize("descriptors", [True, False], ids=["pidfd", "no pidfd"])
def test_a_wait_ends_with_its_process_or_in_time(
    start: Start, monkeypatch: pytest.MonkeyPatch, descriptors: bool
) -> None:
    if not descriptors:
        monkeypatch.delattr(os, "pidfd_open")
    process = start(*WAITS)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.02)
    assert process.poll() is None
    killed = threading.Timer(0.02, os.kill, (process.pid, signal.SIGKILL))
    killed.start()
    assert process.wait(60) == -signal.SIGKILL
    assert process.wait(0.0) == -signal.SIGKILL, "the code stays known"
    killed.join()


def test_the_environment_is_the_launchers_at_its_start(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("train", "missing.yaml").wait(60)
    assert "Traceback" not in (tmp_path / "log").read_text()
    monkeypatch.setenv("DBELIEF_DEBUG", "1")
    start("train", "missing.yaml").wait(60)
    assert "Traceback" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    log.touch()
    process = start(*WAITS)
    soon(lambda: "joining the job" in log.read_text(), "it does not wait for a coordinator")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    process.send_signal(number)
    process.wait(60)
    assert process.poll() in (-number, 128 + number)
    process.send_signal(number)  # of a process that has ended: nothing


def test_processes_outlive_their_server_and_another_server_is_started(
    server: ForkServer, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    before = start(*WAITS)
    killed = server._server.pid
    os.kill(killed, signal.SIGKILL)
    soon(lambda: not runs(killed), "the server runs")
    assert start("--version").wait(60) == 0
    assert "the fork server ended; another one is started" in caplog.text
    assert before.poll() is None
    before.kill()
    assert before.wait(60) == -signal.SIGKILL


def test_a_server_that_cannot_import_names_the_error(tmp_path: Path) -> None:
    with (
        ForkServer(modules=("no_such_module",)) as server,
        pytest.raises(RuntimeFailure, match="fork server ended: ModuleNotFoundError: No module named 'no_such_module'"),
    ):
        server.start(["--version"], tmp_path / "log")


def test_a_server_that_does_not_answer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_process, "ANSWER_S", 0.05)
    with ForkServer(modules=()) as server:
        os.kill(server._server.pid, signal.SIGSTOP)
        with pytest.raises(RuntimeFailure, match=r"the fork server did not answer within 0.05 s"):
            server.start(["--version"], tmp_path / "log")
        monkeypatch.setattr(forked_process, "ANSWER_S", 60.0)
        assert server.start(["--version"], tmp_path / "log").wait(60) == 0


def test_a_launcher_that_ignores_sigchld_sees_the_end(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys\n"
        "from dbelief.launch.forked_process import ForkServer\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "with ForkServer(modules=()) as server:\n"
        "    print(server.start(['--version'], pathlib.Path(sys.argv[1])).wait(60))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, timeout=90
    )
    assert (ended.stdout, ended.stderr) == ("0\n", "")
    assert version("dbelief") in (tmp_path / "log").read_text()


def test_a_server_within_another_leaves_it_the_parenthood(server: ForkServer, start: Start) -> None:
    """A process stays the subreaper of its descendants while it has to be one."""
    with ForkServer(modules=()):
        pass
    assert parent_of(start(*WAITS).pid) == os.getpid()


def test_nothing_is_left_of_it(tmp_path: Path) -> None:
    before = set(children())
    with ForkServer(modules=()) as server:
        server.start(["--version"], tmp_path / "log").wait(60)
    assert set(children()) <= before


def test_modules_of_the_roles_start_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # OpenBLAS ends its own at a fork, and starts them again
    with ForkServer() as server:
        assert server.start(["--version"], tmp_path / "log").wait(60) == 0
        assert len(list(Path(f"/proc/{server._server.pid}/task").iterdir())) == 1


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_fork_that_fails_is_answered_with_its_reason(fails_at: int) -> None:
    """In a process of its own, whose fork fails at its first call or, in the intermediate process, at its second."""
    ours, theirs = socket.socketpair()
    program = (
        "import errno, os, socket, sys\n"
        "from dbelief.launch import fork_server\n"
        "fork, calls = os.fork, [0]\n"
        "def failing():\n"
        "    calls[0] += 1\n"
        f"    if calls[0] == {fails_at}:\n"
        "        raise OSError(errno.EAGAIN, 'no processes')\n"
        "    return fork()\n"
        "os.fork = failing\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "try:\n"
        "    fork_server.serve(socket.socket(fileno=int(sys.argv[1])), os.getppid())\n"
        "finally:\n"
        "    print(before - len(os.listdir('/proc/self/fd')))\n"
    )
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        ours.sendall(json.dumps({"arguments": []}).encode() + b"\n")
        ours.settimeout(60)
        answer = json.loads(ours.recv(1000))
    assert answer == {"error": os.strerror(errno.EAGAIN)}
    assert process.communicate(timeout=60)[0] == "1\n", "pipes are left, beside the socket that it has closed"


def test_answers_of_a_failed_fork_become_errors(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForkServer, "_exchange", lambda self, request: {"error": "Cannot allocate memory"})
    with pytest.raises(RuntimeFailure, match="dbelief worker: no process could be forked: Cannot allocate memory"):
        server.start(WAITS, Path("log"))


def test_it_ends_with_a_launcher_that_was_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from dbelief.launch.forked_process import ForkServer\n"
        "with ForkServer(modules=()) as server:\n"
        f"    print(server.start({WAITS!r}, pathlib.Path(sys.argv[1])).pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        orphan = int(launcher.stdout.readline())
        assert runs(orphan)
        launcher.kill()
    soon(lambda: not runs(orphan), "the process outlived its launcher")


def test_a_long_command_line_is_shown_whole(start: Start) -> None:
    process = start(*WAITS, "--listen", "127.0.0.1:0", "--folder", 3000 * "x")
    soon(lambda: children()[process.pid].endswith(3000 * "x"), "it is cut")
    assert children()[process.pid].startswith("dbelief worker")
