"""Numbers at chosen positions over gRPC: pulled, and pushed as bundles, exactly once in every segment."""

from __future__ import annotations

import numpy as np
import pytest

from dbelief.core.push import Push
from dbelief.errors import Rejected
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire.convert import push_to_wire
from dbelief.sparse.table import pack
from tests.ps_server.servers import A, B, Job, status

pytestmark = pytest.mark.processes

BUNDLE = Push(A, 0, samples=5, vector="accrued", clock=1, bundle=1, packed=True)


def assigned(job: Job) -> np.ndarray:
    """Different numbers under the name "trial"."""
    values = np.random.default_rng(3).standard_normal(job.placement.size, dtype=np.float32)
    job.client(A).push(values, job.held(), Push(A, 1, vector="trial", assign=True))
    return values


WAYS = {"memory": (True, False), "direct": (False, True), "gRPC": (False, False)}
"""Whether a client shares memory, and whether it uses direct streams."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [0, 1, 60, 317])
def test_numbers_are_read_by_their_positions(job: Job, count: int, way: str) -> None:
    values = assigned(job)
    positions = np.sort(np.random.default_rng(count).choice(job.placement.size, count, replace=False))
    shares, direct = WAYS[way]
    client = job.client(A, direct=direct, shares_memory=shares)
    np.testing.assert_array_equal(client.pull_at(positions, "trial"), values[positions])
    assert (client.received, client.shared_received) == ((0, 4 * count) if shares else (4 * count, 0))


@pytest.mark.parametrize("way", WAYS)
def test_a_packed_bundle_counts_once_in_every_segment(job: Job, way: str) -> None:
    positions, expected = np.array([0, 7, 8, 100, 316]), job.full(0.0).astype(np.float64)
    values = np.array([1, -2, 3, 0.1, 5], np.float32)
    expected[positions] = values
    for pusher in (A, B):
        shares, direct = WAYS[way]
        client = job.client(pusher, direct=direct, shares_memory=shares)
        pushed = client.push_at(positions, values, job.held(0), BUNDLE)
        assert pushed.duplicates == (0 if pusher is A else 40)
        sent = 12 * len(positions)
        assert (client.sent, client.shared_sent) == ((0, sent) if shares else (sent, 0))
    whole = job.full(1.0)
    job.client(A).push(whole, job.held(0), Push(A, 0, vector="accrued", clock=1, bundle=2))
    np.testing.assert_array_equal(job.read("accrued"), (expected + 1).astype(np.float32))


def test_what_is_not_there_is_refused(job: Job) -> None:
    client = job.client(A)
    with pytest.raises(Rejected, match="segment 0: no vector 'trial' yet"):
        client.pull_at(np.array([1]), "trial")
    for keys in ([8], [-1, 2]):
        rows = [wire.RowKeys(segment=0, keys=np.array(keys).tobytes())]
        _, why = status(lambda rows=rows: job.pulled(0, rows=rows))  # type: ignore[misc]
        assert why.endswith("segment 0: positions outside of its 8 numbers")


@pytest.mark.parametrize(
    ("push", "codec", "why"),
    [
        (BUNDLE, segments.CODEC_BF16, "packed numbers in codec 3; they are not encoded"),
        (Push(A, 1, packed=True), segments.CODEC_FP32, "packed numbers in a push that is no bundle"),
    ],
)
def test_invalid_packed_push_is_refused(job: Job, push: Push, codec: segments.Codec.ValueType, why: str) -> None:
    opening = wire.PushRequest(opening=push_to_wire(push, job.target(), job.rule))
    data = pack(np.array([1]), np.ones(1, np.float32)).tobytes()
    part = wire.PushRequest(segments=[segments.Segment(index=0, length=3, data=data, codec=codec)])
    assert why in status(lambda: list(job.stubs[0].Push(iter([opening, part]))))[1]
