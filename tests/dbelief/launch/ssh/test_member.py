"""A member on a host: its signals, its end, and what its exit code says."""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbelief.launch.child_process import Process
from dbelief.launch.places import Places
from dbelief.launch.ssh.hosts import ReachableHosts
from dbelief.launch.ssh.member import SshMember
from tests.dbelief.launch.processes import runs, soon

from .stand_in import StandIn

pytestmark = pytest.mark.processes

SHOWS = """
echo "$DBELIEF_CREDENTIALS" > "$0/where"
cat "$DBELIEF_CREDENTIALS/token" > "$0/token"
echo $$ > "$0/pid"; trap "exit 7" TERM; while :; do sleep 0.01; done
"""
"""A program that writes what its credentials are, and its process id, and ends with 7 at SIGTERM."""


class Member:
    """A member that runs a shell's command in place of `dbelief`."""

    def __init__(self, folder: Path, command: str, slots: dict[str, int]) -> None:
        self.folder, self.hosts, self.started = folder, ReachableHosts(slots), list[Process]()
        program = ["sh", "-c", command, str(folder)]
        listens = dict.fromkeys(slots, "127.0.0.1")
        credentials = folder / "credentials"
        credentials.mkdir()
        (credentials / "token").write_text("a secret")
        how = program, folder, credentials, listens, {"GIVEN": "a b"}
        self.way = SshMember("worker", "worker-0", self.hosts, Places(slots), *how)

    def start(self, *arguments: str) -> Process:
        self.started.append(self.way.start(["worker", *arguments], self.folder / "log"))
        return self.started[-1]

    @property
    def pid(self) -> int:
        file = self.folder / "pid"
        soon(lambda: file.exists() and file.read_text(), "the program has not begun")
        return int(file.read_text())

    @property
    def where(self) -> Path:
        """Its folder of credentials, on the host."""
        return Path((self.folder / "where").read_text().strip())


@pytest.fixture
def member(ssh: StandIn, tmp_path: Path) -> Iterator[Member]:
    made = Member(tmp_path, SHOWS, {"a": 1})
    yield made
    for process in made.started:
        process.kill()
        ended(process)


def ended(process: Process) -> int:
    code: int = process.wait(60)
    assert isinstance(process, subprocess.Popen)
    assert process.stdin is not None
    process.stdin.close()
    return code


def test_a_request_to_end_is_a_signal(member: Member) -> None:
    process = member.start()
    pid = member.pid
    member.way.ask_to_end(process)
    assert member.way.fate(ended(process)) == (7, "on host a ended with exit code 7")
    assert not runs(pid)
    member.way.ask_to_end(process)  # which has ended


def test_credentials_are_there_while_the_program_runs(member: Member) -> None:
    process = member.start()
    assert member.pid
    assert (member.folder / "token").read_text() == "a secret"
    assert member.where.stat().st_mode & 0o77 == 0
    assert not any("a secret" in word for word in member.way.command(["worker"]))
    member.way.ask_to_end(process)
    ended(process)
    assert not member.where.exists()


def test_a_program_ends_with_its_connection(member: Member) -> None:
    process = member.start()
    pid = member.pid
    process.kill()
    assert ended(process) == -signal.SIGKILL
    soon(lambda: not runs(pid), "the program goes on without its connection")
    soon(lambda: not member.where.exists(), "its credentials are left")


def test_a_killed_program_is_named_as_such(member: Member) -> None:
    process = member.start()
    subprocess.run(["kill", "-KILL", str(member.pid)], check=True)
    assert member.way.fate(ended(process)) == (-9, "on host a was killed by SIGKILL")


@pytest.mark.parametrize(("code", "said"), [(200, 200), (254, 254), (255, 1), (137, -9)])
def test_a_programs_exit_code_is_its_own(ssh: StandIn, tmp_path: Path, code: int, said: int) -> None:
    member = Member(tmp_path, f"exit {code}", {"a": 1})
    assert member.way.fate(ended(member.start()))[0] == said
    assert member.hosts.left() == ["a"]


def test_what_a_program_has_started_ends_with_it(ssh: StandIn, tmp_path: Path) -> None:
    member = Member(tmp_path, 'sleep 600 & echo $! > "$0/pid"; exit 0', {"a": 1})
    assert ended(member.start()) == 0
    soon(lambda: not runs(member.pid), "what it started goes on")


def test_a_script_does_not_listen(ssh: StandIn, tmp_path: Path) -> None:
    member = Member(tmp_path, "exit 0", {"a": 1})
    words = shlex.split(member.way.command(["worker", "--name", "x", "--", "own.py", "--rate", "1"])[-1])
    assert words[-7:] == ["worker", "--name", "x", "--", "own.py", "--rate", "1"]


def test_words_and_folder_arrive_as_they_are(ssh: StandIn, tmp_path: Path) -> None:
    member = Member(tmp_path, 'printf "%s\\n" "$PWD" "$@"', {"a": 1})
    assert ended(member.start("two words", "a'b\"c", "$HOME", "*")) == 0
    expected = [str(tmp_path), "worker", "--listen", "127.0.0.1:0", "two words", "a'b\"c", "$HOME", "*"]
    assert (tmp_path / "log").read_text().splitlines() == expected


def test_a_lost_host_is_left_for_another(ssh: StandIn, tmp_path: Path) -> None:
    member = Member(tmp_path, "exit 0", {"a": 1, "b": 1})
    ssh.lose("a")
    code = ended(member.start())
    assert member.way.fate(code) == (1, "was lost with the connection to host a")
    assert member.way.possible()
    assert ended(member.start()) == 0
    assert ssh.asked[-1].startswith("b ")
