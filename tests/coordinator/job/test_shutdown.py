"""The end of a job: leases, last validation, test of the result, snapshot set, export; or a one-line failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.core.effects import Export, FinishRun, TakeSnapshot, WriteSummary
from coordinator.core.messages import EvaluationLease, ResourceUsage, Stop, Wait
from coordinator.core.states import DatasetSizes, ShutdownPhase, State
from coordinator.monitoring.summary import summary_of
from coordinator.scheduling.evaluations import ATTEMPTS

if TYPE_CHECKING:
    from tests.coordinator.replica import Replica
    from tests.coordinator.world import World

MakeWorld = Callable[..., "World"]


def story(world: World) -> list[str]:
    """The end of a job as it was noted and done."""
    told: list[str] = []
    for action in world.done:
        fields: Any = getattr(action, "fields", {})
        if getattr(action, "event", "") == "evaluation":
            told.append(fields["set"])
        elif getattr(action, "event", "") == "state":
            told.append(fields["state"])
        elif isinstance(action, TakeSnapshot | Export | WriteSummary | FinishRun):
            told.append(type(action).__name__)
    return told[told.index("ready") + 1 :]


def test_the_order_of_an_end(a_world: MakeWorld) -> None:
    world = a_world().started().run()
    ended = ["TakeSnapshot", "Export", "WriteSummary", "validation", "test", "done", "FinishRun"]
    assert story(world) == ["closing", *ended]
    chooses = a_world(evaluate={"every": 10**6, "keep": "best"}).started().run()
    assert story(chooses) == ["closing", "validation", *(step for step in ended if step != "validation")]
    assert world.finished
    assert world.exported is not None
    assert world.exported[0] == "w"
    newest = max(world.disk)
    assert newest == "000000000200-0002"
    assert world.disk[newest].segments[0].arrays["w"].sum() == 200


def test_each_step_waits_for_the_one_before(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}, evaluate={"every": 10**6, "keep": "best"}).started()
    first, second = world.replicas
    first.work()
    second.work()
    first.train()
    assert world.state() is State.READY
    second.train()
    assert world.state() is State.CLOSING
    assert isinstance(first.ask(), EvaluationLease)
    assert isinstance(second.ask(), Wait)
    first.evaluate()
    assert isinstance(second.ask(), Wait)
    assert [type(a) for a in world.machine.actions if isinstance(a, TakeSnapshot | Export)] == [TakeSnapshot]
    world.settle()
    assert world.exported is not None
    assert world.state() is State.CLOSING
    assert isinstance(second.ask(), EvaluationLease)
    assert second.evaluation is not None
    assert second.evaluation.set == "test"
    second.evaluate()
    work = first.ask()
    assert isinstance(work, Stop)
    assert work.reason == "60 samples trained"
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.reason == "60 samples trained"


def test_evaluation_after_last_push_is_not_repeated(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 60}, limits={"samples": 90}, replicas=1).started()
    (replica,) = world.replicas
    for _ in range(2):
        replica.work()
        replica.train()
    assert isinstance(replica.ask(), EvaluationLease)
    replica.evaluate()
    replica.work()
    replica.train()
    world.run()
    assert [event["samples"] for event in world.events("evaluation")] == [60, 90, 90]

    world = a_world(evaluate={"every": 50}, limits={"validation_loss": 0.6, "epochs": 9}, replicas=1).started()
    world.run()
    assert [event["set"] for event in world.events("evaluation")] == ["validation", "test"]


@pytest.mark.parametrize(("keep", "vector", "samples"), [("best", "best.1", 130), ("last", "w", 200)])
def test_the_result_is_the_best_or_the_last(a_world: MakeWorld, keep: str, vector: str, samples: int) -> None:
    world = a_world(evaluate={"every": 60, "keep": keep}, replicas=1)
    accuracies = iter([0.5, 0.9, 0.6, 0.7, 0.88])
    tested = []

    def score(lease: EvaluationLease) -> tuple[float, float]:
        if lease.set == "test":
            tested.append(lease.vector)
        return 0.5, next(accuracies)

    world.score = score
    world.started().run()
    assert tested == [vector]
    assert world.exported is not None
    assert world.exported[0] == world.machine.shutdown.vector == vector
    assert world.exported[1].sum() == 4 * samples


def test_unstored_last_evaluation_is_repeated(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 1000, "keep": "best"}, limits={"samples": 60}).started()
    first, second = world.replicas
    world.all_work_off()
    assert isinstance(first.ask(), EvaluationLease)
    assert first.evaluate(store=False) == "best.0"
    first.die()
    world.settle()
    assert isinstance(second.ask(), EvaluationLease)
    assert second.evaluate() == "best.0"
    world.run()
    assert world.exported is not None
    assert world.exported[0] == "best.0"


def test_unstored_evaluation_is_repeated_without_training(a_world: MakeWorld) -> None:
    world = a_world(
        evaluate={"every": 30, "keep": "best"}, limits={"samples": 60, "validation_accuracy": 0.7}
    ).started()
    first, second = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), EvaluationLease)
    second.work()
    assert first.evaluate(store=False) == "best.0"
    assert world.state() is State.CLOSING
    first.die()
    world.settle()
    assert world.machine.shutdown.phase is ShutdownPhase.DRAIN
    second.leave()
    late = world.replica()
    world.settle()
    assert isinstance(late.ask(), EvaluationLease)
    assert late.evaluate() == "best.0"
    world.run()
    assert world.exported is not None
    assert world.exported[0] == "best.0"


def to_its(world: World, name: str) -> Replica:
    """The only replica has trained all, the model is written, and an evaluation of it is due."""
    (replica,) = world.replicas
    for _ in range(1_000):
        if world.exported is not None and replica.evaluation is not None and replica.evaluation.set == name:
            return replica
        replica.turn()
        world.settle()
    raise AssertionError(f"there is no {name} evaluation")


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("leased", [False, True])
def test_a_shard_that_fails_during_the_test_is_restored_with_what_is_tested(
    a_world: MakeWorld, keep: str, leased: bool
) -> None:
    """The set before the export has it, so that model and test stay those of the same parameters."""
    world = a_world(limits={"samples": 60}, evaluate={"every": 10**6, "keep": keep}, replicas=1).started()
    replica = to_its(world, "test")
    assert world.exported is not None
    model = world.exported[1].copy()
    if not leased:
        replica.evaluation = None
        replica.leave()
        replica = world.replica()
    world.kill_shard(0)
    world.tick(6.0)
    world.shard()
    world.settle()
    if leased:
        replica.evaluate(0.3, 0.9)
    world.score = lambda lease: (0.3, 0.9)
    world.run()
    assert world.state() is State.DONE
    assert world.machine.outcome == "60 samples trained"
    assert world.machine.progress.test is not None
    assert world.machine.progress.test.accuracy == 0.9
    assert len(world.did(Export)) == 1
    assert (world.exported[1] == model).all()
    assert (world.vector(world.machine.shutdown.vector) == model).all()


def test_a_shard_that_is_restored_from_an_older_set_leaves_the_model_untested(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}, snapshots__every_s=None, replicas=1).started()
    to_its(world, "test")
    assert world.exported is not None
    model = world.exported[1].copy()
    world.damaged.add(max(world.disk))
    world.kill_shard(0)
    world.tick(6.0)
    world.shard()
    world.settle()
    assert world.state() is State.DONE
    assert list(world.machine.shutdown.failures) == ["test"]
    assert "was restored from set" in world.machine.outcome
    assert world.machine.progress.test is None
    assert (world.exported[1] == model).all(), "the model of all samples is kept"


@pytest.mark.parametrize("phase", [ShutdownPhase.SNAPSHOT, ShutdownPhase.EXPORT])
def test_what_a_shard_loses_before_the_export_is_neither_in_the_model_nor_tested(
    a_world: MakeWorld, phase: ShutdownPhase
) -> None:
    world = a_world(shape=DatasetSizes(100, 0, 30), limits={"samples": 60}, replicas=1).started()
    (replica,) = world.replicas
    for _ in range(2):
        replica.work()
        replica.train()
    while world.machine.shutdown.phase is not phase:
        assert world.act() is not None
    assert isinstance(replica.ask(), Wait)
    world.kill_shard(0)
    world.tick(6.0)
    world.shard()
    tested: list[float] = []

    def score(lease: EvaluationLease) -> tuple[float, float]:
        tested.append(world.vector(lease.vector).sum())
        return 0.3, 0.9

    world.score = score
    world.run()
    assert world.state() is State.DONE
    assert world.exported is not None
    # In each of four segments, two of them on the shard.
    assert world.exported[1].sum() == 4 * (60 if phase is ShutdownPhase.EXPORT else 30)
    assert tested == [world.exported[1].sum()]
    assert world.machine.progress.test is not None


# -- an evaluation that fails ----------------------------------------------------------------------------


def test_a_test_that_cannot_be_made_leaves_the_model(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}, replicas=1).started()
    replica = to_its(world, "test")
    assert replica.evaluation is not None
    why = "test.parquet: row 7 of column x: is missing"
    world.machine.evaluation_failed(replica.incarnation + 1, replica.evaluation.id, "of another", world.now_s)
    assert world.state() is State.CLOSING
    world.machine.evaluation_failed(replica.incarnation, replica.evaluation.id, why, world.now_s)
    world.settle()
    assert world.state() is State.DONE
    assert world.finished
    assert world.machine.outcome == f"60 samples trained; the test evaluation failed: {why}"
    assert world.events("evaluation_failed") == [{"set": "test", "reason": why}]
    summary = summary_of(world.machine, 1.0)
    assert (summary["state"], summary["trained"]) == ("done", True)
    assert summary["evaluation_failed"] == {"test": why}
    assert isinstance(replica.ask(), Stop)


def test_a_validation_that_cannot_be_made_ends_training_with_a_set_and_a_model(a_world: MakeWorld) -> None:
    """Limits and `keep` depend on it; what is trained is kept, and a resumed run trains on."""
    world = a_world(evaluate={"every": 30}, replicas=2).started()
    first, second = world.replicas
    second.work()
    first.work()
    first.train()
    evaluation = first.ask()
    assert isinstance(evaluation, EvaluationLease)
    world.machine.evaluation_failed(first.incarnation, evaluation.id, "validation.csv:3: is short", world.now_s)
    assert world.state() is State.CLOSING
    second.train()
    world.settle()
    assert world.state() is State.DONE
    why = "the validation evaluation failed: validation.csv:3: is short"
    assert world.machine.outcome == f"stopped by a failed evaluation; {why}"
    assert world.exported is not None
    assert world.exported[1].sum() == 4 * 60
    assert world.disk[max(world.disk)].state["progress"]["samples"] == 60
    assert not summary_of(world.machine, 1.0)["trained"]


def test_a_failed_last_validation_does_not_keep_the_test_from_being_made(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}, replicas=1).started()
    replica = to_its(world, "validation")
    assert replica.evaluation is not None
    world.machine.evaluation_failed(replica.incarnation, replica.evaluation.id, "no such file", world.now_s)
    replica.evaluation = None
    world.run()
    assert world.machine.progress.test is not None
    assert world.machine.shutdown.failures == {"validation": "no such file"}


def test_an_evaluation_at_which_replicas_fail_in_turn_leaves_the_model(a_world: MakeWorld) -> None:
    """An evaluation that takes all memory ends each process without a word."""
    world = a_world(limits={"samples": 60}, replicas=1).started()
    replica = to_its(world, "test")
    for _ in range(ATTEMPTS - 1):
        replica.die()
        assert world.state() is State.CLOSING
        replica = world.replica()
        world.settle()
        assert isinstance(replica.ask(), EvaluationLease)
    replica.die()
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.shutdown.failures["test"].startswith(f"replica {replica.number} failed at it, like others")


@pytest.mark.parametrize("gone", ["a worker", "a shard"])
def test_a_launcher_without_processes_for_the_test_leaves_the_model(a_world: MakeWorld, gone: str) -> None:
    world = a_world(limits={"samples": 60}, replicas=1).started()
    to_its(world, "test")
    if gone == "a shard":
        world.kill_shard(0)
        world.tick(6.0)
    world.machine.launcher_failed("no process is left", world.now_s)
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.shutdown.failures == {"test": "no process is left"}


def test_a_launcher_without_workers_leaves_out_the_evaluations_alone(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started()
    world.all_work_off(leave=True)
    world.machine.launcher_failed("no worker is left", world.now_s)
    world.machine.launcher_failed("no worker is left", world.now_s)  # it says so four times a second
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.shutdown.failures == {"validation": "no worker is left"}
    assert world.exported is not None


@pytest.mark.parametrize("state", ["ready", "closing without a shard"])
def test_a_launcher_without_processes_for_training_fails_the_job(a_world: MakeWorld, state: str) -> None:
    world = a_world(limits={"samples": 60}).started()
    if state != "ready":
        world.machine.close("60 samples trained")
        world.kill_shard(0)
        world.tick(6.0)
    world.machine.launcher_failed("no process is left", world.now_s)
    assert world.state() is State.FAILED
    assert world.machine.reason == "no process is left"


def test_a_stop_during_the_test_ends_the_job_as_trained(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}, replicas=1).started()
    to_its(world, "test")
    world.machine.stop("stopped by Ctrl-C", world.now_s)
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.outcome == "60 samples trained"
    assert world.machine.progress.test is None


def test_another_coordinator_goes_on_with_the_test_of_the_model(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}, replicas=1).started()
    replica = to_its(world, "test")
    world.take_over()
    world.score = lambda lease: (0.3, 0.9)
    replica.evaluate()
    world.settle()
    assert world.state() is State.DONE
    assert len(world.did(Export)) == 1, "the model is not written again"
    assert world.machine.progress.test is not None


def test_a_run_that_lacks_only_its_test_is_resumed_with_that(a_world: MakeWorld) -> None:
    """It ended by a limit that a resumed run would have to reach again."""
    world = a_world(evaluate={"every": 30}, limits={"samples": 900, "patience": 1}, replicas=1).started()
    scores = iter([0.9, 0.8])
    world.score = lambda lease: (0.5, next(scores, 0.1))
    replica = to_its(world, "test")
    reason = world.machine.reason
    assert reason == "no better validation result for 1 evaluations"
    replica.evaluation = None
    world.machine.launcher_failed("no worker is left", world.now_s)
    world.settle()

    again = world.after_crash()
    again.machine.trained = reason
    again.started()
    again.run()
    assert again.state() is State.DONE
    assert again.machine.outcome == reason
    assert again.machine.progress.samples == world.machine.progress.samples
    assert [event["set"] for event in again.events("evaluation")] == ["test"]
    assert again.machine.shutdown.trained


@pytest.mark.parametrize(
    ("shape", "sets"),
    [(DatasetSizes(100, 0, 0), []), (DatasetSizes(100, 20, 0), ["validation"]), (DatasetSizes(100, 0, 30), ["test"])],
)
def test_evaluations_without_data_are_skipped(a_world: MakeWorld, shape: DatasetSizes, sets: list[str]) -> None:
    world = a_world(shape=shape).started().run()
    assert [event["set"] for event in world.events("evaluation")] == sets
    assert world.state() is State.DONE


def test_stop_finishes_leases_and_evaluates_nothing(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    first.train(pushes=1)
    world.machine.stop("stopped by Ctrl-C", world.now_s)
    assert world.state() is State.CLOSING
    assert isinstance(second.ask(), Wait)
    first.train()
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.reason == "stopped by Ctrl-C"
    assert story(world) == ["closing", "TakeSnapshot", "Export", "done", "FinishRun"]
    assert world.machine.progress.samples == 30


def test_stop_does_not_wait_for_a_running_evaluation(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30}).started()
    first, _ = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), EvaluationLease)
    world.machine.stop("enough", world.now_s)
    world.settle()
    assert world.state() is State.DONE
    assert first.evaluate() == ""
    assert isinstance(first.ask(), Stop)
    assert world.events("evaluation") == []


def test_stop_waits_while_the_parameters_of_an_evaluation_are_stored(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"}).started()
    first, second = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), EvaluationLease)
    assert first.evaluate(store=False) == "best.0"
    world.machine.stop("enough", world.now_s)
    world.settle()
    assert world.state() is State.CLOSING
    first.die()
    world.settle()
    assert world.state() is State.DONE, "nothing is evaluated again for a job that was stopped"
    assert isinstance(second.ask(), Stop)


def test_no_evaluation_is_begun_while_a_job_drains(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30}).started()
    first, second = world.replicas
    first.work()
    second.work()
    second.train()  # and an evaluation is due
    world.machine.stop("enough", world.now_s)
    assert isinstance(second.ask(), Wait)


def test_evaluation_running_at_close_is_the_last(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30}, limits={"wall_s": 20.0}).started()
    first, second = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), EvaluationLease)
    world.tick(20.0)
    assert world.machine.shutdown.phase is ShutdownPhase.DRAIN
    assert isinstance(second.ask(), Wait)
    first.evaluate()
    world.run()
    assert [event["set"] for event in world.events("evaluation")] == ["validation", "test"]


def test_dead_replica_in_drain_reassigns_nothing(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, second = world.replicas
    first.work()
    world.machine.stop("enough", world.now_s)
    first.die()
    assert world.machine.shutdown.phase is ShutdownPhase.DRAIN, "what it had pushed is not known yet"
    assert isinstance(second.ask(), Wait)
    world.settle()
    assert world.state() is State.DONE


def test_the_last_set_waits_for_one_under_way(a_world: MakeWorld) -> None:
    world = a_world(shape=DatasetSizes(100, 0, 0), limits={"samples": 60}, snapshots={"every_s": 30.0}).started()
    for replica in world.replicas:
        replica.work()
        replica.train(pushes=2)
    world.tick(31.0)
    for replica in world.replicas:
        replica.train()
    assert world.state() is State.CLOSING
    assert [a.set_id for a in world.machine.actions if isinstance(a, TakeSnapshot)] == ["000000000040-0002"]
    world.settle()
    assert [a.set_id for a in world.did(TakeSnapshot)][1:] == ["000000000040-0002", "000000000060-0003"]


def test_final_write_needs_no_replica_and_no_timeout(a_world: MakeWorld) -> None:
    """Replicas hear of the end when the last set begins; a large model is written for longer than patience lasts."""
    world = a_world(shape=DatasetSizes(100, 0, 0), limits={"samples": 60}).started()
    world.all_work_off()
    for replica in world.replicas:
        assert isinstance(replica.ask(), Stop)
        replica.leave()
    world.tick(300.0)
    assert world.state() is State.CLOSING
    world.settle()
    assert world.state() is State.DONE


def test_missing_replica_for_last_validation_leaves_the_model(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started()
    world.all_work_off(leave=True)
    world.settle()
    world.tick(61.0)
    world.settle()
    why = "no replica for 60 s; waiting for: a replica to join"
    assert world.state() is State.DONE
    assert world.exported is not None
    assert world.events("evaluation_failed") == [{"set": "validation", "reason": why}]
    assert world.machine.outcome == f"60 samples trained; the validation evaluation failed: {why}"


@pytest.mark.parametrize("begun", [False, True])
def test_stopped_while_it_waits_for_an_evaluation_it_ends_without(a_world: MakeWorld, begun: bool) -> None:
    """No replica is left; one had begun the evaluation before it failed, or none."""
    world = a_world(limits={"samples": 60}).started()
    first, second = world.replicas
    world.all_work_off()
    world.settle()
    second.leave()
    if begun:
        assert isinstance(first.ask(), EvaluationLease)
        first.die()
    else:
        first.leave()
    world.settle()
    assert world.state() is State.CLOSING
    world.machine.stop("no script is left", world.now_s)
    world.settle()
    assert world.state() is State.DONE
    assert world.machine.reason == "60 samples trained"
    assert world.events("evaluation") == []


def test_a_failure_is_final(a_world: MakeWorld) -> None:
    world = a_world().started()
    first, _ = world.replicas
    first.work()
    world.machine.fail("replica 0: out of memory")
    world.machine.fail("another thing")
    first.train()
    world.machine.stop("enough", world.now_s)
    world.tick(300.0)
    world.settle()
    assert world.state() is State.FAILED
    assert world.machine.reason == "replica 0: out of memory"
    assert len(world.did(FinishRun)) == 1
    assert world.exported is None


def test_summary_at_the_end(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 60, "keep": "best"}).started()
    first, _ = world.replicas
    first.work()
    first.train(pushes=1)
    assert not first.push(only=2)
    world.machine.record_usage(0, first.incarnation, ResourceUsage({"compute": 1.0}))
    world.machine.record_usage(0, first.incarnation, ResourceUsage(wire={"sent": 50, "received": 60, "residual": 7.0}))
    world.machine.record_usage(
        0, first.incarnation, ResourceUsage(wire={"sent": 100, "received": 200, "residual": 2.0})
    )
    world.machine.record_usage(0, first.incarnation, ResourceUsage({"compute": 2.0, "push": 0.5}))
    first.die()
    again = world.replica()
    world.machine.record_usage(again.number, again.incarnation, ResourceUsage({"compute": 4.0, "wait": 1.0}))
    world.machine.record_usage(
        again.number, again.incarnation, ResourceUsage(wire={"sent": 11, "received": 22, "residual": 0.5})
    )
    world.machine.record_usage(again.number, again.incarnation, ResourceUsage(wire={"residual": float("nan")}))
    world.machine.record_usage(again.number, again.incarnation + 1, ResourceUsage({"compute": 100.0}))
    world.score = lambda lease: (0.25, 0.875) if lease.set == "test" else (0.5, 0.75)
    world.run()
    summary = summary_of(world.machine, wall_s=12.5)
    assert "iterations" not in summary, "that is a batch method's"
    per_replica = summary.pop("samples_per_replica")
    assert sum(per_replica.values()) == 200
    assert summary == {
        "job": "test",
        "seed": 0,
        "start_from": None,
        "state": "done",
        "reason": "200 samples trained",
        "trained": True,
        "evaluation_failed": {},
        "steps_left_out": 0,
        "test_accuracy": 0.875,
        "test_loss": 0.25,
        "validation_accuracy": 0.75,
        "validation_loss": 0.5,
        "test_metrics": {},
        "validation_metrics": {},
        "samples": 200,
        "phase_seconds": {"0": {"compute": 6.0, "push": 0.5, "wait": 1.0}, "1": {}},
        "epochs": 2.0,
        "steps": 20,
        "pushes": 20,
        "pushes_trained_twice": 1,
        "staleness_mean": 0.0,
        "rounds": None,
        "wall_s": 12.5,
        "replicas": 2,
        "shards": 2,
        "members_lost": 1,
        "died": ["replica 0"],
        "pushes_lost": 0,
        "bytes_per_replica": {"0": {"sent": 111, "received": 222}},
        "steps_per_replica": {"0": 10, "1": 10},
        "pushes_per_replica": {"0": 10, "1": 10},
        "lease_samples": 30,
        "processors": {},
        "residual_lost": 2.5,
        "parameters": 4096,
    }


def test_the_summary_of_a_job_that_never_began(a_world: MakeWorld) -> None:
    world = a_world()
    world.machine.stop("enough", world.now_s)
    summary = summary_of(world.machine, 0.0)
    assert (summary["state"], summary["samples"], summary["parameters"]) == ("failed", 0, 0)
    assert summary["test_loss"] is summary["validation_loss"] is None
