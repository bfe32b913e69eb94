"""Which node gets which member, and what a lost node changes."""

from __future__ import annotations

import pytest

from dbelief.launch.places import Places

NODES = ["n1", "n2", "n3"]


def _placed(tasks: dict[str, int], shards: int, workers: int) -> tuple[Places, list[str], list[str]]:
    """With the coordinator on the first node."""
    places, nodes = Places(tasks), list(tasks)
    places.put("coordinator", "coordinator", nodes[:1])
    put = [places.put("ps", f"ps-{n}", nodes) for n in range(shards)]
    return places, put, [places.put("worker", f"worker-{n}", nodes) for n in range(workers)]


@pytest.mark.parametrize(
    ("tasks", "shards", "workers"),
    [
        ({"n1": 1, "n2": 1, "n3": 1}, ["n2"], ["n3"]),
        ({"n1": 2, "n2": 2}, ["n2"], ["n1", "n2"]),
        ({"n1": 1, "n2": 1}, ["n2"], ["n1"]),  # more members than tasks
        ({"n1": 2, "n2": 2, "n3": 1}, ["n2", "n3"], ["n1", "n2"]),
        ({"n1": 8}, ["n1", "n1"], ["n1"] * 5),
        ({"n1": 1, "n2": 6}, ["n2"], ["n2"] * 5),  # unequal nodes are filled alike
    ],
)
def test_shards_are_spread_and_workers_fill_up(tasks: dict[str, int], shards: list[str], workers: list[str]) -> None:
    assert _placed(tasks, len(shards), len(workers))[1:] == (shards, workers)


def test_a_shard_whose_node_is_lost_goes_to_another() -> None:
    places, shards, _ = _placed(dict.fromkeys(NODES, 2), 1, 3)
    assert shards == ["n2"]
    places.failed("n2")
    assert places.again("ps", "ps-0", ["n1", "n3"])
    assert places.put("ps", "ps-0", ["n1", "n3"]) in ("n1", "n3")


def test_worker_stays_on_its_node_without_a_free_task() -> None:
    places, _, workers = _placed(dict.fromkeys(NODES, 2), 2, 3)
    assert workers == ["n1", "n2", "n3"]
    places.failed("n3")
    assert places.put("worker", "worker-2", NODES) == "n3"
    assert not places.again("worker", "worker-2", ["n1", "n2"])


def test_a_lost_workers_place_is_a_free_task() -> None:
    places, _, workers = _placed({"n1": 3, "n2": 2}, 1, 2)
    assert workers == ["n1", "n2"]
    assert places.again("worker", "worker-1", ["n1"])
    assert places.put("worker", "worker-1", ["n1"]) == "n1"


def test_member_excluded_from_the_first_node_needs_another() -> None:
    places = Places({"n2": 1, "n3": 1})
    assert places.put("guard", "guard", NODES) == "n2"
    assert places.again("guard", "guard", ["n1", "n3"])
    assert not places.again("guard", "guard", ["n1"])
