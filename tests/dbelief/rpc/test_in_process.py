"""The twin of the gRPC client over shards of this process; and that the number of shards changes no bit."""

from collections.abc import Callable

import numpy as np
import pytest

from dbelief.core.layout import assign_segments, make_segments
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected, Unavailable
from dbelief.optim import make_rule
from dbelief.rpc.in_process import InProcessParameters
from ps_server.store.shard import Shard

N, NOMINAL = 2_300, 256
SEGMENTS = 9
A, B, C = Pusher(0, 11), Pusher(1, 12), Pusher(2, 13)
Together = Callable[..., InProcessParameters]


@pytest.fixture
def together() -> Together:
    """Give together(shards, rule, staleness, initial): a job whose initial values are there."""

    def make(
        shards: int = 2, rule: str = "sgd", staleness: int | None = None, initial: np.ndarray | None = None
    ) -> InProcessParameters:
        spans = tuple(make_segments([(0, N)], NOMINAL))
        runs = assign_segments(spans, shards)
        places = tuple(ShardPlacement(number, "", 1, (run,)) for number, run in enumerate(runs))
        placement = Placement(1, spans, places)
        made = [Shard(placement.run(place), make_rule(rule, {}), staleness) for place in places]
        parameters = InProcessParameters(made, placement, timeout_s=60.0)
        values = np.zeros(N, np.float32) if initial is None else initial
        parameters.push(values, nothing_held(), Push(Pusher(9, 99), 1, assign=True))
        for shard in made:
            shard.make_ready()
        return parameters

    return make


def nothing_held() -> np.ndarray:
    return np.full(SEGMENTS, -1, np.int64)


def pulled(parameters: InProcessParameters, clock: int = 0) -> np.ndarray:
    out, versions = np.empty(N, np.float32), nothing_held()
    parameters.pull(out, versions, clock=clock)
    return out


def normal(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, N), dtype=np.float32)


def test_only_newer_segments_are_written(together: Together) -> None:
    parameters = together(3)
    out, versions = np.full(N, 7.0, np.float32), np.zeros(SEGMENTS, np.int64)
    parameters.pull(out, versions)
    assert np.all(out == 7)  # all of version 0 was held
    versions[4] = -1
    parameters.pull(out, versions)
    span = parameters.placement.spans[4]
    assert np.all(out[span.start : span.stop] == 0)
    assert np.count_nonzero(out == 0) == span.length


def test_push_reports_staleness_duplicates_and_losses(together: Together) -> None:
    parameters, ones = together(3), np.ones(N, np.float32)
    push = Push(A, 1, np.float32(1))
    first = parameters.push(ones, np.zeros(SEGMENTS, np.int64), push)
    assert (first.staleness, first.duplicates, first.lost) == (0, 0, 0)
    again = parameters.push(ones, np.zeros(SEGMENTS, np.int64), push)
    assert (again.staleness, again.duplicates) == (0, SEGMENTS)
    versions = np.ones(SEGMENTS, np.int64)
    versions[:3] = 0
    late = parameters.push(ones, versions, Push(B, 1, np.float32(1)))
    assert late.staleness == pytest.approx(3 / SEGMENTS)
    assert parameters.push(ones, versions, Push(C, 5, np.float32(1), base=5)).lost == 4
    np.testing.assert_array_equal(pulled(parameters), -3 * ones)


def test_named_vectors_go_the_same_way(together: Together) -> None:
    parameters = together(10)
    best = normal(2, 1)[0]
    parameters.push(best, nothing_held(), Push(A, 1, vector="best.0", assign=True))
    out = np.empty(N, np.float32)
    parameters.pull(out, nothing_held(), vector="best.0")
    assert out.tobytes() == best.tobytes()
    assert not pulled(parameters).any()
    with pytest.raises(Rejected, match=r"segment 0: no vector 'best\.1'"):
        parameters.pull(out, nothing_held(), vector="best.1")


def test_incomplete_round_times_out_with_its_name(together: Together) -> None:
    parameters = together(2, staleness=0)
    for shard in parameters.shards:
        assert isinstance(shard, Shard)
        shard.set_membership(1, [(0, [0, 1, 2])])
    parameters.timeout_s = 0.0
    with pytest.raises(Unavailable, match=r"segment 3: round 0 still waits for replicas \[1, 2\]"):
        parameters.push(np.ones(N, np.float32), nothing_held(), Push(A, 1, np.float32(1)))
    with pytest.raises(Unavailable, match="round 0"):
        pulled(parameters, clock=1)
    assert not pulled(parameters, clock=0).any()
