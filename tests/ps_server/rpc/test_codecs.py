"""Codecs between real clients and real shards: payloads and residuals, also when streams break or shards die."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.codec import Codec
from dbelief.codec.bfloat16 import BFloat16
from dbelief.codec.float16 import Float16
from dbelief.codec.one_bit import OneBit
from dbelief.codec.threshold import Threshold
from dbelief.codec.top_k import TopK
from dbelief.codec.whole_numbers import Int4, Int8
from dbelief.core.push import Push
from dbelief.errors import NonFinite, Rejected
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import bulk, payloads
from dbelief.rpc.wire.convert import pusher_to_wire
from dbelief.rpc.wire.payloads import NUMBERS, Codecs
from ps_server.rpc.servicer import ShardService
from tests.ps_server.replication.test_link import LENGTH, Pair
from tests.ps_server.replication.test_recovery import Dying
from tests.ps_server.servers import A, B, Job, status

pytestmark = pytest.mark.processes

ONE = np.float32(1)
STARTS = (0, 3, 3, 50, 51, 200)
"""Tensors of 3, 0, 47, 1, 149 and 117 numbers."""
HALVES = pytest.mark.parametrize("codec", [BFloat16(), Float16()], ids=lambda codec: codec.name)
EACH = pytest.mark.parametrize(
    "codec", [OneBit(), Threshold(0.5), Int8(), Int4(), TopK(1), BFloat16(), Float16()], ids=lambda codec: codec.name
)
LATER = pytest.mark.parametrize("codec", [OneBit(), Threshold(0.5), Int4(), TopK(0.4)], ids=lambda codec: codec.name)


def drawn(job: Job, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(job.placement.size, dtype=np.float32)


def rounded(job: Job, codec: Codec, values: np.ndarray) -> np.ndarray:
    """Each segment there and back."""
    out = np.empty_like(values)
    for span in job.placement.spans:
        codec.decode(codec.encode(values[span.start : span.stop]).data, out[span.start : span.stop])
    return out


# -- halves --------------------------------------------------------------------------------------------------


@HALVES
def test_a_push_and_a_pull_in_halves(job: Job, codec: Codec) -> None:
    values, client = drawn(job, 0), job.client(A, codecs=Codecs(codec, codec))
    client.push(values, job.held(0), Push(A, 1, ONE))
    arrived = rounded(job, codec, values)
    assert not np.array_equal(arrived, values)
    np.testing.assert_array_equal(job.read(), -arrived)
    client.push(arrived / 3, job.held(1), Push(A, 2, ONE))
    out, versions, held = job.full(np.nan), job.held(), job.read()
    client.pull(out, versions)
    np.testing.assert_array_equal(out, rounded(job, codec, held))
    assert set(versions.tolist()) == {2}
    out[:] = 7
    client.pull(out, versions)
    assert (out == 7).all(), "nothing is newer"
    client.pull(out, job.held(), exact=True)
    np.testing.assert_array_equal(out, held)
    assert client.figures().residual == 0


def test_large_weights_are_scaled_to_half_precision(job: Job) -> None:
    client = job.client(A, codecs=Codecs(None, Float16()))
    client.push(job.full(-3e30), job.held(0), Push(A, 1, ONE))
    out = job.full(np.nan)
    client.pull(out, job.held())
    np.testing.assert_allclose(out, job.full(3e30), rtol=2.0**-11)


def test_named_vectors_are_stored_as_they_are(job: Job) -> None:
    values, client = drawn(job, 1), job.client(A, codecs=Codecs(OneBit(), BFloat16()))
    client.push(values, job.held(), Push(A, 1, vector="best.0", assign=True))
    out = job.full(np.nan)
    client.pull(out, job.held(), vector="best.0", exact=True)
    np.testing.assert_array_equal(out, values)
    assert client.figures().residual == 0


@HALVES
def test_an_exchange_in_halves(start: Callable[..., Job], codec: Codec) -> None:
    job = start(rule="elastic")
    own, before = drawn(job, 2), job.full(np.nan)
    client = job.client(A, codecs=Codecs(codec, codec))
    client.exchange(own, before, job.held(0), Push(A, 1, np.float32(0.5)))
    np.testing.assert_array_equal(before, 0)
    centre = rounded(job, codec, own) * np.float32(0.5)
    np.testing.assert_array_equal(job.read(), centre)
    client.exchange(own, before, job.held(1), Push(A, 2, np.float32(0.5)))
    np.testing.assert_array_equal(before, rounded(job, codec, centre))


def test_sums_of_bundles_come_in_float64_whatever_is_asked(job: Job) -> None:
    push = Push(A, 0, samples=1, vector="accrued", clock=1, bundle=1)
    job.client(A).push(job.full(1 / 3), job.held(0), push)
    for part in job.pulled(0, vector="accrued", segments=[0, 1], codec=segments.CODEC_BF16):
        assert part.codec == segments.CODEC_FP64
        np.testing.assert_array_equal(np.frombuffer(part.data), np.float64(np.float32(1 / 3)))


@HALVES
def test_a_way_that_has_a_codec_shares_no_memory(start: Callable[..., Job], codec: Codec) -> None:
    job = start(rule="elastic")
    both, neither = job.client(A, codecs=Codecs(codec, codec)), job.client(B)
    arrays = {client: [client.array(job.placement.size) for _ in range(2)] for client in (both, neither)}
    values = drawn(job, 13)
    for number, (client, who) in enumerate(((both, A), (neither, B))):
        own, before = arrays[client]
        own[:] = values
        client.exchange(own, before, job.held(number), Push(who, 1, np.float32(0.5)))
        client.pull(before, job.held())
        counted = [job.counted("shared_bytes_total", direction=way) for way in ("received", "sent")]
        assert (max(counted) > 0) == (client is neither)
    assert both.sent > 0
    assert neither.sent == 0
    half = np.float32(0.5)
    centre = rounded(job, codec, values) * half
    np.testing.assert_array_equal(job.read(), centre + half * (values - centre))


# -- what is left out -----------------------------------------------------------------------------------------


@LATER
def test_sent_plus_residual_equals_input(job: Job, codec: Codec) -> None:
    client, given = job.client(A, codecs=Codecs(codec, None, STARTS)), np.zeros(job.placement.size)
    for number in range(1, 20):
        values = drawn(job, number)
        given += values
        client.push(values, job.held(number - 1), Push(A, number, ONE))
        left = given + job.read()
        assert client.figures().residual == pytest.approx(np.abs(left).sum(), rel=1e-4)
    assert np.abs(left).max() > 0.2, "something is always left out"
    assert np.abs(job.read()).max() > 3


def test_no_block_reaches_into_another_tensor(job: Job) -> None:
    values = np.repeat(np.arange(1.0, 6.0, dtype=np.float32), np.diff([*dict.fromkeys(STARTS), job.placement.size]))
    client = job.client(A, codecs=Codecs(OneBit(), None, STARTS))
    client.push(values, job.held(0), Push(A, 1, ONE))
    np.testing.assert_array_equal(job.read(), -values)
    assert client.figures().residual == 0


@LATER
def test_round_sums_decoded_gradients(start: Callable[..., Job], codec: Codec) -> None:
    job = start(staleness=0)
    for number in range(2):
        rounds = [wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])]
        job.configure(number, membership=wire.Membership(member_epoch=1, rounds=rounds))
    values, sent = [drawn(job, 5), drawn(job, 6)], np.zeros(job.placement.size)
    for one in values:
        residual = np.zeros_like(one)
        for span in job.placement.spans:
            out, part = np.empty(span.length, np.float32), slice(span.start, span.stop)
            codec.decode(codec.encode(one[part], residual[part]).data, out)
            sent[part] += out / 2
    with ThreadPoolExecutor(2) as pool:
        done = [
            pool.submit(job.client(who, codecs=Codecs(codec)).push, one, job.held(0), Push(who, 1, ONE))
            for who, one in zip((A, B), values, strict=True)
        ]
        for push in done:
            push.result(60)
    np.testing.assert_allclose(job.read(), -sent, rtol=0, atol=1e-6)


class Seen:
    """Writes down the payloads that shard 1 gets, by stream, and breaks each stream after so many messages."""

    def __init__(self, *messages: int) -> None:
        self.messages = list(messages)
        self.streams: list[dict[int, bytes]] = []

    def __call__(self, service: ShardService) -> None:
        whole = service.Push

        def push(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            if service.controller.index != 1:
                yield from whole(messages, context)
                return
            self.streams.append({})
            most = self.messages.pop(0) if self.messages else 10**9
            for answer in whole(self.until(messages, most), context):
                if len(self.streams[-1]) >= most:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "a line that broke")
                yield answer

        service.Push = push  # type: ignore[method-assign]

    def until(self, messages: Iterator[bytes], most: int) -> Iterator[bytes]:
        seen = self.streams[-1]
        for message in messages:
            seen.update({part.index: bytes(part.data or b"") for part in bulk.decode(message)[1]})
            yield message
            if len(seen) >= most:
                return


@LATER
def test_a_push_that_breaks_is_sent_again_as_it_was(
    start: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)
    seen = Seen()
    job = start(prepare=seen)
    seen.streams.clear()
    seen.messages = [7, 19]
    values, client = drawn(job, 7), job.client(A, codecs=Codecs(codec, None, STARTS))
    client.push(values, job.held(0), Push(A, 1, ONE))
    first, second, third = seen.streams
    assert list(first) == list(range(20, 27))
    assert list(second) == list(range(20, 39)), "nothing of the first stream was acknowledged"
    assert list(third) == list(range(36, 40)), "an answer came after 16 segments"
    for one, other in itertools.combinations((first, second, third), 2):
        for index in one.keys() & other.keys():
            assert one[index] == other[index]
    left = values + job.read()
    assert client.figures().residual == pytest.approx(np.abs(left).sum(), rel=1e-5)
    assert client.retries == 2


@LATER
def test_resent_push_keeps_its_payload(
    start: Callable[..., Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)
    dying = Dying(2, 9)
    job = start(prepare=dying)
    first, second = drawn(job, 8), drawn(job, 9)
    client = job.client(A, codecs=Codecs(codec, None, STARTS), refresh=lambda: job.placement)
    client.push(first, job.held(0), Push(A, 1, ONE))
    job.snapshot(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        pushed = pool.submit(client.push, second, job.held(1), Push(A, 2, ONE))
        assert dying.stopped.wait(60)
        job.restart(1, tmp_path)
        assert pushed.result(60).lost == 0
    left = first.astype(np.float64) + second + job.read()
    assert client.figures().residual == pytest.approx(np.abs(left).sum(), rel=1e-5)


@LATER
def test_refused_push_returns_to_the_residual(job: Job, codec: Codec) -> None:
    client = job.client(A, codecs=Codecs(codec, None, STARTS))
    values = drawn(job, 10)
    client.push(values, job.held(0), Push(A, 1, ONE))
    kept = client.figures().residual
    for number in range(2):
        job.configure(number, fenced=[pusher_to_wire(A)])
    with pytest.raises(Rejected, match="is fenced"):
        client.push(np.zeros_like(values), job.held(1), Push(A, 2, ONE))
    assert client.figures().residual == pytest.approx(kept, rel=1e-5)


def test_unencodable_push_fails(job: Job) -> None:
    client = job.client(A, codecs=Codecs(OneBit()))
    with pytest.raises(NonFinite, match="no finite mean"):
        client.push(job.full(np.nan), job.held(0), Push(A, 1, ONE))
    assert not job.read().any()


@EACH
def test_follower_gets_the_encoded_payload(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, residual = Pair("adagrad", None), np.zeros(LENGTH, np.float32)
    sent, came = [], []
    pair.begin()
    try:
        pair.settle()
        whole = payloads.numbers

        def seen(part: bulk.SegmentPayload) -> np.ndarray:
            came.append(bytes(part.data or b""))
            return whole(part)

        monkeypatch.setattr(payloads, "numbers", seen)
        for number in range(1, 4):
            values = np.random.default_rng(number).standard_normal(LENGTH, dtype=np.float32)
            payload = codec.encode(values, residual)
            sent.append(payload.tobytes())
            part = bulk.SegmentPayload(1, 0, 0, LENGTH, payloads.NUMBERS[codec.name], data=payload.data)
            pair.leader.push(Push(A, number, ONE), 1, whole(part), form=payloads.form_of(part))
        pair.settle()
        assert came == sent
        leader, follower = pair.leader.segments[1], pair.moves._received[1]
        np.testing.assert_array_equal(follower.vectors["w"], leader.vectors["w"])
        np.testing.assert_array_equal(follower.state[0], leader.state[0])
        assert follower.version == leader.version
    finally:
        pair.close()


# -- bytes ---------------------------------------------------------------------------------------------------


def test_bytes_are_those_that_travelled(job: Job) -> None:
    before = {way: job.counted("bytes_total", direction=way) for way in ("received", "sent")}
    size, count = job.placement.size, len(job.placement.spans)
    client = job.client(A, codecs=Codecs(BFloat16(), Float16()))
    client.push(drawn(job, 11), job.held(0), Push(A, 1, ONE))
    client.pull(job.full(0.0), job.held())
    assert (client.sent, client.received) == (2 * size, 2 * size + 4 * count)
    assert job.counted("bytes_total", direction="received") - before["received"] == 2 * size
    around = job.counted("bytes_total", direction="sent") - before["sent"] - client.received
    assert 0 < around < 16 * count, "a segment's index, version, length and codec"
    exact = job.client(B)
    exact.push(drawn(job, 12), job.held(1), Push(B, 1, ONE))
    assert exact.sent == 4 * size


# -- what anybody may send -----------------------------------------------------------------------------------


def payload(codec: Codec, values: np.ndarray) -> bytes:
    return codec.encode(values, np.zeros_like(values)).tobytes()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"codec": segments.CODEC_BF16, "data": bytes(15)}, "15 bytes are not 8 numbers of bf16"),
        ({"codec": segments.CODEC_FP16, "data": bytes(20)}, "a scale of 0 is no power of two"),
        ({"codec": segments.CODEC_ONE_BIT, "data": b""}, "0 bytes in 0 pieces are not 8 numbers"),
        (
            {"codec": segments.CODEC_ONE_BIT, "data": payload(OneBit(), np.ones(9, np.float32))},
            "together are not 8 numbers",
        ),
        (
            {"codec": segments.CODEC_THRESHOLD, "data": np.array([0x3F800000, 8], "<u4").tobytes()},
            "indices that do not rise, or leave the 8 numbers",
        ),
        (
            {"codec": segments.CODEC_THRESHOLD, "length": 2**31, "data": np.float32(1).tobytes()},
            "2147483648 numbers, and no segment has above 262144",
        ),
        (
            {"codec": segments.CODEC_THRESHOLD, "offset": 1, "data": np.float32(1).tobytes()},
            "8 numbers at 1 do not fit its 8",
        ),
        ({"codec": 9, "data": bytes(32)}, "payload 9 is not one that is read here"),
        ({"codec": segments.CODEC_ONE_BIT, "length": 0, "data": bytes(4)}, "are not 0 numbers in blocks"),
    ],
)
def test_a_payload_that_is_none_is_refused(job: Job, fields: dict[str, Any], reason: str) -> None:
    push = [job.opening(Push(A, 1, ONE), 1), job.part(20, **fields)]
    code, told = status(lambda: list(job.stubs[1].Push(iter(push))))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "segment 20" in told
    assert reason in told
    assert not job.read().any()


@EACH
def test_a_part_of_a_segment_by_a_codec(job: Job, codec: Codec) -> None:
    data = payload(codec, np.array([1, 1, 1], np.float32))
    number = NUMBERS[codec.name]
    part = job.part(20, codec=number, offset=4, length=3, data=data)
    list(job.stubs[1].Push(iter([job.opening(Push(A, 1, ONE), 1), part])))
    span, wanted = job.placement.spans[20], job.full(0.0)
    wanted[span.start + 4 : span.start + 7] = -0.5 if codec.name == "threshold" else -1
    np.testing.assert_array_equal(job.read(), wanted)


@pytest.mark.parametrize("codec", [1, 4, 5, 6, 7, 8, 17])
def test_no_answer_comes_by_such_a_codec(job: Job, codec: int) -> None:
    code, told = status(lambda: job.pulled(0, segments=[0], codec=codec))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert f"codec {codec} is not one that numbers are answered in" in told


@LATER
def test_weights_are_not_exchanged_by_it(start: Callable[..., Job], codec: Codec) -> None:
    job = start(rule="elastic")
    client = job.client(A, codecs=Codecs(codec))
    with pytest.raises(Rejected, match=r"segment 0: an exchange by codec [4578], which sends a part of the numbers"):
        client.exchange(drawn(job, 1), job.full(0.0), job.held(0), Push(A, 1, ONE))


def test_a_few_bytes_make_no_room_in_an_exchange(start: Callable[..., Job]) -> None:
    job = start(rule="elastic")
    message = job.opening(Push(A, 1, ONE))
    message.opening.segments = 1
    message.MergeFrom(job.part(0, codec=segments.CODEC_BF16, length=2**31, data=bytes(16)))
    code, told = status(lambda: list(job.stubs[0].Exchange(iter([message]))))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "segment 0: 2147483648 numbers, and no segment has above 262144" in told


def test_an_answer_of_another_length_is_refused(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    address = job.placement.places[0].address
    short = ShardedParameterClient("digits", job.placement, codecs=Codecs(None, BFloat16()))
    job.clients.append(short)
    whole = bulk.decode

    def cut(message: bytes) -> Any:
        opening, parts = whole(message)
        for part in parts:
            part.length -= 1
        return opening, parts

    monkeypatch.setattr(bulk, "decode", cut)
    with pytest.raises(Rejected, match=rf"^pull: shard 0 at {address}: segment 0 of 7 numbers, not 8"):
        short.pull(job.full(0.0), job.held())
