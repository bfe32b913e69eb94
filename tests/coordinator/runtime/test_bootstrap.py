from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.ledgers import Applied
from coordinator.core.states import DatasetSizes
from coordinator.job.persistence import serialize
from coordinator.runtime.bootstrap import Bootstrapped, create_machine, start
from dbelief.checkpoint.checksummed_json import read_checksummed, write_checksummed
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import write_shard
from dbelief.core.layout import make_segments
from dbelief.core.push import LedgerRow
from dbelief.errors import RuntimeFailure, SnapshotError, UserError
from dbelief.job import Job
from dbelief.optim import make_rule
from dbelief.rundir.place import place_of
from dbelief.rundir.summary import Summary, set_aside, write_summary
from ps_server import snapshot
from ps_server.store.shard import Shard

MakeJob = Callable[..., Job]


def began(job: Job, stored: dict[str, bytes], folder: Path, resume: bool, fresh: bool) -> Bootstrapped:
    """The start of a coordinator in this folder, which it leaves again."""
    place = place_of(job)
    try:
        return start(job, place, stored, folder, resume, fresh, now_s=0.0)
    finally:
        place.release()


def test_sizes_are_those_of_the_data(a_job: MakeJob, tmp_path: Path) -> None:
    machine = create_machine(a_job(limits={"epochs": 2}), LocalSets(tmp_path / "snapshots"), resume=False)
    assert machine.shape == DatasetSizes(1257, 180, 360)
    assert machine.total == 2514


def test_without_data_there_are_none(a_job: MakeJob, tmp_path: Path) -> None:
    job = a_job(data={"source": "none"}, limits={"samples": 100}, replicas=0)
    assert create_machine(job, LocalSets(tmp_path / "snapshots"), resume=False).shape == DatasetSizes(0, 0, 0)


def a_set(folder: Path, count: int, job: Job) -> Path:
    """A complete set of no segments."""
    state = {"leases": {"epoch_samples": 1257}, "incarnations": 9, "sets": count, "shard_epoch": 3, "layout": ""}
    state["progress"] = {"samples": 100}
    made = folder / "snapshots" / f"000000000100-{count:04d}"
    made.mkdir(parents=True)
    about = {"job": "test", "set": made.name, "rule": job.strategy.rule.name, "shard_epoch": 3}
    write_shard(made, 0, about, [], [])
    LocalSets(made.parent).commit(made.name, "test", {**state, "segments": 0})
    return made


def test_run_id_is_unique_and_kept_by_takeover(a_job: MakeJob, tmp_path: Path) -> None:
    job = a_job()
    a_set(tmp_path, 4, job)
    ids = [create_machine(job, LocalSets(tmp_path / "snapshots"), resume).run_id for resume in (False, True, True)]
    assert len({0, *ids}) == 4
    begun = began(job, {}, tmp_path, resume=False, fresh=False)
    run = {"folder": str(tmp_path), "began": 1_000.0, "job": job.to_yaml()}
    texts = {**serialize(begun.machine, 0.0), "run": json.dumps(run)}
    stored = {name: text.encode() for name, text in texts.items()}
    assert began(job, stored, tmp_path, resume=False, fresh=False).machine.run_id == begun.machine.run_id
    assert begun.machine.initialization.first_run_id == begun.machine.run_id
    for resume in (False, True):
        other = began(job, stored, tmp_path, resume=resume, fresh=not resume)
        assert other.machine.run_id != begun.machine.run_id


