"""bf16 pulls as differences: real clients and shards, and the bits of plain bf16 pulls, whatever happens between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.codec import bfloat16_difference
from dbelief.codec.bfloat16 import BFloat16
from dbelief.core.layout import make_segments
from dbelief.core.placement import Fetch
from dbelief.core.push import Push, Pusher
from dbelief.errors import Rejected
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk
from dbelief.rpc.wire.payloads import Codecs
from ps_server.rpc.servicer import ShardService
from tests.ps_server.replication.chained import Chained
from tests.ps_server.replication.test_migration import give, hold, moved
from tests.ps_server.servers import A, B, Job, status

pytestmark = pytest.mark.processes

ONE, SMALL = np.float32(1), np.float32(2.0**-8)
LENGTH = 600
SPANS = make_segments([(0, 10 * LENGTH)], LENGTH)
PLAIN, DIFFERENCES = Codecs(None, BFloat16()), Codecs(None, BFloat16(), differences=True)


class Counted:
    """Differences of `LENGTH` numbers that clients have decoded, and the bytes of these."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found = self.nbytes = 0
        whole = bfloat16_difference.decode

        def decode(payload: memoryview, before: np.ndarray, *others: Any) -> None:
            whole(payload, before, *others)
            if before.size == LENGTH:  # else a warm-up
                self.found, self.nbytes = self.found + 1, self.nbytes + payload.nbytes

        monkeypatch.setattr(bfloat16_difference, "decode", decode)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


class Replicas:
    """Some replicas with differences beside one without, and a pusher of small steps."""

    def __init__(self, job: Job, seed: int, count: int = 3) -> None:
        self.job, self.rng, self.number = job, np.random.default_rng(seed), 0
        self.clients = [self.made() for _ in range(count)]
        self.held = [(job.full(np.nan), job.held()) for _ in range(count)]
        self.plain = job.client(B, codecs=PLAIN, refresh=lambda: job.placement)
        self.push(ONE)

    def made(self) -> ShardedParameterClient:
        direct = bool(self.rng.integers(2))
        return self.job.client(B, codecs=DIFFERENCES, refresh=lambda: self.job.placement, direct=direct)

    def push(self, rate: np.float32 = SMALL, fetch: Fetch | None = None, by: int = 0) -> None:
        """One more push of A; replica `by` sends it."""
        self.number += 1
        values = self.rng.standard_normal(self.job.placement.size, dtype=np.float32)
        self.clients[by].push(values, self.job.held(0), Push(A, self.number, rate), fetch)

    def wanted(self) -> np.ndarray:
        out = self.job.full(np.nan)
        self.plain.pull(out, self.job.held())
        return out

    def pull(self, number: int, forgets: bool = False) -> None:
        """Replica `number` pulls: what is newer, or all, where it `forgets` and has changed its own."""
        out, versions = self.held[number]
        if forgets:
            out[:], versions[:] = self.rng.standard_normal(out.size), -1
        self.clients[number].pull(out, versions)
        np.testing.assert_array_equal(out.view(np.uint32), self.wanted().view(np.uint32))

    def fetch(self, number: int) -> None:
        """Replica `number` pushes and fetches at once."""
        out, versions = self.held[number]
        self.push(fetch=Fetch(out, versions), by=number)
        np.testing.assert_array_equal(out.view(np.uint32), self.wanted().view(np.uint32))

    def restarted(self, number: int) -> None:
        """Replica `number` is another process."""
        self.clients[number] = self.made()
        self.held[number] = self.job.full(np.nan), self.job.held()

    def shard_restarts(self, number: int, folder: Path) -> None:
        self.job.snapshot(folder)
        self.job.restart(number, folder)
        self.job.configure(number, ready=True)

    def segments_move(self) -> None:
        job, source = self.job, int(self.rng.integers(2))
        held = list(job.placement.places[source].segments)
        going = sorted(self.rng.choice(held, min(len(held), 3), replace=False).tolist())
        give(job, source, 1 - source, going)
        after = moved(job.placement, source, 1 - source, going)
        hold(job, 1 - source, list(after.places[1 - source].segments))
        job.placement = after
        hold(job, source, list(after.places[source].segments))


