"""Whole jobs of real processes with one death: a model that counts its pushes verifies the reported numbers.

Its gradient is 1 everywhere and its rate too, so that every number of the exported model says, with its sign turned,
how many pushes its segment holds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.faults.invariants import check_gone, check_samples
from tests.faults.plan import Accident, Harm
from tests.faults.process_faults import carry_out
from tests.processes.conftest import Operator, Role, wait_for

pytestmark = pytest.mark.processes

MODEL = """
import numpy as np


class Counting:
    def parameters(self, rng):
        return {"counts": np.zeros(4096, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        out["counts"][:] = 1
        return 0.0
"""
JOB = """
name: counting
model: {{python: "counting.py:Counting"}}
data: {{source: digits}}
strategy: {{name: downpour, batch: 16, rule: {{name: sgd, rate: 1}}, warm_start: null}}
evaluate: {{every: null, keep: last}}
limits: {{epochs: {epochs}}}
shards: 2
replicas: 2
snapshots: {{every_s: 0.5}}
deadlines: {{beat_s: 5}}
"""
UNWRITTEN = "could not be written; the set before it stays valid"
EPOCH = 1_257
"""Samples."""
AMOUNTS = {Harm.KILL: 0.0, Harm.PAUSE: 1.0, Harm.TORN_FILE: 0.5, Harm.DISK_FULL: 4_000.0}


@pytest.mark.parametrize(
    ("victim", "harms", "epochs"),
    [
        pytest.param("ps-1", [Harm.KILL], 4, id="a shard is killed"),
        pytest.param(
            "ps-1", [Harm.KILL, Harm.TORN_FILE], 8, id="the newest set is damaged too", marks=pytest.mark.long
        ),
        pytest.param(
            "ps-1", [Harm.DISK_FULL, Harm.KILL], 16, id="its disk is full before it is killed", marks=pytest.mark.long
        ),
        pytest.param("ps-0", [Harm.PAUSE], 8, id="a shard is stopped", marks=pytest.mark.long),
        pytest.param("worker-1", [Harm.KILL], 30, id="a worker is killed", marks=pytest.mark.long),
    ],
)
def test_push_counts_are_right_after_any_death(operator: Operator, victim: str, harms: list[Harm], epochs: int) -> None:
    job = operator.write_job(JOB.format(epochs=epochs))
    (job.parent / "counting.py").write_text(MODEL)
    operator.compute_wait_s = 0.01
    coordinator, address = operator.coordinator(job)
    words = {}
    for name in ("ps-0", "ps-1", "worker-0", "worker-1"):
        role, number = name.split("-")
        words[name] = [role, "--coordinator", address, "--number", number, "--name", name]
    members: dict[str, Role] = {name: operator.start(name, *line) for name, line in words.items()}
    operator.until_joined("counting", replicas=2)
    operator.until_samples("counting", epochs * EPOCH // 4)
    if Harm.TORN_FILE in harms:
        sets = operator.folder / "runs" / "counting" / "snapshots"
        wait_for(lambda: len(list(sets.glob("*/set.json"))) >= 2, "a set before the newest")
    strike(operator, members[victim], victim, harms, coordinator.log)
    if Harm.KILL in harms:
        members[victim] = operator.start(f"{victim}-again", *words[victim])
    assert coordinator.ends() == 0
    assert ("was quarantined" in coordinator.log.read_text()) == (Harm.TORN_FILE in harms)
    assert (UNWRITTEN in coordinator.log.read_text()) == (Harm.DISK_FULL in harms)
    assert [member.ends() for member in members.values()] == [0] * 4
    check_gone([role.process.pid for role in operator.roles])
    check_books(operator, victim, harms[0], epochs * EPOCH)


def strike(operator: Operator, struck: Role, victim: str, harms: list[Harm], log: Path) -> None:
    """Let this happen to one process; to its files only when its death is known, for no set is written then.

    What comes after its disk is full waits until the coordinator's log tells of a set that could not be written.
    """

    def written(name: str) -> list[Path]:
        operator.until_died("counting")
        return sorted(
            (operator.folder / "runs" / "counting" / "snapshots").glob(f"*/{name.replace('ps', 'shard')}.safetensors")
        )

    for harm in harms:
        carry_out(Accident(0, victim, harm, AMOUNTS[harm]), {victim: struck.process.pid}, written)
        if harm is Harm.KILL:
            struck.process.wait(60)
        elif harm is Harm.DISK_FULL:
            wait_for(lambda: UNWRITTEN in log.read_text(), "a set that cannot be written")


def check_books(operator: Operator, victim: str, harm: Harm, samples: int) -> None:
    """Hold the exported counts against what the summary says."""
    summary = operator.summary("counting")
    check_samples(summary, samples)
    counts = -load_file(operator.folder / "runs" / "counting" / "model.safetensors")["counts"].reshape(2, -1)
    pushes, lost, twice = summary["pushes"], summary["pushes_lost"], summary["pushes_trained_twice"]
    if harm is Harm.PAUSE:
        assert (lost, twice) == (0, 0)
        assert set(counts.ravel().tolist()) == {pushes}
    elif victim.startswith("worker"):
        assert lost == 0
        assert twice <= 1
        assert (pushes <= counts).all()
        assert (counts <= pushes + twice).all()
    else:
        number = int(victim.removeprefix("ps-"))
        assert summary["died"] == [f"shard {number}"]
        assert set(counts[1 - number].tolist()) == {pushes}, "the other shard has lost nothing"
        # A set may catch a push of each replica in its midst: some segments have lost one less of it.
        assert np.isin(counts[number], [pushes - lost, pushes - lost + 1, pushes - lost + 2]).all(), (counts, summary)
        assert pushes - lost in counts[number]
