"""Urgent commands come before queued ones, also while shards write files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.core.effects import (
    Action,
    DetachFollower,
    DropLedger,
    Export,
    Fence,
    LogEvent,
    MigrateSegments,
    SetMembership,
    TakeSnapshot,
)
from coordinator.core.ledgers import Applied
from coordinator.core.states import DatasetSizes, ShutdownPhase
from coordinator.job.machine import JobMachine
from coordinator.job.shutdown import Shutdown
from coordinator.runtime import executor as module_of_actor
from coordinator.runtime.executor import EffectExecutor
from coordinator.runtime.shard_client import ShardClient
from dbelief.checkpoint.set_storage import LocalSets, SetStorage
from dbelief.checkpoint.shard_file import verify_shards
from dbelief.core.layout import Layout
from dbelief.core.placement import Placement
from dbelief.core.push import NO_PUSH
from dbelief.errors import Deposed, Rejected, Unavailable, WriteFailed
from dbelief.process.clock import SystemClock
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rundir.model_metadata import ModelMetadata
from ps_server.rpc.servicer import ShardService
from tests.ps_server.servers import wait_until

from .test_shard_client import SIZE, cluster

pytestmark = pytest.mark.processes


class Machine:
    """As much of a job's machine as these actions ask for."""

    def __init__(self, placement: Placement | None) -> None:
        self.placement, self.commit_due, self.over = placement, False, False
        self._retakes = 3
        self.replication = SimpleNamespace(is_current=lambda action: True)
        self.recovery = SimpleNamespace(unavailable=set[int]())
        self.resharding = SimpleNamespace(running=False)
        self.job = SimpleNamespace(
            name="programs",
            snapshots=SimpleNamespace(keep=2),
            deadlines=SimpleNamespace(progress_s=10.0),
            to_yaml=lambda: "name: programs",
        )
        self.initialization = SimpleNamespace(samples=None)
        self.layout = Layout.whole({"w": (SIZE,)})
        self.shutdown = Shutdown(DatasetSizes(SIZE, 0, 0), cast("Any", None), cast("Any", None))
        self.done: list[str] = []
        self.training = SimpleNamespace(reached=self._reached)

    def _reached(self) -> dict[int, int]:
        self.done.append("reached")
        return {}

    def abort_obsolete_set(self) -> bool:
        return False

    def set_state(self) -> dict[str, Any]:
        return {}

    def retake_set(self) -> str:
        self._retakes += 1
        return f"000000000100-{self._retakes:04d}"

    def snapshot_taken(self, set_id: str, now_s: float) -> None:
        self.done.append(set_id)

    def set_failed(self, now_s: float) -> bool:
        self.done.append("failed")
        return True

    def postpone(self, action: Action) -> None:
        self.done.append(f"postponed {action}")

    def fenced(self, number: int, incarnation: int, applied: Applied, now_s: float) -> None:
        self.done.append(f"fenced {number} {incarnation} {applied}")

    def ledger_dropped(self, incarnation: int) -> None:
        self.done.append(f"dropped {incarnation}")

    def exported(self, *_: object) -> None:
        self.done.append("exported")

    def fail(self, reason: str) -> None:
        self.done.append(reason)


@contextmanager
def actor(
    shards: ShardClient,
    machine: Machine,
    folder: Path,
    leads: Callable[[], None] = lambda: None,
    sets: SetStorage | None = None,
) -> Iterator[EffectExecutor]:
    @contextmanager
    def step() -> Iterator[tuple[JobMachine, float]]:
        yield cast("JobMachine", machine), 0.0

    running = EffectExecutor(
        step,
        shards,
        folder,
        sets or LocalSets(folder / "snapshots"),
        lambda note: None,
        lambda: None,
        lambda: None,
        SystemClock(),
        lambda: 12.5,
        leads,
    )
    running.start()
    try:
        yield running
    finally:
        running.end()


def held(service: ShardService, busy: threading.Event, free: threading.Event) -> None:
    """Its next snapshot waits until it may go on."""
    write = service.controller.snapshot

    def waits(request: wire.SnapshotRequest) -> wire.SnapshotReply:
        busy.set()
        assert free.wait(60)
        return write(request)

    service.controller.snapshot = waits  # type: ignore[method-assign]