@pytest.mark.parametrize("seed", range(2))
def test_any_schedule_brings_the_bits_of_bf16(
    start: Callable[..., Job], counted: Counted, tmp_path: Path, seed: int
) -> None:
    job = start(spans=SPANS, differences=True)
    replicas = Replicas(job, seed)
    rng = replicas.rng
    kinds = rng.permutation(["push"] * 15 + ["pull"] * 25 + ["fetch"] * 15 + ["replica"] * 3 + ["move"] * 4 + ["shard"])
    for turn, kind in enumerate(kinds):
        number = int(rng.integers(3))
        if kind == "push":
            replicas.push()
        elif kind == "pull":
            replicas.pull(number, forgets=bool(rng.integers(2)))
        elif kind == "fetch":
            replicas.fetch(number)
        elif kind == "replica":
            replicas.restarted(number)
        elif kind == "move":
            replicas.segments_move()
        else:
            replicas.shard_restarts(number % 2, tmp_path / str(turn))
    for number in range(3):
        replicas.pull(number)
    assert counted.found > 20


@pytest.mark.parametrize("fetches", [True, False])
def test_a_round_brings_a_difference_to_each(start: Callable[..., Job], counted: Counted, fetches: bool) -> None:
    """Replicas that fetch every version get one after the other's; what is kept is bounded."""
    job = start(spans=SPANS, differences=True)
    replicas = Replicas(job, 5)
    for number in range(3):
        replicas.pull(number)
    assert counted.found == 0
    before = replicas.clients[2].received
    for round_ in range(4):
        replicas.fetch(0) if fetches else replicas.push()
        for number in range(fetches, 3):
            replicas.pull(number)
        assert counted.found == (round_ + 1) * 3 * len(SPANS)
    assert counted.nbytes / counted.found < 0.75 * 2 * LENGTH
    assert replicas.clients[2].received - before == counted.nbytes // 3
    kept = [service.controller.require_shard().pulled for service in job.services]
    assert 0 < sum(one.nbytes for one in kept if one is not None) < 4 * job.placement.size


def test_a_follower_that_was_promoted_begins_without(counted: Counted) -> None:
    with closing(Chained(spans=SPANS, differences=True)) as job:
        replicas = Replicas(job, 6)
        for _ in range(2):
            replicas.fetch(0)
            replicas.pull(1)
        assert counted.found
        job.whole(0)
        job.services[0].end_socket_streams()
        job.promote(0)
        counted.found = 0
        replicas.fetch(0)  # by bf16 from the one, and a difference from the other shard
        replicas.pull(1)
        assert counted.found == 2 * len(job.placement.run(job.placement.places[1]))
        replicas.fetch(0)
        replicas.pull(1)
        assert counted.found == 2 * len(job.placement.run(job.placement.places[1])) + 2 * len(SPANS)


@pytest.mark.parametrize("shards", [True, False])
def test_either_side_may_do_without(start: Callable[..., Job], counted: Counted, shards: bool) -> None:
    job = start(spans=SPANS, differences=shards)
    replicas = Replicas(job, 7)
    if shards:
        replicas.clients = [replicas.plain] * 3
    for _ in range(3):
        replicas.fetch(0)
        replicas.pull(1)
    assert counted.found == 0


def test_other_pulls_are_what_they_were(start: Callable[..., Job], counted: Counted) -> None:
    """Exact ones, and of other vectors."""
    job = start(spans=SPANS, differences=True)
    replicas, out = Replicas(job, 8), job.full(np.nan)
    client = replicas.clients[0]
    for _ in range(2):
        replicas.push()
        client.pull(out, job.held(), exact=True)
        np.testing.assert_array_equal(out, job.read())
    values = replicas.rng.standard_normal(out.size, dtype=np.float32)
    client.push(values, job.held(0), Push(B, 1, vector="best.0", assign=True))
    for _ in range(2):
        client.pull(out, job.held(), vector="best.0")
        job.client(B, codecs=PLAIN).pull(values, job.held(), vector="best.0")
        np.testing.assert_array_equal(out, values)
    assert counted.found == 0


