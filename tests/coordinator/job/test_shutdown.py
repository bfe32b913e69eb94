"""The end of a job: leases, last validation, test of the result, snapshot set, export; or a one-line failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.core.effects import Export, FinishRun, TakeSnapshot
from coordinator.core.messages import EvaluationLease, ResourceUsage, Stop, Wait
from coordinator.core.states import DatasetSizes, ShutdownPhase, State
from coordinator.monitoring.summary import summary_of

if TYPE_CHECKING:
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
        elif isinstance(action, TakeSnapshot | Export | FinishRun):
            told.append(type(action).__name__)
    return told[told.index("ready") + 1 :]


def test_the_order_of_an_end(a_world: MakeWorld) -> None:
    world = a_world().started().run()
    assert story(world) == ["closing", "validation", "test", "TakeSnapshot", "Export", "done", "FinishRun"]
    assert world.finished
    assert world.exported is not None
    assert world.exported[0] == "w"
    newest = max(world.disk)
    assert newest == "000000000200-0002"
    assert world.disk[newest].segments[0].arrays["w"].sum() == 200


def test_each_step_waits_for_the_one_before(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started()
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
    assert isinstance(second.ask(), EvaluationLease)
    assert second.evaluation is not None
    assert second.evaluation.set == "test"
    second.evaluate()
    work = first.ask()
    assert isinstance(work, Stop)
    assert work.reason == "60 samples trained"
    assert [type(a) for a in world.machine.actions if isinstance(a, TakeSnapshot | Export)] == [TakeSnapshot]
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
    first.work()
    second.work()
    first.train()
    second.train()
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


def test_the_test_of_a_dead_replica_is_given_to_another(a_world: MakeWorld) -> None:
    world = a_world(shape=DatasetSizes(100, 0, 30), limits={"samples": 60}).started()
    first, second = world.replicas
    first.work()
    second.work()
    first.train()
    second.train()
    assert isinstance(first.ask(), EvaluationLease)
    first.die()
    assert isinstance(second.ask(), EvaluationLease)
    second.evaluate(0.3, 0.9)
    world.settle()
    assert world.machine.progress.test is not None
    assert world.machine.progress.test.accuracy == 0.9
    assert world.state() is State.DONE


@pytest.mark.parametrize("after_the_set", [False, True])
def test_the_test_of_parameters_that_a_shard_loses_is_no_result(a_world: MakeWorld, after_the_set: bool) -> None:
    """Replicas have been stopped: none can test what the shard is restored to."""
    world = a_world(shape=DatasetSizes(100, 0, 30), limits={"samples": 60}, replicas=1).started()
    (replica,) = world.replicas
    for _ in range(2):
        replica.work()
        replica.train()
    assert isinstance(replica.ask(), EvaluationLease)
    replica.evaluate(0.3, 0.9)
    while after_the_set and not (world.did(TakeSnapshot) and world.machine.shutdown.phase is ShutdownPhase.EXPORT):
        assert world.act() is not None
    assert world.machine.shutdown.phase is (ShutdownPhase.EXPORT if after_the_set else ShutdownPhase.SNAPSHOT)
    world.kill_shard(0)
    world.tick(6.0)
    world.shard()
    world.run()
    assert world.state() is State.DONE
    assert world.exported is not None
    assert world.exported[1].sum() == 4 * (
        60 if after_the_set else 30
    )  # in each of four segments, two of them on the shard
    assert (world.machine.progress.test is not None) == after_the_set


def test_a_test_made_between_a_failure_and_the_restore_is_repeated(a_world: MakeWorld) -> None:
    """A shard whose heartbeats are lost may still answer replicas, with parameters that it lacks after its restore."""
    fields = {"limits": {"samples": 60}, "replicas": 1, "snapshots": {"every_s": 30.0}}
    world = a_world(shape=DatasetSizes(100, 0, 30), **fields).started()
    (replica,) = world.replicas
    replica.work()
    replica.train()
    replica.work()
    world.tick(31.0)  # a set is under way until the end, so that the test is not over when it is done
    replica.train()
    assert isinstance(replica.ask(), EvaluationLease)
    world.kill_shard(0)
    world.tick(6.0)
    replica.evaluate(0.3, 0.9)
    assert isinstance(replica.ask(), EvaluationLease), "the failure has repeated the test"
    replica.evaluate(0.3, 0.9)
    assert world.machine.shutdown.phase is ShutdownPhase.TEST
    world.shard()
    while not isinstance(replica.ask(), EvaluationLease):
        assert world.act() is not None
    assert world.machine.progress.test is None
    replica.evaluate(0.7, 0.5)
    world.run()
    assert world.state() is State.DONE
    assert world.machine.progress.test is not None
    assert world.machine.progress.test.accuracy == 0.5


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


def test_stop_waits_only_for_a_running_evaluation(a_world: MakeWorld) -> None:
    world = a_world(evaluate={"every": 30, "keep": "best"}).started()
    first, second = world.replicas
    first.work()
    first.train()
    assert isinstance(first.ask(), EvaluationLease)
    world.machine.stop("enough", world.now_s)
    world.settle()
    assert world.state() is State.CLOSING
    assert first.evaluate(store=False) == "best.0"
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


def test_stop_without_replicas_writes_a_set_and_ends(a_world: MakeWorld) -> None:
    world = a_world().started()
    for replica in world.replicas:
        replica.work()
        replica.leave()
    world.machine.stop("enough", world.now_s)
    world.settle()
    assert world.state() is State.DONE


def test_a_second_stop_changes_nothing(a_world: MakeWorld) -> None:
    world = a_world().started()
    world.replicas[0].work()
    world.machine.stop("first", world.now_s)
    world.machine.stop("second", world.now_s)
    world.machine.close("third")
    assert world.machine.reason == "first"


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
    for replica in world.replicas:
        replica.work()
    for replica in world.replicas:
        replica.train()
    for replica in world.replicas:
        assert isinstance(replica.ask(), Stop)
        replica.leave()
    world.tick(300.0)
    assert world.state() is State.CLOSING
    world.settle()
    assert world.state() is State.DONE


def test_missing_replica_for_last_validation_fails_the_job(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started()
    for replica in world.replicas:
        replica.work()
    for replica in world.replicas:
        replica.train()
        replica.leave()
    world.tick(61.0)
    assert world.machine.reason == "no replica for 60 s; waiting for: a replica to join"


@pytest.mark.parametrize("begun", [False, True])
def test_stopped_while_it_waits_for_an_evaluation_it_ends_without(a_world: MakeWorld, begun: bool) -> None:
    """No replica is left; one had begun the evaluation before it failed, or none."""
    world = a_world(limits={"samples": 60}).started()
    first, second = world.replicas
    for replica in (first, second):
        replica.work()
    for replica in (first, second):
        replica.train()
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


def test_a_joiner_may_still_help_while_the_job_closes(a_world: MakeWorld) -> None:
    world = a_world(limits={"samples": 60}).started()
    for replica in world.replicas:
        replica.work()
    for replica in world.replicas:
        replica.train()
        replica.leave()
    late = world.replica()
    world.settle()
    assert isinstance(late.ask(), EvaluationLease)
    world.run()
    assert world.state() is State.DONE


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
        "wall_s": 12.5,
        "replicas": 2,
        "shards": 2,
        "members_lost": 1,
        "died": ["replica 0"],
        "pushes_lost": 0,
        "bytes_per_replica": {"0": {"sent": 111, "received": 222}},
        "residual_lost": 2.5,
        "parameters": 4096,
    }


def test_the_summary_of_a_job_that_never_began(a_world: MakeWorld) -> None:
    world = a_world()
    world.machine.stop("enough", world.now_s)
    summary = summary_of(world.machine, 0.0)
    assert (summary["state"], summary["samples"], summary["parameters"]) == ("failed", 0, 0)
    assert summary["test_loss"] is summary["validation_loss"] is None
