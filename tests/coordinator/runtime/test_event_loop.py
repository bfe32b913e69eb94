"""The event loop, called in this thread: it never waits for dead members, and always ends."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.core import members
from coordinator.core.effects import Fence, LogEvent, MakeReady
from coordinator.core.ledgers import Applied
from coordinator.core.messages import BundleLease, BundleResult, ProgressReport, WorkRequest
from coordinator.core.progress import ReplicaStats
from coordinator.core.states import State
from coordinator.monitoring.summary import summary_of
from coordinator.rpc.status import build_status
from coordinator.runtime import event_loop as module
from coordinator.runtime import executor as module_of_actor
from coordinator.runtime.event_loop import EventLoop
from coordinator.runtime.leader_lease import LEASE_TTL_S, LeaderLease
from dbelief.checkpoint.set_storage import LocalSets, newest_count
from dbelief.errors import Deposed, Moved, Rejected, ResourceExhausted, RuntimeFailure, Unavailable, WriteFailed
from dbelief.monitor.status_table import taken
from dbelief.process.clock import ManualClock
from dbelief.process.log import DEBUG
from dbelief.registry import MemoryRegistry
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rundir.events import read_events
from dbelief.rundir.summary import read_summary
from dbelief.telemetry.metrics import Metrics
from tests.coordinator.replica import LAYOUT
from tests.ps_server.servers import wait_until

if TYPE_CHECKING:
    from tests.coordinator.world import World


@pytest.fixture
def world(a_world: Callable[..., World]) -> World:
    return a_world()


@pytest.fixture
def runner(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EventLoop]:
    monkeypatch.setattr(module, "draw_pictures", lambda *_: None)
    clock = ManualClock()
    metrics = Metrics("coordinator")
    leadership = LeaderLease.acquire(MemoryRegistry(clock), "test", "me", clock, threading.Event())
    assert leadership is not None
    made = EventLoop(world.machine, tmp_path, leadership, metrics, clock)
    yield made
    leadership.release()
    made._events.close()
    metrics.close()


def carry_out(runner: EventLoop) -> None:
    """The actor's work, up to here."""
    runner._executor._queue.put(module_of_actor._Signal.END)
    runner._executor.run()


def test_a_step_that_waits_for_its_turn_is_known(runner: EventLoop) -> None:
    """Its call may be a heartbeat: no member is removed for the time that it waits."""

    def step() -> None:
        with runner.step():
            assert len(runner._waiting_s) == 0

    waiting = threading.Thread(target=step)
    with runner._lock:
        waiting.start()
        wait_until(lambda: len(runner._waiting_s) == 1)
    waiting.join()
    assert not runner._waiting_s


def test_actions_of_a_failed_step_are_queued(runner: EventLoop) -> None:
    def refused() -> None:
        with runner.step() as (machine, _):
            machine.actions.append(LogEvent("state", {"state": "x", "reason": ""}))
            raise Rejected("no")

    with pytest.raises(Rejected):
        refused()
    assert runner._executor._queue.qsize() == 1
    with runner.step() as (machine, _):
        assert machine.actions == []


