"""The same rules over MPI, by real processes; skipped where mpi4py or mpiexec is missing."""

from __future__ import annotations

import glob
import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dbelief.process.clock import ManualClock
from tests.worker.comm.mpiexec import MPIEXEC, needs_mpi
from worker.comm.polling import FIRST_S, LONGEST_S, poll

ROOT = Path(__file__).resolve().parents[3]


def run(folder: Path, case: str, ranks: int = 4) -> tuple[int, list[str], str]:
    """Exit code, how each rank ended ("" where it was ended before it could tell), and what was said on the way."""
    assert MPIEXEC is not None
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "tests.worker.comm.program", case, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    files = [folder / str(rank) for rank in range(ranks)]
    return done.returncode, [file.read_text() if file.exists() else "" for file in files], done.stderr


@needs_mpi
@pytest.mark.processes
@pytest.mark.parametrize(
    ("ranks", "cases"),
    [(1, "all_bodies"), (4, "all_bodies+collectives+arrays+partitioned")],  # one start of four processes for all
    ids=["one", "four"],
)
def test_a_group(ranks: int, cases: str, tmp_path: Path) -> None:
    code, ends, said = run(tmp_path, cases, ranks)
    assert ends == ["done"] * ranks, said
    assert code == 0


@needs_mpi
@pytest.mark.processes
def test_a_rank_that_raises_ends_all_others_with_its_name(tmp_path: Path) -> None:
    began_s = time.monotonic()
    code, ends, said = run(tmp_path, "raises")
    assert ends.pop(2) == "ZeroDivisionError: a rate of 0", said
    for rank, end in zip((0, 1, 3), ends, strict=True):
        assert end == (
            "RankFailure: rank 2 died of ZeroDivisionError: a rate of 0; "
            f"rank {rank} waited for rank {(rank + 1) % 2} to send 32 bytes (tag 9)"
        )
    assert code != 0
    assert time.monotonic() - began_s < 90.0


@needs_mpi
@pytest.mark.processes
def test_a_rank_that_never_answers_is_named_and_ended(tmp_path: Path) -> None:
    began_s = time.monotonic()
    code, ends, said = run(tmp_path, "sleeps", 3)
    assert ends.pop(1) == "", said
    assert all("waited for rank 1 to send 32 bytes (tag 9)" in end for end in ends)
    assert any(end.startswith("Unavailable: nothing came for 1 s") for end in ends)
    assert "not all ranks left in time" in said
    assert code != 0
    assert time.monotonic() - began_s < 90.0


@needs_mpi
@pytest.mark.processes
@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("misfits", "rank 1 wants rank 0 to send 32 bytes (tag 0), and it sent 24"),
        ("overflows", "rank 1 waited for rank 0 to send 32 bytes (tag 0): "),
    ],
)
def test_a_message_of_another_length_is_refused(case: str, reason: str, tmp_path: Path) -> None:
    code, ends, said = run(tmp_path, case, 2)
    told = ends.pop(1)
    assert told.startswith(f"ValueError: {reason}"), said
    assert all(end.startswith(f"RankFailure: rank 1 died of {told}") for end in ends)
    assert code != 0


@needs_mpi
@pytest.mark.processes
def test_mpiexec_writes_no_file_beside_the_temporary_folder() -> None:
    """It removes the file at a good end, so that only a rank can see it."""
    assert MPIEXEC is not None
    pattern = "/tmp/hydra_hwloc_xmlfile_*"
    before = set(glob.glob(pattern))
    program = f"import glob; from mpi4py import MPI; print(*glob.glob({pattern!r}))"
    command = [MPIEXEC, "-n", "1", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert set(done.stdout.split()) <= before


def test_asking_pauses_longer_and_longer_and_ends_in_time() -> None:
    clock = ManualClock(autojump=True)
    asked: list[float] = []

    def done() -> bool:
        asked.append(clock.now())
        return False

    assert not poll(clock, done, 1.0)
    pauses = [b - a for a, b in itertools.pairwise(asked)]
    assert pauses[0] == pytest.approx(FIRST_S)
    assert max(pauses) == pytest.approx(LONGEST_S)
    assert clock.now() == pytest.approx(1.0)
    assert poll(clock, lambda: True, 0.0)