def test_corrupt_set_is_reported_and_skipped(
    a_job: MakeJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_set(tmp_path, 4, a_job())
    torn = a_set(tmp_path, 5, a_job())
    (torn / "shard-0.json").write_text("{")
    machine = create_machine(a_job(), LocalSets(tmp_path / "snapshots"), resume=True)
    said = capsys.readouterr().err
    assert "snapshot set 000000000100-0005 is damaged and was quarantined; restoring 000000000100-0004: " in said
    assert f"{torn / 'shard-0.json'}: cannot be read" in said
    assert said.count("\n") == 1
    assert machine.training.snapshots.begin(100).set_id == "000000000100-0006", "the torn one keeps its folder"
    create_machine(a_job(), LocalSets(tmp_path / "snapshots"), resume=True)
    assert capsys.readouterr().err == ""


def test_unfinished_run_of_an_earlier_version_is_refused_unless_it_is_resumed_or_left(
    a_job: MakeJob, tmp_path: Path
) -> None:
    job = a_job()
    a_set(tmp_path, 4, job)
    known = {"format": 4, "state": "ready", "reason": "", "finished": False, "shard_epoch": 7}
    stored = {"state": json.dumps(known).encode(), "run": json.dumps({"folder": str(tmp_path)}).encode()}
    with pytest.raises(RuntimeFailure, match=r"has format 4, and this version reads 6: .* use --resume .* or --fresh"):
        began(job, stored, tmp_path, resume=False, fresh=False)
    for resume in (False, True):
        started = began(job, stored, tmp_path, resume=resume, fresh=not resume)
        assert started.machine.shard_epoch == 8
        assert started.machine.resumes == resume


def test_run_continues_only_with_the_same_job(a_job: MakeJob, tmp_path: Path) -> None:
    job = a_job()
    machine = create_machine(job, LocalSets(tmp_path / "snapshots"), resume=False)
    run = {"folder": str(tmp_path), "began": 1_000.0, "job": job.to_yaml()}
    stored = {name: text.encode() for name, text in {**serialize(machine, 0.0), "run": json.dumps(run)}.items()}
    started = began(job, stored, tmp_path, resume=False, fresh=False)
    assert started.began_wall_s == 1_000.0
    assert started.machine.shard_epoch == machine.shard_epoch + 1
    with pytest.raises(
        UserError, match=r"is unfinished .* was started with another job file: use that one, or --fresh"
    ):
        began(a_job(seed=5), stored, tmp_path, resume=False, fresh=False)
    assert began(a_job(seed=5), stored, tmp_path, resume=False, fresh=True).began_wall_s is None


def test_there_must_be_something_to_resume(a_job: MakeJob, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no complete snapshot set"):
        create_machine(a_job(), LocalSets(tmp_path / "snapshots"), resume=True)


# -- sets of earlier versions ----------------------------------------------------------------------------------------


OLD_SET = "000000000040-0007"


@pytest.fixture
def old_set(tmp_path: Path) -> Path:
    """A set of 2 replicas that had made 2 pushes of 10 samples each, with ledgers that do not name their leases."""
    shutil.copytree(Path(__file__).parents[2] / "golden" / "set_without_parts", tmp_path / "snapshots")
    return tmp_path / "snapshots" / OLD_SET


def test_a_set_of_an_earlier_version_with_held_leases_is_refused(a_job: MakeJob, old_set: Path, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError) as refused:
        create_machine(a_job(), LocalSets(tmp_path / "snapshots"), resume=True)
    assert str(refused.value) == (
        f"{old_set}: an earlier version wrote it, whose ledgers do not name leases: resume the run with that version, "
        "or begin a new one from its parameters with `start_from`"
    )
    assert old_set.is_dir(), "it is not damaged"


def test_a_shard_reads_a_set_that_does_not_name_its_parts(old_set: Path) -> None:
    shard = Shard(list(make_segments([(0, 4096)], 1024)), make_rule("sgd", {}))
    snapshot.restore(shard, old_set, OLD_SET, "test", 4)
    assert {pusher.incarnation: row for (_, pusher), row in shard.ledgers().items() if pusher.incarnation > 2} == {
        3: (LedgerRow(3), LedgerRow(3)),
        4: (LedgerRow(2), LedgerRow(2)),
    }
    assert sum(float(segment.vectors["w"].sum()) for segment in shard.segments.values()) == 4 * 40


def test_a_set_that_does_not_name_its_parts_is_gone_on_from(a_job: MakeJob, old_set: Path, tmp_path: Path) -> None:
    """An earlier version wrote it while no lease was held."""
    content = read_checksummed(old_set / "set.json", 2)
    content["leases"] |= {"held": [], "leased": 40, "returned": [[0, 20, 30], [0, 50, 60]]}
    write_checksummed(old_set / "set.json", 2, content)
    machine = create_machine(a_job(), LocalSets(tmp_path / "snapshots"), resume=True)
    assert machine.recovery.set_id == OLD_SET
    assert (machine.shard_epoch, machine.members.incarnations, machine.training.snapshots.count) == (4, 4, 7)
    assert machine.run_id
    machine.training.resume(content, {3: Applied(LedgerRow(3), 3), 4: Applied(LedgerRow(2), 2)})
    assert (machine.progress.samples, machine.leases.done, machine.training.pushes_twice) == (40, 40, 0)
    again = [machine.leases.grant(0, 5) for _ in range(3)]
    assert [(lease.start, lease.stop) for lease in again if lease is not None] == [(20, 30), (50, 60), (60, 90)]


@pytest.mark.parametrize(
    ("summary", "limits", "trained"),
    [
        ({"evaluation_failed": {"test": "a gap"}}, {"epochs": 2}, "patience"),
        ({"state": "closing"}, {"epochs": 2}, "patience"),  # killed while it was evaluated
        ({}, {"epochs": 2}, ""),  # it lacks nothing
        ({"evaluation_failed": {"validation": "a gap"}, "trained": False}, {"epochs": 2}, ""),
        ({"evaluation_failed": {"test": "a gap"}}, {"epochs": 3}, ""),  # it is to train longer
        ({"evaluation_failed": {"test": "a gap"}, "samples": 101}, {"epochs": 2}, ""),  # the newest set was damaged
        (None, {"epochs": 2}, ""),
    ],
)
def test_a_run_that_lacks_only_evaluations_does_not_train_again(
    summary: dict[str, Any] | None, limits: dict[str, Any], trained: str, a_job: MakeJob, tmp_path: Path
) -> None:
    """It may have ended by a limit that does not hold from its set on, as patience or wall time."""
    job = a_job(limits=limits)
    a_set(tmp_path, 4, job)
    (tmp_path / "job.yaml").write_text(a_job(limits={"epochs": 2}).anchored().to_yaml())
    if summary is not None:
        write_summary(
            tmp_path / "summary.json", {**a_summary(), "state": "done", "trained": True, "samples": 100, **summary}
        )
    assert began(job, {}, tmp_path, resume=True, fresh=False).machine.trained == trained
    # Twice a resume that is interrupted: its own summary says nothing of why training had ended.
    for _ in range(2):
        set_aside(tmp_path, keep=bool(trained))
        assert not (tmp_path / "summary.json").exists()
        again = began(job, {}, tmp_path, resume=True, fresh=False).machine
        assert again.trained == trained, "killed before it has a summary"
        write_summary(tmp_path / "summary.json", {**a_summary(), "state": "failed", "reason": "stopped by Ctrl-C"})
        assert began(job, {}, tmp_path, resume=True, fresh=False).machine.trained == trained


def a_summary() -> dict[str, Any]:
    names = [name for name, field in Summary.model_fields.items() if field.is_required()]
    return dict.fromkeys(names, 0) | {"job": "test", "reason": "patience", "samples_per_replica": {}}