def test_detach_is_not_blocked_by_another_shards_snapshot(tmp_path: Path) -> None:
    """A disk that takes minutes does not keep those who push to some other shard waiting."""
    services: list[ShardService] = []
    busy, free = threading.Event(), threading.Event()
    with cluster(tmp_path, 2, prepare=services.append) as here:
        machine = Machine(here.placement)
        held(services[1], busy, free)
        with actor(here.shards, machine, tmp_path) as running:
            running.submit(TakeSnapshot("000001"))
            assert busy.wait(60)
            running.submit(Fence(3, 9))
            running.submit(DetachFollower(0, 5))
            wait_until(lambda: services[0].controller.link.epoch == 5)
            assert machine.done == []
            free.set()
            wait_until(lambda: len(machine.done) == 2)
    assert machine.done == ["000001", f"fenced 3 9 {Applied()}"]


class ScriptedShards:
    """Shards whose answers to snapshots come from the test; each may be an error."""

    def __init__(self, snapshots: Path, *answers: Exception | None) -> None:
        self.snapshots = snapshots
        self.answers = iter(answers)
        self.folders: list[Path] = []
        self.placement: Any = None
        self.meanwhile = lambda: None

    def snapshot(self, set_id: str) -> dict[str, dict[str, int]]:
        folder = self.snapshots / set_id
        assert list(folder.iterdir()) == []
        self.folders.append(folder)
        (folder / "shard-0.json").write_text("of a shard that may have been stopped while it wrote")
        error = next(self.answers)
        if error is not None:
            raise error
        return {"parts": {"shard-0.json": 2}}


class StoreThatIsAway:
    """Sets in a store of objects that answers a commit only when it is let go on, with an error."""

    disk = None

    def __init__(self) -> None:
        self.asked, self.free, self.aborted = threading.Event(), threading.Event(), threading.Event()

    def claim(self, set_id: str) -> bool:
        return True

    def commit(self, set_id: str, job: str, state: dict[str, Any]) -> None:
        self.asked.set()
        assert self.free.wait(60)
        raise WriteFailed("s3://b/runs: no answer")

    def abort(self, set_id: str) -> None:
        self.aborted.set()


def test_workers_are_fenced_while_a_store_of_sets_is_waited_for(tmp_path: Path) -> None:
    """A store that is away fails a set after many seconds; what follows another kind of action waits its turn."""
    sets = StoreThatIsAway()
    machine = Machine(None)

    def noted(what: str, result: Any = None) -> Callable[[Any], Any]:
        def note(_: Any) -> Any:
            machine.done.append(what)
            return result

        return note

    machine.set_failed = noted("no set", True)  # type: ignore[method-assign, assignment]
    shards = SimpleNamespace(
        snapshot=lambda set_id: {},
        fence=lambda incarnations: {},
        set_membership=noted("membership", 0),
        placement=None,
    )
    machine.training.policy = SimpleNamespace(shards_acknowledged=lambda epoch, clock: None)
    with actor(cast("ShardClient", shards), machine, tmp_path, sets=cast("SetStorage", sets)) as running:
        running.submit(TakeSnapshot("000001"))
        assert sets.asked.wait(60)
        running.submit(Fence(3, 9))
        wait_until(lambda: len(machine.done) == 1)
        assert machine.done == [f"fenced 3 9 {Applied()}"]
        assert not sets.aborted.is_set()
        running.submit(SetMembership(1, ()))
        running.submit(Fence(4, 10))
        sets.free.set()
        wait_until(lambda: len(machine.done) == 4)
    assert machine.done[1:] == ["no set", "membership", f"fenced 4 10 {Applied()}"]
    assert sets.aborted.is_set()


