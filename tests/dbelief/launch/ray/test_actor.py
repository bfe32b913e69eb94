"""The actor of a member, as Ray calls it: starts, output, signals, and the end of a program with its actor."""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dbelief.launch.guarded_program import ended, packed
from dbelief.launch.ray import actor
from dbelief.launch.ray.actor import MemberActor, MemberStart
from tests.dbelief.launch.processes import runs, soon

PROGRAM = """
import os, sys, time
from pathlib import Path
own = Path(os.environ["DBELIEF_CREDENTIALS"])
assert os.environ["GIVEN"] == "a 'b' $c" and os.environ["HAD"] == "there"
assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
print(os.getpid(), *sys.argv[1:], (own / "token").read_text(), own, flush=True)
time.sleep({seconds})
sys.exit(7)
"""


@pytest.fixture
def credentials(tmp_path: Path) -> bytes:
    (folder := tmp_path / "worker").mkdir()
    (folder / "token").write_text("secret")
    return packed(folder)


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *arguments: str) -> MemberActor:
    """An actor that has started the program above in a folder."""
    (file := folder / "program.py").write_text(PROGRAM.format(seconds=seconds))
    monkeypatch.setenv("HAD", "there")
    monkeypatch.setattr(actor, "PROGRAM", (sys.executable, str(file)))
    own = MemberActor("10.0.0.7")
    words = list(arguments or ("worker", "--number", "1"))
    order = MemberStart(words, str(folder), version("dbelief"), str(file), False, {"GIVEN": "a 'b' $c", "HAD": "here"})
    assert own.start(order) == ("10.0.0.7", "")
    return own


def everything(own: MemberActor) -> tuple[str, int]:
    """The program's output to its end, and its exit code."""
    whole = b""
    while True:
        output, code = own.follow()
        if code is not None:
            return whole.decode(), code
        whole += output


def first_line(own: MemberActor) -> str:
    """The program's, which has begun then."""
    line = b""
    while not line.endswith(b"\n"):
        line += own.follow()[0]
    return line.decode()


def test_its_output_and_its_end_are_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: bytes
) -> None:
    own = started(tmp_path, monkeypatch, 0.0)
    own.write(credentials)
    said, code = everything(own)
    pid, *words, folder = said.split()
    assert words == ["worker", "--listen", "10.0.0.7:0", "--number", "1", "secret"]
    assert ended(code, "node 10.0.0.7") == (7, "on node 10.0.0.7 ended with exit code 7")
    assert not Path(folder).exists()
    assert not runs(int(pid))
    own.write(b"TERM\n")  # it has ended: no effect


def test_a_script_does_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: bytes) -> None:
    own = started(tmp_path, monkeypatch, 0.0, "worker", "--", "train.py", "--rate", "1")
    own.write(credentials)
    assert everything(own)[0].split()[1:6] == ["worker", "--", "train.py", "--rate", "1"]


def test_signals_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: bytes) -> None:
    own = started(tmp_path, monkeypatch, 600.0)
    own.write(credentials)
    first_line(own)
    own.write(b"TERM\n")
    code, words = ended(everything(own)[1], "node 10.0.0.7")
    assert (code, words) == (-signal.SIGTERM, "on node 10.0.0.7 was killed by SIGTERM")


def test_it_ends_with_its_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, credentials: bytes) -> None:
    own = started(tmp_path, monkeypatch, 600.0)
    own.write(credentials)
    pid, *_, folder = first_line(own).split()
    assert own._program is not None
    assert own._program.stdin is not None
    own._program.stdin.close()  # as the kernel does when the actor's process ends
    soon(lambda: not runs(int(pid)) and not os.path.exists(folder), "the program goes on")
    everything(own)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, "dbelief is of version .* there, and here of 0.0.1"),
        ({"file": "/nowhere/.shared-1"}, "it does not share /nowhere, where shards write snapshot sets"),
    ],
)
def test_a_node_that_does_not_fit_is_refused(change: dict[str, str], words: str, tmp_path: Path) -> None:
    order = MemberStart(["ps"], str(tmp_path), version("dbelief"), "", False, {})._replace(**change)  # type: ignore[arg-type]
    node, hindered = MemberActor("10.0.0.7").start(order)
    assert node == "10.0.0.7"
    assert re.search(words, hindered)