def test_a_stream_that_breaks_goes_on_from_the_same(
    start: Callable[..., Job], counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some segments of a reply, whose difference the replica has used; the others come again."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)  # a message for each segment
    breaks = [False]

    def fails(service: ShardService) -> None:
        whole = service.Pull

        def pull(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            for sent, reply in enumerate(whole(requests, context)):
                if breaks[0] and sent % 5 == 2:
                    breaks[0] = False
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the network went away")
                yield reply

        service.Pull = pull  # type: ignore[method-assign]

    job = start(spans=SPANS, differences=True, prepare=fails)
    replicas = Replicas(job, 9, count=1)
    client = replicas.clients[0] = job.client(B, codecs=DIFFERENCES, refresh=lambda: job.placement)
    replicas.pull(0)
    for _ in range(3):
        replicas.push()
        breaks[0] = True
        out, versions = replicas.held[0]
        client.pull(out, versions)
        assert not breaks[0]
        np.testing.assert_array_equal(out, replicas.wanted())
    assert counted.found == 3 * len(SPANS)


def test_threads_of_a_replica_share_what_was_received(start: Callable[..., Job], counted: Counted) -> None:
    """Pulls of two threads, while another replica pushes: each segment has the numbers of its version."""
    job = start(spans=SPANS, differences=True)
    replicas = Replicas(job, 11, count=1)
    client, over, found = replicas.clients[0], threading.Event(), list[tuple[np.ndarray, np.ndarray]]()

    def pulls() -> None:
        while not over.is_set():
            out, versions = job.full(np.nan), job.held()
            client.pull(out, versions)
            found.append((out, versions))

    numbers = {replicas.number: replicas.wanted()}
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(pulls) for _ in range(2)]
        try:
            for _ in range(40):
                replicas.push()
                numbers[replicas.number] = replicas.wanted()
        finally:
            over.set()
        for one in running:
            one.result(60)
    assert counted.found
    for out, versions in found:
        for span, version in zip(SPANS, versions.tolist(), strict=True):
            np.testing.assert_array_equal(out[span.start : span.stop], numbers[version][span.start : span.stop])


@pytest.mark.parametrize(
    ("bases", "why"),
    [
        ([1], "1 versions in bf16 for 2 segments"),
        ([1, 1, 1], "3 versions in bf16 for 2 segments"),
        ([1, 2**64 - 1], ""),
    ],
)
def test_versions_are_checked(start: Callable[..., Job], bases: list[int], why: str) -> None:
    job = start(spans=SPANS, differences=True)
    request = {"segments": [0, 1], "codec": segments.CODEC_BF16, "bases": bases}
    if not why:  # of a version that nobody has
        assert [part.codec for part in job.pulled(0, **request)] == 2 * [segments.CODEC_BF16]
        return
    code, told = status(lambda: job.pulled(0, **request))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert why in told


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"data": memoryview(b"123")}, r"segment 0: 3 bytes are not 600 differences in blocks"),
        ({"data": memoryview(bytes(700))}, r"segment 0: a difference from version 0, and those before are version 1"),
        ({"length": 599}, r"segment 0 of 599 numbers, not 600"),
    ],
)
def test_an_answer_that_is_none_is_refused(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], why: str
) -> None:
    job = start(spans=SPANS, differences=True)
    replicas = Replicas(job, 10, count=1)
    replicas.pull(0)
    whole = bulk.decode

    def decode(message: bytes) -> Any:
        opening, parts = whole(message)
        for part in parts:
            part.codec = segments.CODEC_BF16_DIFFERENCE
            for name, value in changed.items():
                setattr(part, name, value)
        return opening, parts

    replicas.push()
    monkeypatch.setattr(bulk, "decode", decode)
    with pytest.raises(Rejected, match=rf"^pull: shard 0 at .*: {why}"):
        replicas.clients[0].pull(*replicas.held[0])
    with pytest.raises(Rejected, match=r"segment 0: payload 9 is not one that is read here|segment 0 of 599"):
        job.client(Pusher(3, 13), codecs=DIFFERENCES).pull(job.full(0.0), job.held())