def test_every_try_to_take_a_set_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """A shard that counts as failed may still be writing, or wake later; of an earlier coordinator too."""
    snapshots = tmp_path / "snapshots"
    (snapshots / "000000000100-0004").mkdir(parents=True)  # begun by a coordinator that died
    shards = ScriptedShards(
        tmp_path / "snapshots", Unavailable("shard 0 is dead"), Unavailable("shard 0 is dead"), None
    )
    machine = Machine(None)
    with actor(cast("ShardClient", shards), machine, tmp_path) as running:
        running.submit(TakeSnapshot("000000000100-0003"))
        wait_until(lambda: machine.done != [])
    assert machine.done == ["000000000100-0006"]
    assert [folder.name[-4:] for folder in shards.folders] == ["0003", "0005", "0006"]
    state = LocalSets(snapshots).read("000000000100-0006")
    assert state["parts"] == {"shard-0.json": 2}
    assert state["wall_s"] == 12.5
    assert not (snapshots / "000000000100-0003" / "set.json").exists()


def test_a_set_is_not_taken_from_a_shard_that_only_counts_as_failed(tmp_path: Path) -> None:
    """It still answers, and it was not notified that a migration has failed: its file would lack these segments."""
    first, second = TakeSnapshot("000000000100-0003"), TakeSnapshot("000000000100-0004")
    with cluster(tmp_path, 2) as here:
        machine = Machine(here.placement)
        here.shards.migrate(MigrateSegments(0, 1, (0, 1)))
        machine.resharding.running, machine.recovery.unavailable = True, here.dead
        here.dead.add(0)
        here.shards.set_ownership((0, 1))
        with actor(here.shards, machine, tmp_path) as running:
            running.submit(first)
            wait_until(lambda: machine.done != [])
            here.dead.clear()
            here.shards.set_ownership((0, 1))
            running.submit(second)
            wait_until(lambda: len(machine.done) == 2)
        segments = len(here.placement.spans)
    assert machine.done == [f"postponed {first}", second.set_id]
    verify_shards(tmp_path / "snapshots" / second.set_id, second.set_id, "programs", "sgd", segments)


def test_every_action_has_a_handler(tmp_path: Path) -> None:
    with actor(cast("ShardClient", ScriptedShards(tmp_path)), Machine(None), tmp_path) as executor:
        assert {*executor._handlers, *executor._together} == set(Action.__subclasses__())


def test_an_export_is_not_retried_once_its_vector_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that was not in sync was promoted between two tries: it has the parameters, and no best evaluation.

    Ledgers are read after the numbers that are compared with them: a client may push meanwhile.
    """
    with cluster(tmp_path, 1) as here:
        machine = Machine(here.placement)
        machine.shutdown.phase = ShutdownPhase.EXPORT
        read = here.shards.ledgers

        def ledgers() -> dict[int, Applied]:
            machine.done.append("ledgers")
            return read()

        monkeypatch.setattr(here.shards, "ledgers", ledgers)
        with actor(here.shards, machine, tmp_path) as running:
            running.submit(Export("best.0"))
            running.submit(Export(machine.shutdown.vector))
            wait_until(lambda: "exported" in machine.done)
    assert machine.done == ["reached", "ledgers", "exported"]
    about = ModelMetadata.read(tmp_path / "model.safetensors")
    assert (about.job, about.samples) == ("name: programs", None)


class RefusingShards(ScriptedShards):
    """Shards that refuse every fence."""

    def fence(self, incarnations: Sequence[int]) -> dict[int, Applied]:
        raise Rejected("shard 1: leader epoch 2 is over, 3 leads")


def test_a_refusal_fails_the_job_of_no_coordinator_that_was_replaced(tmp_path: Path) -> None:
    """It would send its members away with a failure that is its own, and the next coordinator would be alone."""
    asked: list[str] = []

    def deposed() -> None:
        asked.append("leads")
        raise Deposed("another coordinator leads job programs now")

    def away() -> None:
        asked.append("away")
        raise Unavailable("registry: no answer")

    for leads, done in (deposed, []), (away, ["Fence: shard 1: leader epoch 2 is over, 3 leads"]):
        machine = Machine(None)
        with actor(cast("ShardClient", RefusingShards(tmp_path)), machine, tmp_path, leads) as running:
            running.submit(Fence(3, 9))
        assert machine.done == done
    assert asked == ["leads", "away"]


class FencingShards(ScriptedShards):
    """Shards that record fences and dropped rows; the first fence takes until it is released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls: list[tuple[str, list[int]]] = []
        self.busy, self.free = threading.Event(), threading.Event()

    def fence(self, incarnations: Sequence[int]) -> dict[int, Applied]:
        self.calls.append(("fence", list(incarnations)))
        if len(self.calls) == 1:
            self.busy.set()
            assert self.free.wait(60)
        return {incarnation: Applied(NO_PUSH, incarnation) for incarnation in incarnations if incarnation != 13}

    def drop_ledgers(self, incarnations: Sequence[int]) -> None:
        self.calls.append(("drop", list(incarnations)))


