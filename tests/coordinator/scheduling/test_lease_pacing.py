"""Requests for leases do not grow with the replicas, and all replicas end at about the same time."""

from __future__ import annotations

import heapq

import pytest

from coordinator.core.messages import WorkRequest
from coordinator.core.warm_start import WarmStart
from coordinator.scheduling.free_running import FreeRunningPolicy
from coordinator.scheduling.lease_pacing import LeasePacing
from coordinator.scheduling.leases import Leases
from dbelief.job.lease_size import FEW, LEASES_PER_S

SIZE = 40


def trained(replicas: int, samples_per_s: float, total: int) -> tuple[list[float], list[float]]:
    """Replicas, every third of them half as fast, train it all: times of the requests, and of the replicas' ends."""
    leases = Leases(total, total, SIZE, 10)
    policy = FreeRunningPolicy(leases, WarmStart(), LeasePacing(SIZE))
    living, done = range(replicas), [(0, 0)] * replicas
    requests_s, ends_s, covered = list[float](), list[float](), list[tuple[int, int]]()
    due = [(0.001 * replica, replica) for replica in living]
    while due:
        now_s, replica = heapq.heappop(due)
        leases.acknowledge(replica, *done[replica])
        request = WorkRequest(replica, replica, last_lease=done[replica][0])
        assert policy.held(request) is None
        lease = policy.request_lease(request, living, now_s)
        if lease is None:
            ends_s.append(now_s)
            continue
        requests_s.append(now_s)
        covered.append((lease.start, lease.stop))
        done[replica] = lease.id, lease.samples
        speed = samples_per_s / 2 if replica % 3 == 0 else samples_per_s
        heapq.heappush(due, (now_s + lease.samples / speed, replica))
    covered.sort()
    assert [start for start, _ in covered] == [0, *(stop for _, stop in covered[:-1])]
    assert covered[-1][1] == total
    return requests_s, ends_s


@pytest.mark.parametrize("replicas", [64, 256, 1000])
def test_many_replicas_together_request_a_hundred_leases_a_second(replicas: int) -> None:
    seconds = 300
    requests_s, ends_s = trained(replicas, 10_000.0, round(replicas * 10_000 * 5 / 6) * seconds)
    steady = [at_s for at_s in requests_s if 60 <= at_s < 120]
    assert 0.5 * LEASES_PER_S < len(steady) / 60 < 1.5 * LEASES_PER_S
    assert max(ends_s) - min(ends_s) < 0.05 * seconds, "the last leases are small"


def test_few_replicas_have_leases_of_one_size() -> None:
    requests_s, _ = trained(FEW, 10_000.0, 100 * FEW * SIZE)
    assert len(requests_s) == 100 * FEW


def test_slow_replicas_have_leases_of_the_jobs_size() -> None:
    requests_s, _ = trained(200, 5.0, 200 * 10 * SIZE)
    assert len(requests_s) == 200 * 10
