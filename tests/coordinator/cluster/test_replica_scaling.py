"""The wanted number of replicas: accepted where a launcher is connected, refused elsewhere with alternatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.cluster.replica_scaling import LAUNCHER_TIMEOUT_S, ReplicaScaling
from coordinator.core.states import State
from dbelief.errors import Rejected

if TYPE_CHECKING:
    from tests.coordinator.world import World


@pytest.fixture
def scaling(a_world: Callable[..., World]) -> ReplicaScaling:
    return ReplicaScaling(a_world().job)


def test_wanted_replicas_are_kept_while_a_launcher_is_seen(scaling: ReplicaScaling) -> None:
    scaling.launcher_seen(100.0)
    scaling.request(5, State.READY, 100.0 + LAUNCHER_TIMEOUT_S)
    assert scaling.wanted == 5


def test_refusal_without_launcher_names_alternatives(scaling: ReplicaScaling) -> None:
    for heard_s in (None, 100.0):
        if heard_s is not None:
            scaling.launcher_seen(heard_s)
        with pytest.raises(
            Rejected, match=r"--scale worker=5`.*kubectl scale deployment worker --replicas=5`.*by hand"
        ):
            scaling.request(5, State.READY, 100.1 + LAUNCHER_TIMEOUT_S)
    assert scaling.wanted is None


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_a_job_that_does_not_train_stays_as_it_is(scaling: ReplicaScaling, state: State) -> None:
    scaling.launcher_seen(100.0)
    with pytest.raises(
        Rejected, match=f"^job test is {state.value}: the number of replicas can change only in training"
    ):
        scaling.request(5, state, 100.0)
    assert scaling.wanted is None


def test_no_replicas_are_no_number(scaling: ReplicaScaling) -> None:
    scaling.launcher_seen(100.0)
    with pytest.raises(Rejected, match=r"needs at least one replica: `dbelief stop` ends it$"):
        scaling.request(0, State.READY, 100.0)


def test_replicas_with_cores_of_their_own_stay_as_many(a_world: Callable[..., World]) -> None:
    scaling = ReplicaScaling(a_world().job.model_copy(update={"pin_cores": True}))
    scaling.launcher_seen(100.0)
    with pytest.raises(Rejected, match=r"^job test has pin_cores: each of its [0-9]+ replicas keeps to its own cores$"):
        scaling.request(5, State.READY, 100.0)