def test_failed_step_is_committed_before_its_effects(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is started again joins where no place is left: its earlier life is over all the same."""
    (member,) = [one for one in world.started().machine.members.all() if one.kind == "replica"][:1]
    queued = runner._executor._queue.qsize()
    commit, waiting = runner.leadership.commit, []

    def commits(*args: Any) -> None:
        waiting.append(runner._executor._queue.qsize() - queued)
        commit(*args)

    monkeypatch.setattr(runner.leadership, "commit", commits)
    monkeypatch.setattr(members, "MOST_MEMBERS", 0)
    with pytest.raises(ResourceExhausted), runner.step() as (machine, now_s):
        machine.join("replica", 999_999, member.name, "", now_s, LAYOUT, restarted=True)
    assert waiting == [0]
    assert "unsettled" in json.loads(runner.leadership.read_state()[f"incarnation:{member.incarnation}"])
    assert runner._executor._queue.qsize() > queued


def test_actions_are_queued_in_the_order_of_their_steps(runner: EventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that needs no write waits for the write of the one before it, which another thread still makes."""
    commit = runner.leadership.commit

    def commits(*args: Any) -> None:
        with runner.step() as (machine, _):
            machine.actions.append(LogEvent("later", {}))
        assert runner._executor._queue.qsize() == 0
        commit(*args)

    monkeypatch.setattr(runner.leadership, "commit", commits)
    with runner.step() as (machine, _):
        machine.actions.append(LogEvent("earlier", {}))
        machine.commit_due = True
    events = [runner._executor._queue.get() for _ in range(2)]
    assert events == [LogEvent("earlier", {}), LogEvent("later", {})]


def test_a_commit_that_fails_once_the_lease_is_released_fails_no_job(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that waits for the registry while this coordinator leaves: the next one goes on with the job."""

    def away(*_: Any) -> None:
        raise Unavailable("registry: no answer")

    state = world.started().machine.state
    runner.leadership.release()
    monkeypatch.setattr(runner.leadership._registry, "write", away)
    with pytest.raises(Unavailable, match="registry: no answer"), runner.step() as (machine, _):
        machine.commit_due = True
    assert (world.machine.state, world.machine.reason) == (state, "")
    assert runner._executor._queue.qsize() == 0


def test_a_coordinator_that_was_replaced_at_the_end_writes_no_summary(
    runner: EventLoop, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended while it fenced a worker, and reads ledgers from which the next one has dropped the rows."""
    worker = world.started().replicas[0]
    runner._machine = vars(world.machine)["machine"]  # the runner commits its steps, and not the world

    def replaced(incarnations: Sequence[int]) -> dict[int, Applied]:
        registry = runner.leadership._registry
        registry.release("test", runner.leadership.epoch)
        assert registry.acquire("test", "another", LEASE_TTL_S) is not None
        return {}

    monkeypatch.setattr(runner._executor._shards, "fence", replaced)
    with runner.step() as (machine, _):
        machine.actions.append(Fence(worker.number, worker.incarnation))
        machine.fail("out of memory")
    carry_out(runner)
    assert runner.leadership.lost
    assert not runner._finished.is_set()
    assert not (tmp_path / "summary.json").exists()


def test_a_coordinator_whose_lease_expired_before_the_summary_writes_none_if_replaced(
    runner: EventLoop, tmp_path: Path
) -> None:
    """Every step was persisted before it was suspended: only the lease shows that another coordinator leads."""
    with runner.step() as (machine, _):
        machine.fail("out of memory")
    registry = runner.leadership._registry
    registry.release("test", runner.leadership.epoch)
    assert registry.acquire("test", "another", LEASE_TTL_S) is not None
    runner.leadership.expires_s = 0.0
    carry_out(runner)
    assert runner.leadership.lost
    assert not runner._finished.is_set()
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Rejected("shard 1 at 10.0.0.1:5: fenced"), "MakeReady: shard 1 at 10.0.0.1:5: fenced"),
        (OSError(28, "No space left on device"), "MakeReady: [Errno 28] No space left on device"),
        (ZeroDivisionError("by zero"), f"MakeReady: ZeroDivisionError: by zero ({__file__}, line LINE)"),
    ],
)
def test_any_exception_ends_the_job_with_a_reason(
    runner: EventLoop,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: str,
) -> None:
    def fails() -> None:
        raise error

    reason = reason.replace("LINE", str(fails.__code__.co_firstlineno + 1))
    monkeypatch.setenv(DEBUG, "")
    monkeypatch.setattr(runner._executor._shards, "make_ready", fails)
    runner._executor._queue.put(MakeReady())
    carry_out(runner)
    assert world.state() is State.FAILED
    assert world.machine.reason == reason
    carry_out(runner)
    assert read_summary(tmp_path / "summary.json").reason == reason
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [Unavailable("shard 1: no answer"), Moved("shard 1: is in epoch 3, not 2")])
def test_unresponsive_shard_is_retried(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answers: list[Exception | None] = [error, error, None]

    def answer() -> None:
        outcome = answers.pop(0)
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(module_of_actor, "RETRY_S", 0.0)
    monkeypatch.setattr(runner._executor._shards, "make_ready", answer)
    runner._executor.submit(MakeReady())
    carry_out(runner)
    assert answers == []
    assert world.state() is State.READY


def test_commands_to_a_dead_shard_are_postponed(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.all_shards()
    world.replica()
    runner._executor.submit(Fence(7, 8))
    asked = []

    def dies(incarnations: Sequence[int]) -> dict[int, Applied]:
        asked.append(incarnations)
        world.machine.recovery.shard_lost(1)
        raise Unavailable("shard 1: no answer")

    monkeypatch.setattr(runner._executor._shards, "fence", dies)
    monkeypatch.setattr(runner._executor._shards, "assign", lambda placement: None)
    carry_out(runner)
    assert asked == [[8]]
    assert world.machine.recovery._postponed == [Fence(7, 8)]
    assert not world.machine.over


@pytest.mark.parametrize("kind", [Rejected, WriteFailed])
def test_failed_set_ends_the_job_only_while_closing(
    kind: type[RuntimeFailure],
    runner: EventLoop,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A shard refuses its part, or set.json cannot be written here. What there is of it goes."""
    parts: list[Path] = []

    def full(set_id: str) -> None:
        folder = runner.folder / "snapshots" / set_id
        assert folder.is_dir()
        parts.append(folder / "shard-0.safetensors")
        parts[-1].touch()
        raise kind(f"shard 1: {folder}/shard-1.safetensors: No space left on device")

    monkeypatch.setattr(runner._executor._shards, "snapshot", full)
    world.machine.state = State.READY
    runner._executor.submit(world.machine.training.begin_set())
    carry_out(runner)
    assert world.state() is State.READY
    (told,) = (line for line in capsys.readouterr().err.splitlines() if "snapshot" in line)
    assert "could not be written; the set before it stays valid: shard 1: " in told
    assert [path.exists() for path in parts] == [False]
    assert newest_count(LocalSets(parts[0].parents[1])) == world.machine.training.snapshots.count
    world.machine.state = State.CLOSING
    runner._executor.submit(world.machine.training.begin_set())
    carry_out(runner)
    assert world.state() is State.FAILED


def test_a_job_ends_though_its_curves_cannot_be_drawn(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "draw_pictures", fails)
    with runner.step() as (machine, _):
        machine.fail("out of memory")
    carry_out(runner)
    assert runner._finished.is_set()
    assert (runner.unwritten, world.machine.finished) == (None, True)
    assert world.machine.reason == "out of memory"
    assert "No space left on device; `dbelief report " in capsys.readouterr().err


def test_a_run_whose_summary_cannot_be_written_is_not_closed(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next coordinator writes it; this one must not end as if all were there."""

    def fails(*_: object) -> None:
        raise WriteFailed("summary.json: No space left on device")

    monkeypatch.setattr(module, "write_summary", fails)
    with runner.step() as (machine, _):
        machine.fail("out of memory")
    carry_out(runner)
    assert runner._finished.is_set()
    assert str(runner.unwritten) == "summary.json: No space left on device"
    assert not world.machine.finished


@pytest.mark.parametrize("over", [False, True])
def test_a_run_folder_that_is_moved_ends_the_coordinator(
    runner: EventLoop, world: World, tmp_path: Path, over: bool
) -> None:
    """Whatever it would write from then on is in the way of the next run of that name."""
    runner._moved = lambda: "the run folder was renamed"
    if over:
        with runner.step() as (machine, _):
            machine.fail("out of memory")
        with pytest.raises(Deposed, match="the run folder was renamed"):
            runner._finish()
    with pytest.raises(Deposed, match="the run folder was renamed"):
        runner._run(threading.Event(), leaves=False)
    assert not (tmp_path / "summary.json").exists()
    assert not world.machine.finished


@pytest.mark.parametrize("asked", [False, True])
def test_workers_that_have_ended_are_not_waited_for(
    runner: EventLoop, world: World, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Their launcher says so by a signal; and shards are stopped that hold no segments yet."""
    world.started()
    alive = [member.address for member in world.machine.members.alive("shard")]
    assert alive
    assert world.machine.members.alive("replica")
    stopped: list[str] = []
    monkeypatch.setattr(runner._shards, "stop", stopped.extend)
    runner._clock = clock = ManualClock(autojump=True)
    with runner.step() as (machine, _):
        machine.fail("no worker is left")
    carry_out(runner)
    interrupted = threading.Event()
    if asked:
        interrupted.set()
    runner._run(interrupted, leaves=False)
    assert clock.now() == pytest.approx(0.0 if asked else world.machine.job.deadlines.beat_s, abs=0.2)
    assert stopped == alive


def test_events_of_progress_are_thinned_out_and_no_others(runner: EventLoop, tmp_path: Path) -> None:
    for samples in range(50):
        runner._executor._queue.put(LogEvent("progress", {"samples": samples}))
        runner._executor._queue.put(LogEvent("snapshot", {"set": str(samples)}))
    carry_out(runner)
    events = [event["event"] for event in read_events(tmp_path / "events.jsonl")]
    assert (events.count("progress"), events.count("snapshot")) == (1, 50)


def test_a_batch_methods_numbers_are_offered_to_prometheus(runner: EventLoop, a_world: Callable[..., World]) -> None:
    batch = a_world(strategy={"name": "sandblaster", "portion": 10, "bundle": 4}, limits={"epochs": 5}).started()
    for replica in batch.replicas:
        work = batch.machine.lease(WorkRequest(replica.number, replica.incarnation), batch.now_s)
        assert isinstance(work, BundleLease)
        told = BundleResult(work.pass_number, work.bundle, 40.0, 20)
        batch.machine.bundle_done(replica.number, replica.incarnation, told, batch.now_s)
    runner._update_metrics(batch.machine)
    metrics = runner.exporter.metrics
    assert (metrics.value("bundles_total"), metrics.value("samples_total")) == (2, 40)
    counted = ("iterations_total", "evaluations_total", "backups_launched_total", "backups_won_total")
    assert [metrics.value(name) for name in counted] == [0, 0, 0, 0]
    assert [math.isnan(metrics.value(name) or 0) for name in ("loss", "gradient_norm", "step_length")] == [True] * 3


def test_pass_is_one_log_line_with_runs_in_a_file(runner: EventLoop, world: World, tmp_path: Path) -> None:
    runs = [[0, 1, 0, 4, False, 0.0, 0.5, True]]
    runner._executor._queue.put(LogEvent("pass", {"number": 3, "seconds": 0.5, "runs": runs}))
    with runner.step() as (machine, _):
        machine.fail("out of memory")
    carry_out(runner)
    carry_out(runner)
    (event,) = [event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "pass"]
    assert (event["number"], event["seconds"], "runs" in event) == (3, 0.5, False)
    assert json.loads((tmp_path / "last_pass.json").read_text())["runs"] == runs


def test_a_resumed_run_has_taken_the_time_of_all_its_legs(runner: EventLoop, tmp_path: Path) -> None:
    machine, clock = runner._machine, runner._clock
    assert isinstance(clock, ManualClock)
    clock.advance(5.0)
    assert runner.wall_s() == 5.0
    assert "last_leg_s" not in summary_of(machine, runner.wall_s())
    machine.earlier_wall_s = 100.0
    machine.stop("enough", clock.now())
    runner._finish()
    summary = read_summary(tmp_path / "summary.json")
    assert (summary.wall_s, summary.last_leg_s) == (105.0, 5.0)
    assert taken(summary) == "105.0 s (5.0 s since it was resumed)"


def test_final_speed_is_the_mean_of_this_run(runner: EventLoop, world: World) -> None:
    clock = runner._clock
    assert isinstance(clock, ManualClock)
    progress = runner._machine.progress
    progress.restore({**progress.state(), "samples": 5_000, "replicas": {"0": asdict(ReplicaStats(5_000))}}, {})
    for _ in range(4):
        runner._update_metrics(runner._machine)
        clock.advance(1.0)
        progress.record_report(0, ProgressReport(pushes=1, samples=50), clock.now())
    assert runner.speed.per_second() == pytest.approx(50.0)
    clock.advance(60.0)
    for _ in range(3):
        runner._update_metrics(runner._machine)
        clock.advance(5.0)
    runner._machine.fail("enough")
    told = build_status(runner, wire.StatusRequest())
    assert told.samples == 5_200
    assert 0.0 < told.samples_per_s <= 50.0
