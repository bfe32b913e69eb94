"""Effects of a failing push or fetch on its replica (DistBelief, section 4.1)."""

import threading
from typing import Any

import numpy as np
import pytest

from dbelief.core.placement import Fetch
from dbelief.core.push import Push, PushResult
from dbelief.errors import Unavailable
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters
from ps_server.store.shard import Shard
from tests.equivalence.by_hand import pseudocode
from tests.equivalence.harness import HOST, quadratic, replica, serve, settings, values_of
from worker.pipeline.buffers import GradientBuffer
from worker.pipeline.push_thread import PushThread

PROBLEM = quadratic(60)
SGD = make_rule("sgd", {})
ERRORS = [Unavailable("pull: shard 1 does not answer"), ZeroDivisionError("a bug")]


class Breaking(InProcessParameters):
    """Shards that break when a given push or pull is begun."""

    def __init__(self, whole: InProcessParameters, error: Exception, push: int = 0, pull: int = 0) -> None:
        super().__init__(whole.shards, whole.placement)
        self.error = error
        self.pushes, self.pulls = push, pull

    def push(
        self, values: np.ndarray, versions: np.ndarray, push: Push, fetch: Fetch | None = None, **named: Any
    ) -> PushResult:
        self.pushes -= 1
        if self.pushes == 0:
            raise self.error
        return super().push(values, versions, push, fetch, **named)

    def pull(self, out: np.ndarray, versions: np.ndarray, **named: Any) -> float:
        self.pulls -= 1
        if self.pulls == 0:
            raise self.error
        return super().pull(out, versions, **named)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("broken", ["push", "pull"])
def test_thread_failure_is_raised_in_the_training_replica(broken: str, error: Exception, overlap: bool) -> None:
    """Be it a named failure or a bug: nobody waits for a thread that has ended."""
    whole = serve(PROBLEM.start, SGD)
    parameters = Breaking(whole, error, **{broken: 4})
    chosen = settings(0.05, 3, overlap=overlap)
    with replica(PROBLEM, parameters, chosen) as one, pytest.raises(type(error), match=str(error)):
        one.train(0, 60)
    # Without overlap the pull is a part of the third push, which is counted as acknowledged where both are done.
    assert len(one.pushes) == (2 if broken == "pull" and not overlap else 3)
    assert {version for shard in whole.shards if isinstance(shard, Shard) for version in shard.versions()} == {3}


def test_after_a_failed_push_no_later_one_leaves() -> None:
    """Nor does it hide the first one's error."""
    both_handed_over, began = threading.Event(), list[int]()
    slots = [GradientBuffer.make(PROBLEM.layout.part(0), 1, HOST) for _ in range(2)]

    def push(slot: GradientBuffer) -> PushResult:
        began.append(slot.sequence)
        assert both_handed_over.wait(60)
        raise Unavailable(f"push {slot.sequence}")

    sender = PushThread(push, slots, lambda slot, pushed: None)
    for sequence in (1, 2):
        slot = sender.acquire_buffer()
        slot.sequence = sequence
        sender.submit(slot)
    both_handed_over.set()
    with pytest.raises(Unavailable, match="push 1"):
        sender.flush()
    sender.close()
    assert began == [1]


def test_lost_replica_loses_only_unpushed_steps() -> None:
    """Another goes on from all that was pushed; a new life of the first may follow it."""
    whole = serve(PROBLEM.start, SGD)
    breaking = Breaking(whole, ERRORS[0], push=3)
    with replica(PROBLEM, breaking, settings(0.05, 2, 2, 2), 0) as dying, pytest.raises(Unavailable):
        dying.train(0, 20)  # pushes 1 and 2 of 5 hold samples 0 to 8
    with replica(PROBLEM, whole, settings(0.05, 2, 2, 2), 1) as other:
        other.train(20, 40)
    with replica(PROBLEM, whole, settings(0.05, 2, 2, 2), 2) as again:
        again.train(8, 20)
    by_hand = pseudocode(PROBLEM, [(0, 8), (20, 40), (8, 20)], 2, SGD, 0.05, 2, 2, literal=False)
    assert np.array_equal(values_of(whole), by_hand)
