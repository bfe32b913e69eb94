"""The wanted number of replicas: accepted where a launcher is connected, refused elsewhere with alternatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from coordinator.cluster.replica_scaling import LAUNCHER_TIMEOUT_S, ReplicaScaling
from coordinator.core.states import State
from coordinator.scheduling.auto_scaling import Totals
from dbelief.errors import Rejected
from dbelief.job.scale import AutoScale

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


def followed(scaling: ReplicaScaling, seconds: range, living: int = 2) -> list[tuple[int, dict[str, object]]]:
    """Events while each worker makes ten samples a second, and the model promises as much of each further one."""
    events = []
    for now_s in seconds:
        scaling.launcher_seen(now_s)
        totals = partial(Totals, 20 * now_s, 2.0 * now_s)
        event = scaling.follow(living, totals, lambda _, __, count: lambda other: other / count, now_s)
        if event is not None:
            assert event.event == "workers_scaled"
            events.append((now_s, dict(event.fields)))
    return events


def test_numbers_follow_what_is_measured(a_world: Callable[..., World]) -> None:
    scaling = ReplicaScaling(a_world().job.model_copy(update={"scale": AutoScale(max=4)}))
    ((at_s, fields),) = followed(scaling, range(90))
    assert 40 <= at_s < 45
    assert scaling.wanted == 4
    assert (fields["from"], fields["to"], fields["why"], fields["factor"]) == (2, 4, "more", 2.0)
    assert fields["samples_per_s"] == pytest.approx(20.0)


def test_numbers_follow_nothing_without_launcher_or_wish(
    scaling: ReplicaScaling, a_world: Callable[..., World]
) -> None:
    assert followed(scaling, range(90)) == []
    alone = ReplicaScaling(a_world().job.model_copy(update={"scale": AutoScale(max=4)}))
    for now_s in range(90):
        assert alone.follow(2, lambda: Totals(1, 1.0), lambda *_: None, now_s) is None
    assert alone.auto is None


def test_after_a_takeover_the_replicas_that_there_are_count(a_world: Callable[..., World]) -> None:
    scaling = ReplicaScaling(a_world().job.model_copy(update={"scale": AutoScale(max=4)}))
    followed(scaling, range(10), living=3)
    assert scaling.auto is not None
    assert scaling.auto.count == 3


def test_a_number_by_hand_is_what_is_measured_next(a_world: Callable[..., World]) -> None:
    scaling = ReplicaScaling(a_world().job.model_copy(update={"scale": AutoScale(max=4)}))
    followed(scaling, range(30))
    scaling.request(3, State.READY, 30.0)
    assert followed(scaling, range(30, 80)) == []
    assert scaling.auto is not None
    assert scaling.auto.count == 3