def calls_of(tmp_path: Path, actions: Sequence[Action]) -> tuple[list[tuple[str, list[int]]], list[str]]:
    """Calls of the shards for actions that are queued while the first one is run; what the machine recorded."""
    shards, machine = FencingShards(tmp_path), Machine(None)
    with actor(cast("ShardClient", shards), machine, tmp_path) as running:
        running.submit(actions[0])
        assert shards.busy.wait(60)
        for action in actions[1:]:
            running.submit(action)
        shards.free.set()
    return shards.calls, machine.done


def test_fences_that_are_queued_together_are_one_call(tmp_path: Path) -> None:
    fences = [Fence(number, 10 + number) for number in range(6)]
    drops = [DropLedger(7), DropLedger(8)]
    left = [LogEvent("member", {"id": number}) for number in range(3)]
    mixed = [left[0], fences[1], drops[0], left[1], *fences[2:5], drops[1], left[2]]
    calls, done = calls_of(tmp_path, [fences[0], *mixed, Export("w"), fences[5]])
    assert calls == [("fence", [10]), ("fence", [11, 12, 13, 14]), ("drop", [7, 8]), ("fence", [15])]
    # One of them had pushed nothing: no shard has a row of it.
    applied = [Applied() if number == 3 else Applied(NO_PUSH, 10 + number) for number in range(6)]
    fenced = [f"fenced {n} {10 + n} {applied[n]}" for n in range(6)]
    assert [one for one in done if "d " in one] == [*fenced[:5], "dropped 7", "dropped 8", fenced[5]]


def test_a_call_has_a_bounded_number_of_fences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_actor, "MOST_TOGETHER", 2)
    calls, done = calls_of(tmp_path, [Fence(number, number) for number in range(6)])
    assert calls == [("fence", [0]), ("fence", [1, 2]), ("fence", [3, 4]), ("fence", [5])]
    assert len(done) == 6


def test_fences_that_do_not_reach_a_failed_shard_are_postponed_one_by_one(tmp_path: Path) -> None:
    class Failed(FencingShards):
        def fence(self, incarnations: Sequence[int]) -> dict[int, Applied]:
            if len(super().fence(incarnations)) > 1:
                machine.recovery.unavailable.add(1)
                raise Unavailable("shard 1: no answer")
            return {}

    shards, machine = Failed(tmp_path), Machine(None)
    with actor(cast("ShardClient", shards), machine, tmp_path) as running:
        running.submit(Fence(0, 0))
        assert shards.busy.wait(60)
        running.submit(Fence(1, 1))
        running.submit(Fence(2, 2))
        shards.free.set()
    assert machine.done[1:] == [f"postponed {Fence(1, 1)}", f"postponed {Fence(2, 2)}"]


def test_a_coordinator_that_was_replaced_while_the_shards_wrote_completes_no_set(tmp_path: Path) -> None:
    """Its state lacks what the next one has granted since, and the shards have written that too."""

    def deposed() -> None:
        raise Deposed("another coordinator leads job programs now")

    snapshots = tmp_path / "snapshots"
    shards, machine = ScriptedShards(snapshots, None), Machine(None)
    with actor(cast("ShardClient", shards), machine, tmp_path, deposed) as running:
        running.submit(TakeSnapshot("000000000100-0003"))
        wait_until(lambda: machine.done != [])
    assert machine.done == ["failed"]
    assert not (snapshots / "000000000100-0003" / "set.json").exists()
