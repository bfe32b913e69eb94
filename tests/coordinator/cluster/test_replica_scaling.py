"""How many replicas are wanted: heard of where somebody can bring it about, refused elsewhere with who can."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coordinator.cluster.replica_scaling import HEARD_S, ReplicaScaling
from coordinator.core.states import State
from dbelief.errors import Rejected

if TYPE_CHECKING:
    from tests.coordinator.world import World


@pytest.fixture
def scaling(a_world: Callable[..., World]) -> ReplicaScaling:
    return ReplicaScaling(a_world().job)


def test_what_is_wanted_is_known_where_a_launcher_is_there(scaling: ReplicaScaling) -> None:
    scaling.launcher_seen(100.0)
    scaling.want(5, State.READY, 100.0 + HEARD_S)
    assert scaling.wanted == 5


def test_without_a_launcher_the_refusal_names_who_can(scaling: ReplicaScaling) -> None:
    for heard_s in (None, 100.0):
        if heard_s is not None:
            scaling.launcher_seen(heard_s)
        with pytest.raises(
            Rejected, match=r"--scale worker=5`.*kubectl scale deployment worker --replicas=5`.*by hand"
        ):
            scaling.want(5, State.READY, 100.1 + HEARD_S)
    assert scaling.wanted is None


@pytest.mark.parametrize("state", [state for state in State if state is not State.READY])
def test_a_job_that_does_not_train_stays_as_it_is(scaling: ReplicaScaling, state: State) -> None:
    scaling.launcher_seen(100.0)
    with pytest.raises(Rejected, match=f"^job test is {state.value}: while it trains"):
        scaling.want(5, state, 100.0)
    assert scaling.wanted is None


def test_no_replicas_are_no_number(scaling: ReplicaScaling) -> None:
    scaling.launcher_seen(100.0)
    with pytest.raises(Rejected, match=r"cannot go on without a replica: `dbelief stop` ends it$"):
        scaling.want(0, State.READY, 100.0)


def test_replicas_with_cores_of_their_own_stay_as_many(a_world: Callable[..., World]) -> None:
    scaling = ReplicaScaling(a_world().job.model_copy(update={"pin_cores": True}))
    scaling.launcher_seen(100.0)
    with pytest.raises(Rejected, match=r"^job test has pin_cores: each of its [0-9]+ replicas keeps to its own cores$"):
        scaling.want(5, State.READY, 100.0)
