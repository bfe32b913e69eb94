"""Groups over sockets: the rules of any engine, sums of all kinds, and real processes with one killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.comm.collectives import ways
from tests.worker.comm.group import BODIES, OneRaises
from tests.worker.comm.sockets.joined import run_joined
from worker.comm import Communicator
from worker.comm.sockets import Listener

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[4]
either_way = pytest.mark.parametrize("by_tcp", [False, True], ids=["unix", "tcp"])


@either_way
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__name__))
def test_a_group(body: Callable[[Communicator], None], size: int, by_tcp: bool) -> None:
    run_joined(size, body, by_tcp)


@either_way
@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(body.__name__))
def test_a_group_of_threads_that_take_turns_often(
    body: Callable[[Communicator], None], by_tcp: bool, eager_threads: None
) -> None:
    run_joined(3, body, by_tcp)


@either_way
@pytest.mark.parametrize("size", range(1, 10))
def test_sums_of_all_kinds(size: int, by_tcp: bool) -> None:
    run_joined(size, ways.exact_sums, by_tcp)


@either_way
@pytest.mark.parametrize("body", [ways.same_bits, ways.large_sums], ids=lambda body: str(body.__name__))
def test_sums_of_any_size_and_with_the_same_bits(body: Callable[[Communicator], None], by_tcp: bool) -> None:
    run_joined(4, body, by_tcp)


@either_way
def test_a_rank_that_raises_ends_all_others_at_once(by_tcp: bool) -> None:
    body, began_s = OneRaises(), time.monotonic()
    with pytest.raises(ZeroDivisionError, match="a rate of 0"):
        run_joined(4, body, by_tcp, 60.0)
    assert time.monotonic() - began_s < 10.0
    for rank in (0, 1):
        told, _, waited = body.ends[rank].partition("; ")
        assert told.startswith("rank 2 at 127.")
        assert told.endswith(" died of ZeroDivisionError: a rate of 0")
        assert waited == f"rank {rank} waited for rank {1 - rank} to send 32 bytes (tag 9)"


def test_killed_process_ends_all_others_with_its_name(tmp_path: Path) -> None:
    """All ranks sum without end, and one is ended by SIGKILL."""
    spots = [Listener() for _ in range(4)]  # free ports, as far as can be known
    addresses = [spot.address for spot in spots]
    for spot in spots:
        spot.close()
    command = [sys.executable, "-m", "tests.worker.comm.sockets.program", ",".join(addresses)]
    began_s = time.monotonic()
    ranks = [subprocess.Popen([*command, str(rank)], cwd=ROOT, stdout=subprocess.PIPE, text=True) for rank in range(4)]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "summing\n"
        os.kill(ranks[1].pid, signal.SIGKILL)
        said = [process.communicate(timeout=60)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [3, -signal.SIGKILL, 3, 3]
    for rank in (0, 2, 3):
        assert f"rank 1 at {addresses[1]} died of ConnectionError" in said[rank]
    assert time.monotonic() - began_s < 30.0
