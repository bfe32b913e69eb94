"""Faults of files and processes: a torn file is never read as a whole one, a full disk costs one set."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest

from dbelief.core.push import Pusher
from dbelief.rpc.pb import parameters_pb2 as wire
from tests.faults.invariants import check_vector
from tests.faults.plan import Accident, Harm, draw_accidents
from tests.faults.process_faults import carry_out, flip, full_disk, tear
from tests.faults.shards import JOB, Shards, Trainer, integers, train

WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(sys.argv[1], "wb") as file:
            file.write(b"x" * int(line))
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.mark.processes
def test_a_process_is_paused_filled_and_killed_by_its_pid(tmp_path: Path) -> None:
    path = tmp_path / "file"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def write(count: int) -> str:
        print(count, file=process.stdin, flush=True)
        return process.stdout.readline().strip()  # type: ignore[union-attr]

    def happen(harm: Harm, amount: float = 0.0) -> None:
        carry_out(Accident(0, "writer", harm, amount), {"writer": process.pid}, lambda name: [path])

    assert write(1_000) == "written"
    happen(Harm.DISK_FULL, 100)
    assert write(1_000) == "File too large"
    happen(Harm.DISK_FULL, 2_000)
    assert write(1_000) == "written"
    happen(Harm.TORN_FILE, 0.25)
    assert path.read_bytes() == b"x" * 250
    happen(Harm.FLIPPED_BIT, 0.5)
    assert path.read_bytes() == b"x" * 125 + b"y" + b"x" * 124

    state = Path(f"/proc/{process.pid}/stat")
    paused = threading.Thread(target=happen, args=(Harm.PAUSE, 0.3))
    paused.start()
    seen = set()
    while paused.is_alive():
        seen.add(state.read_text().rpartition(")")[2].split()[0])
    assert "T" in seen
    assert write(10) == "written", "and then it goes on"
    happen(Harm.KILL)
    assert process.wait(60) == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()


def files_of(folder: Path, shard: int) -> list[Path]:
    """What one shard wrote of a set."""
    return sorted(folder.glob(f"shard-{shard}*"))


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(12))
def test_a_torn_snapshot_is_refused_or_gives_every_bit(serve: Callable[..., Shards], tmp_path: Path, seed: int) -> None:
    shards = serve((3,))
    train([Trainer(shards, Pusher(1, 9), integers(seed, 3, shards.placement.size), deadline_s=30)], 60)
    shards.snapshot(tmp_path, "set-1")
    before = shards.read()
    (accident,) = draw_accidents(seed, ["0"], 1, 1, [Harm.TORN_FILE, Harm.FLIPPED_BIT])
    path = files_of(tmp_path, 0)[seed % 2]
    (tear if accident.harm is Harm.TORN_FILE else flip)(path, accident.amount)
    refused = ""
    try:
        shards.restart(0, tmp_path, "set-1", same_port=False)
    except grpc.RpcError as error:
        refused = f"{error.code().name}: {error.details()}"
    if refused:
        assert refused.startswith("DATA_LOSS: "), (seed, accident)
        assert path.name.split(".")[0] in refused
    else:
        check_vector(shards.read(), before, f"seed {seed}, {accident} of {path.name}")


@pytest.mark.processes
def test_a_full_disk_costs_a_set_and_nothing_else(serve: Callable[..., Shards], tmp_path: Path) -> None:
    """The shard says so and serves on; the set before is whole; no half file stays."""
    shards = serve((3,))
    trainer = Trainer(shards, Pusher(1, 9), integers(1, 3, shards.placement.size), deadline_s=30)
    train([trainer], 60)
    old, new = tmp_path / "set-1", tmp_path / "set-2"
    shards.snapshot(old, "set-1")
    with full_disk(), pytest.raises(grpc.RpcError) as caught:
        shards.snapshot(new, "set-2")
    assert "No space left on device" in (caught.value.details() or "")
    assert list(new.glob("*")) == []
    check_vector(shards.read(), -trainer.gradients.sum(axis=0))
    shards.snapshot(new, "set-2")
    for folder in (old, new):
        shards.restart(0, folder, folder.name, same_port=True)
        check_vector(shards.read(), -trainer.gradients.sum(axis=0))
    assert shards.shards[0].stub.Stats(wire.StatsRequest(job=JOB)).segments == 3
    assert np.isfinite(shards.read()).all()
