"""Segments through shared memory: the same numbers as over TCP, also after failures."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbelief.core.layout import SegmentSpan, make_segments
from dbelief.core.placement import ShardPlacement
from dbelief.core.push import Push, Pusher
from dbelief.errors import Deposed, Moved, Rejected, Unavailable
from dbelief.rpc.client.shard_call import PullCall
from dbelief.rpc.client.upload_call import ExchangeCall, PushCall
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb.segments_pb2 import SharedArray
from dbelief.rpc.server.local_streams import LocalStreams
from dbelief.rpc.wire import bulk, frames
from dbelief.security.named_socket import FOLDER
from ps_server.rpc.exchange import ExchangeHandler
from ps_server.rpc.servicer import ShardService
from ps_server.rpc.shared_memory import BlockView
from ps_server.store.segment import Segment
from ps_server.store.shard import Shard
from tests.examples import examples
from tests.ps_server.servers import A, B, Job, wait_until

pytestmark = pytest.mark.processes


def nothing_left() -> bool:
    """Other tests' blocks have names for a moment too."""
    return not list(FOLDER.glob("dbelief-*"))


def through(job: Job) -> float:
    return sum(job.counted("shared_bytes_total", direction=way) for way in ("sent", "received"))


# -- the same numbers ----------------------------------------------------------------------------------------

tables = st.builds(
    lambda lengths, nominal: tuple(make_segments(list(ranges(lengths)), nominal)),
    st.lists(st.integers(1, 4_000), min_size=1, max_size=3),
    st.sampled_from([7, 300, 5_000]),
)
steps = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["pull", "push", "both"])), min_size=1, max_size=8)


def ranges(lengths: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for length in lengths:
        yield start, start + length
        start += length


def trained(spans: Any, rule: str, part: tuple[int, int], orders: Any, seed: int, shared: bool) -> list[np.ndarray]:
    """All that two pushers of a part see, and what the shards hold then."""
    job = Job(spans=spans, rule=rule)
    try:
        size, rng, seen = part[1] - part[0], np.random.default_rng(seed), []
        pushers = [job.client(pusher, part=part, shares_memory=shared) for pusher in (A, B)]
        arrays = [(client.array(size), client.array(size), job.held()) for client in pushers]
        numbers = {A: 0, B: 0}
        for who, what in orders:
            client, pusher, (out, values, versions) = pushers[who], (A, B)[who], arrays[who]
            if what != "push":
                client.pull(out, versions)
                seen += [out.copy(), versions.copy()]
            if what != "pull":
                values[:] = rng.standard_normal(size)
                numbers[pusher] += 1
                push = Push(pusher, numbers[pusher], np.float32(0.5))
                if rule == "elastic":
                    seen.append(np.array([client.exchange(values, out, versions, push).staleness]))
                    seen += [out.copy(), versions.copy()]
                else:
                    seen.append(np.array([client.push(values, versions, push).staleness]))
        assert (through(job) > 0) == shared
        told = [client.figures() for client in pushers]
        assert sum(one.shared_sent + one.shared_received for one in told) == through(job)
        assert (sum(one.sent + one.received for one in told) == 0) == shared
        return [*seen, job.read()]
    finally:
        job.close()


@examples(15)
@given(tables, st.sampled_from(["sgd", "adagrad", "elastic"]), st.data(), steps, st.integers(0, 9))
def test_shared_memory_matches_tcp_bit_for_bit(
    spans: Any, rule: str, data: st.DataObject, orders: Any, seed: int
) -> None:
    starts = [span.start for span in spans]
    first = data.draw(st.sampled_from(starts))
    last = data.draw(st.sampled_from([span.stop for span in spans if span.stop > first]))
    here, there = (trained(spans, rule, (first, last), orders, seed, shared) for shared in (True, False))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, other)
    wait_until(nothing_left)


