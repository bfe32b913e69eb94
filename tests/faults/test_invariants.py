"""The closing checks see what they are there for."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dbelief.core.push import Pusher
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from tests.faults.invariants import (
    MARK,
    check_gone,
    check_ledgers,
    check_samples,
    check_vector,
    left_files,
    marked_processes,
)

WHO = Pusher(1, 11)
SLEEPER = [sys.executable, "-c", "import sys; print('started', flush=True); sys.stdin.read()"]
"""A process that reports its start and ends when its input does."""


def stats(lowest: int, highest: int, vector: str = "w") -> wire.StatsReply:
    pusher = segments.Pusher(replica=1, incarnation=11)
    return wire.StatsReply(ledgers=[wire.LedgerRow(pusher=pusher, vector=vector, lowest=lowest, highest=highest)])


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_a_vector_is_compared_to_the_bit() -> None:
    check_vector(numbers(1, -0.0, np.nan), numbers(1, -0.0, np.nan))
    with pytest.raises(AssertionError, match=r"1 of 2 numbers differ, first number 1: .*plan 7"):
        check_vector(numbers(1, -0.0), numbers(1, 0.0), "plan 7")


def test_a_ledger_has_every_push_on_every_segment() -> None:
    others = segments.Pusher(replica=0, incarnation=1)
    assigned = wire.LedgerRow(pusher=others, vector="w", lowest=1, highest=1)
    check_ledgers([stats(5, 5), wire.StatsReply(ledgers=[assigned, *stats(5, 5).ledgers])], {WHO: 5})
    for wrong in (stats(4, 5), stats(5, 6), stats(5, 5, "best"), wire.StatsReply()):
        with pytest.raises(AssertionError, match="shard 1: the ledger holds"):
            check_ledgers([stats(5, 5), wrong], {WHO: 5})


def test_samples_are_counted_once() -> None:
    check_samples({"samples": 100, "samples_per_replica": {"0": 60, "1": 40}}, 100)
    for each in ({"0": 60, "1": 30}, {"0": 60, "1": 50}):
        with pytest.raises(AssertionError, match="replicas report"):
            check_samples({"samples": 100, "samples_per_replica": each}, 100)
    with pytest.raises(AssertionError, match="101 samples trained"):
        check_samples({"samples": 101, "samples_per_replica": {"0": 101}}, 100)


@pytest.mark.processes
def test_processes_are_known_by_pid_and_by_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "this test")
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with pytest.raises(AssertionError, match=f"{child.pid}"):
            check_gone([child.pid])
        # The environment in /proc is empty while the kernel replaces the program, which Popen does not wait for.
        child.stdout.readline()
        assert list(marked_processes("this test")) == [child.pid]
        assert marked_processes("another test") == {}
        child.stdin.close()
    check_gone([child.pid])
    assert marked_processes("this test") == {}


def test_files_that_are_left_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary, work = tmp_path / "t", tmp_path / "w"
    for folder in (temporary, work / "run"):
        folder.mkdir(parents=True)
    (work / "run" / "model.safetensors").write_bytes(b"")
    assert left_files(temporary, work) == []
    (temporary / "dbelief-abc").mkdir()
    half = work / "run" / "set.writing"
    half.write_bytes(b"")
    monkeypatch.chdir(work)  # a socket's path is short
    server = socket.socket(socket.AF_UNIX)
    server.bind("run/socket")
    server.close()
    found = left_files(temporary, work)
    assert sorted(found) == sorted(map(str, [temporary / "dbelief-abc", half, work / "run" / "socket"]))
    half.unlink()
    (work / "run" / "socket").unlink()
