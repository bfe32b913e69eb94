"""All-reduce traffic as workers report it, combined."""

from __future__ import annotations

from coordinator.monitoring.allreduce_traffic import GroupTraffic
from dbelief.job import Reduction
from dbelief.rpc.pb import coordination_pb2 as wire


def part(rank: int, generation: int = 1, steps: int = 3, ranks: int = 2) -> tuple[int, wire.Traffic]:
    received = [wire.PeerTraffic(rank=1 - rank, messages=steps, bytes=100 * steps, seconds=0.5)]
    return 7 + rank, wire.Traffic(generation=generation, rank=rank, ranks=ranks, steps=steps, received=received)


def test_traffic_is_complete_after_all_workers_reported() -> None:
    traffic = GroupTraffic(Reduction(way="ring"))
    assert traffic.record(*part(1)) is None
    known = traffic.record(*part(0))
    assert known == {
        "generation": 1,
        "way": "ring",
        "arity": None,
        "chunk": None,
        "wire": None,
        "workers": [{"replica": 7, "steps": 3}, {"replica": 8, "steps": 3}],
        "edges": [
            {"to": 0, "source": 1, "messages": 3, "bytes": 300, "seconds": 0.5},
            {"to": 1, "source": 0, "messages": 3, "bytes": 300, "seconds": 0.5},
        ],
    }
    again = traffic.record(*part(0, steps=5))
    assert again is not None, "later totals take the place of earlier ones"
    assert [worker["steps"] for worker in again["workers"]] == [5, 3]


def test_another_generation_begins_anew() -> None:
    traffic = GroupTraffic(Reduction())
    traffic.record(*part(0))
    assert traffic.record(*part(1, generation=2)) is None
    assert traffic.record(*part(0)) is None, "of an earlier one nothing is heard any more"
    known = traffic.record(*part(0, generation=2))
    assert known is not None
    assert known["generation"] == 2