def test_a_large_push_is_acknowledged_on_the_way(start: Callable[..., Job]) -> None:
    job = start(spans=tuple(make_segments([(0, 40 << 18)], 1 << 18)))
    client = job.client(A)
    values, out = client.array(job.placement.size), client.array(job.placement.size)
    values[:] = np.arange(values.size) % 1000
    client.push(values, job.held(), Push(A, 1, np.float32(1)))
    client.pull(out, job.held())
    np.testing.assert_array_equal(out, -values)
    assert job.counted("shared_bytes_total", direction="received") == values.nbytes
    assert job.counted("shared_bytes_total", direction="sent") == values.nbytes


def test_messages_of_an_exchange_are_limited(start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes could name every segment of a shard, more than it caches answers to."""
    job = start(spans=tuple(make_segments([(0, 18 << 18)], 1 << 18)), rule="elastic")
    client, versions = job.client(A), job.held()
    values, out = client.array(job.placement.size), client.array(job.placement.size)
    values[:] = 1.0
    client.exchange(values, out, versions, Push(A, 1, np.float32(0.5)))
    monkeypatch.setattr(ExchangeCall, "_shared_groups", PushCall._shared_groups)
    with pytest.raises(Rejected, match=r"segments \d to \d in one message, whose answer is to be kept"):
        client.exchange(values, out, versions, Push(A, 2, np.float32(0.5)))
    np.testing.assert_array_equal(job.read(), 0.5)


def test_arrays_from_elsewhere_go_over_tcp(job: Job) -> None:
    client = job.client(A)
    out, versions, shared = job.full(np.nan), job.held(), client.array(job.placement.size)
    client.pull(out, versions)
    client.push(job.full(1.0), versions, Push(A, 1, np.float32(1)))
    assert through(job) == 0
    client.pull(shared, versions)
    assert through(job) > 0


# -- who shares ----------------------------------------------------------------------------------------------


def told(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capfd.readouterr().err.splitlines() if "memory" in line]


@pytest.mark.parametrize("shards", [(0,), (0, 1)])
def test_shards_that_share_no_memory_get_tcp(
    start: Callable[..., Job], shards: tuple[int, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    deaf = iter([number in shards for number in range(2)])

    def prepare(service: ShardService) -> None:
        service._attached._allowed = not next(deaf)

    job = start(prepare=prepare)
    client = job.client(A)
    values = client.array(job.placement.size)
    values[:] = 1.0
    client.push(values, job.held(), Push(A, 1, np.float32(1)))
    client.pull(values, job.held())
    np.testing.assert_array_equal(values, -1.0)
    for number, metrics in enumerate(job.metrics):
        assert (metrics.value("shared_bytes_total", direction="sent") == 0) == (number in shards)
    assert told(capfd) == ([] if len(shards) == 2 else ["shares memory with shard 1"])


def test_calls_with_shared_arrays_go_over_one_local_stream_each(job: Job) -> None:
    client = job.client(A)
    out, values, versions = client.array(job.placement.size), client.array(job.placement.size), job.held()
    for sequence in (1, 2, 3):
        client.pull(out, versions)
        client.push(values, versions, Push(A, sequence, np.float32(1)))
    assert [service._local._open for service in job.services] == [2, 2]
    client.pull(job.full(np.nan), versions)
    assert [service._local._open for service in job.services] == [2, 2], "an array from elsewhere goes over gRPC"
    client.close()
    wait_until(lambda: [service._local._open for service in job.services] == [0, 0])


def test_shards_that_open_no_local_stream_get_messages_over_grpc(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an earlier version of a shard: asked for a stream, it attaches no block."""
    asked = []

    def refuses(*words: Any) -> None:
        asked.append(words)
        raise Rejected("there are none")

    monkeypatch.setattr(LocalStreams, "_begin", refuses)
    client = job.client(A)
    values = client.array(job.placement.size)
    values[:] = 1.0
    for sequence in (1, 2):
        client.push(values, job.held(), Push(A, sequence, np.float32(1)))
    client.pull(values, job.held())
    np.testing.assert_array_equal(values, -2.0)
    assert through(job) == 3 * values.nbytes
    assert len(asked) == 2, "each shard once"


def test_a_refused_local_stream_leaves_those_that_are_open(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    client = job.client(A)
    values = client.array(job.placement.size)
    client.pull(values, job.held())
    monkeypatch.setattr("dbelief.rpc.server.local_streams.MOST_OF_CLIENT", 1)
    client.push(values, job.held(), Push(A, 1, np.float32(1)))
    used = [next(iter(peer.streams["Pull"])) for peer in client._sharing._peers.values()]
    client.pull(values, job.held())
    assert [peer.streams["Pull"] for peer in client._sharing._peers.values()] == [[stream] for stream in used]
    assert through(job) == 3 * values.nbytes


def test_a_shard_that_does_not_answer_gets_no_reference(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has detached all blocks with the stream that ended."""

    def fails(*words: Any) -> None:
        raise MemoryError("none is left")

    client = job.client(A)
    values = client.array(job.placement.size)
    client.pull(values, job.held())
    for service in job.services:
        monkeypatch.setattr(service._local, "_begin", fails)
    client.push(values, job.held(), Push(A, 1, np.float32(1)))
    assert client.retries == 0
    assert through(job) == values.nbytes


def test_a_pull_of_very_many_segments_is_several_requests(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, versions = ShardPlacement(0, "127.0.0.1:1", 1, ((0, 2_048),)), np.full(1 << 17, np.iinfo(np.int64).max)
    run = [SegmentSpan(number, number, 1) for number in range((1 << 17) - 2_048, 1 << 17)]
    call = PullCall("a job's name", place, run, np.empty(0, np.float32), versions, "best.1")
    call.share([SharedArray(block=32 * "a", offset=1 << 40, origin=1 << 40)])
    (request,) = call.requests()
    assert len(request) < frames.LARGEST, "what fits a request fits a packet"
    monkeypatch.setattr("dbelief.rpc.client.shard_call.MOST_REQUESTED", 3)
    job = start()
    client = job.client(A)
    values, versions = client.array(job.placement.size), job.held()
    values[:] = 1.0
    client.push(values, versions, Push(A, 1, np.float32(1)))
    for _ in range(2):
        client.pull(values, versions)
        np.testing.assert_array_equal(values, -1.0)


def test_a_local_stream_that_has_ended_while_idle_is_replaced(job: Job) -> None:
    client = job.client(A)
    values = client.array(job.placement.size)
    client.pull(values, job.held())
    peers = list(client._sharing._peers.values())
    for peer in peers:
        (stream,) = peer.streams["Pull"]
        stream.cancel()
    client.pull(values, job.held())
    assert all(len(peer.streams["Pull"]) == 1 for peer in peers)
    assert through(job) == 2 * values.nbytes


def test_a_worker_that_shares_no_memory_makes_no_block(job: Job) -> None:
    client = job.client(A, shares_memory=False)
    out = client.array(job.placement.size)
    client.pull(out, job.held())
    assert through(job) == 0
    assert client._sharing.find(out) is None


def test_unused_blocks_are_released_by_shards(job: Job) -> None:
    client = job.client(A)
    for _ in range(3):
        out = client.array(job.placement.size)
        client.pull(out, job.held())
    (blocks,) = job.services[0]._attached._peers.values()
    client.pull(out, job.held())
    (held,) = blocks.held.values()
    assert job.services[0]._attached._bytes == held.size == out.nbytes + 4096
    job.clients.pop().close()
    for service in job.services:
        wait_until(lambda service=service: not service._attached._peers)  # type: ignore[misc]
        assert service._attached._bytes == 0


def test_recovered_shard_attaches_memory_again(job: Job, tmp_path: Path) -> None:
    client = job.client(A, refresh=lambda: job.placement)
    out, versions = client.array(job.placement.size), job.held()
    client.pull(out, versions)
    job.snapshot(tmp_path)
    for here in (True, False):
        job.restart(0, tmp_path, here)
        job.configure(0, ready=True)
        out[:] = np.nan
        client.pull(out, job.held())  # begins with the life that is over, and comes to its end over TCP
        np.testing.assert_array_equal(out, 0.0)
        client.pull(out, job.held())
        assert job.services[0]._metrics.value("shared_bytes_total", direction="sent")
    wait_until(nothing_left)


# -- what breaks off -----------------------------------------------------------------------------------------


class Latch:
    """Holds the first handler that comes by, after `passed` others, until it is let go."""

    def __init__(self, passed: int = 0) -> None:
        self._left = passed
        self._lock = threading.Lock()
        self.held, self.free, self.gone = threading.Event(), threading.Event(), threading.Event()

    def around(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def held(*arguments: Any) -> Any:
            with self._lock:
                self._left -= 1
                mine = self._left == -1
            if not mine:
                return work(*arguments)
            self.held.set()
            assert self.free.wait(60)
            try:
                return work(*arguments)
            finally:
                self.gone.set()

        return held

    def let_go(self) -> None:
        """Have the handler do its work now, and wait until it has."""
        self.free.set()
        assert self.gone.wait(60)


@pytest.mark.parametrize("passed", [0, 7, 39])
def test_a_late_pull_writes_into_no_memory_that_is_in_use(
    job: Job, monkeypatch: pytest.MonkeyPatch, passed: int
) -> None:
    job.client(B).push(job.full(-5.0), job.held(), Push(B, 1, np.float32(1)))
    client = job.client(A, deadline_s=0.5)
    out, versions = client.array(job.placement.size), job.held()
    client.pull(out, versions)  # attaches
    versions[:] = -1
    wrote: list[np.ndarray] = []

    def put(area: BlockView, span: SegmentSpan, values: np.ndarray) -> None:
        wrote.append(area.of(span))
        original(area, span, values)

    latch, original = Latch(passed), BlockView.put
    monkeypatch.setattr(BlockView, "put", put)
    monkeypatch.setattr(Shard, "read", latch.around(Shard.read))
    out[:] = np.nan
    client.pull(out, versions)
    np.testing.assert_array_equal(out, 5.0)
    assert latch.held.is_set()
    before = len(wrote)
    out[:] = 8.0
    latch.let_go()
    assert len(wrote) > before
    np.testing.assert_array_equal(wrote[-1], 5.0)
    np.testing.assert_array_equal(out, 8.0)
    client.pull(out, job.held())  # and what is shared now is what is in use
    np.testing.assert_array_equal(out, 5.0)


def test_late_push_reads_the_pushed_values(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    client = job.client(A, deadline_s=0.3)
    values = client.array(job.placement.size)
    values[:] = 1.0
    latch = Latch(4)
    monkeypatch.setattr(Segment, "_step", latch.around(Segment._step))  # with the segment's lock: nobody passes
    with pytest.raises(Unavailable, match="no segment for"):
        client.push(values, job.held(), Push(A, 1, np.float32(1)))
    assert latch.held.is_set()
    values[:] = 1e9
    latch.let_go()
    again = job.client(A)
    again.push(job.full(1.0), job.held(), Push(A, 1, np.float32(1)))
    np.testing.assert_array_equal(job.read(), -1.0)


def test_late_exchange_does_not_touch_reused_memory(start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    job = start(rule="elastic")
    client = job.client(A, deadline_s=0.5)
    values, out, versions = client.array(job.placement.size), client.array(job.placement.size), job.held()
    values[:] = 1.0
    client.exchange(values, out, versions, Push(A, 1, np.float32(0.5)))
    latch = Latch()
    monkeypatch.setattr(Shard, "exchange", latch.around(Shard.exchange))
    client.exchange(values, out, versions, Push(A, 2, np.float32(0.5)))
    np.testing.assert_array_equal(out, 0.5)
    out[:], values[:] = 8.0, 1e9
    latch.let_go()
    np.testing.assert_array_equal(out, 8.0)
    np.testing.assert_array_equal(job.read(), 0.75)


@pytest.mark.parametrize("trouble", [Deposed, Moved])  # the client finds it unavailable, or repeats at once
@pytest.mark.parametrize("after", [[0], [1], [2], [1, 0, 1]])
def test_exchange_whose_answers_are_lost_gets_the_same_again(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, trouble: type[Exception], after: list[int]
) -> None:
    """Each shard's twenty segments are three messages; the stream ends when an answer is written and not yet sent."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 32)
    job = start(rule="elastic")
    client = job.client(A, refresh=lambda: job.placement)
    values, out = client.array(job.placement.size), client.array(job.placement.size)
    values[:] = np.random.default_rng(1).integers(-8, 9, values.size)
    left, lock, whole = list(after), threading.Lock(), ExchangeHandler._answer

    def answer(*arguments: Any) -> bytes:
        written = whole(*arguments)
        with lock:
            if left and not left[0]:
                left.pop(0)
                raise trouble("an answer that is lost")
            left[:1] = [left[0] - 1] if left else []
        return written

    monkeypatch.setattr(ExchangeHandler, "_answer", answer)
    for number in range(1, 4):
        client.exchange(values, out, job.held(), Push(A, number, np.float32(0.5)))
        np.testing.assert_array_equal(out, values * np.float32(1 - 0.5 ** (number - 1)))
        out[:] = np.nan
    assert not left, "every answer that was to be lost was lost"
    np.testing.assert_array_equal(job.read(), values * np.float32(1 - 0.5**3))


def test_segments_of_a_refused_pull_have_no_version(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """One shard refuses while the other is at work: the call ends, and that shard may write for some time yet."""
    client = job.client(A)
    out, versions = client.array(job.placement.size), job.held()
    client.pull(out, versions)
    job.client(B).push(job.full(-5.0), job.held(), Push(B, 1, np.float32(1)))
    there = job.placement.places[1]
    latch = Latch()
    monkeypatch.setattr(Shard, "read", latch.around(Shard.read))

    def refuses(target: wire.Target) -> Shard:
        wait_until(latch.held.is_set)
        raise Rejected("a call for another job is not for this shard")

    monkeypatch.setattr(job.services[0].controller, "shard_for", refuses)
    with pytest.raises(Rejected, match="is not for this shard"):
        client.pull(out, versions)
    wait_until(latch.held.is_set)
    assert {int(versions[index]) for index in there.segments} == {-1}
    out[:] = 8.0
    latch.let_go()
    np.testing.assert_array_equal(out, 8.0)


def test_a_wait_that_runs_out_leaves_memory_shared(start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says that a caller is to ask again has ended: nothing is to be feared of him."""
    monkeypatch.setattr("ps_server.rpc.servicer.LOOK_AGAIN_S", 0.1)
    job = start(staleness=0)
    for number in range(2):
        job.configure(number, membership=member(A))
    client = job.client(A, refresh=lambda: job.placement)
    out, versions = client.array(job.placement.size), job.held()
    pulled = threading.Thread(target=client.pull, args=(out, versions), kwargs={"clock": 1})
    pulled.start()
    wait_until(lambda: client.retries > 1)
    pusher = job.client(A)
    pusher.push(job.full(1.0), job.held(), Push(A, 1, np.float32(1)))
    pulled.join(60)
    np.testing.assert_array_equal(out, -1.0)
    assert job.counted("shared_bytes_total", direction="sent") == out.nbytes


def member(pusher: Pusher) -> Any:
    return wire.Membership(member_epoch=1, rounds=[wire.MembersFrom(clock=0, replicas=[pusher.replica])])
