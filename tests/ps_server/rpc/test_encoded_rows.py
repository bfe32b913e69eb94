"""Rows of tables by codecs: the same bits on every way to a shard, in its follower, and in rounds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from dbelief.codec.bfloat16 import BFloat16
from dbelief.codec.packed_rows import NAMES
from dbelief.core.layout import make_segments
from dbelief.core.push import Push, Pusher
from dbelief.job import Wire
from dbelief.optim import make_row_rule
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb import segments_pb2 as segments
from dbelief.rpc.wire import row_payloads
from dbelief.rpc.wire.payloads import Codecs, numbers
from dbelief.sparse.row_hash import table_salt
from dbelief.sparse.table import SparseTable, pack, unpack
from tests.ps_server.replication.chained import Chained
from tests.ps_server.servers import A, B, Job, status

pytestmark = pytest.mark.processes

DENSE = make_segments([(0, 21)], 8)
USER = SparseTable("user", 4, table_salt(0, "user"), 0.5, 0.1, len(DENSE), 5, pull="bf16")
EVERY = np.arange(60)
BYTES = {"fp16": (8, 2, 8), "bf16": (8, 2, 4), "int8": (12, 1, 4)}
"""Of a bucket's payload: for each row, for each number, and beside them."""


def made_push(pusher: Pusher, number: int, clock: int = 0) -> tuple[Push, dict[int, np.ndarray]]:
    """A push with its packed rows by bucket."""
    rng = np.random.default_rng([pusher.replica, number])
    keys = rng.choice(EVERY.size, 25, replace=False)
    gradients = rng.standard_normal((keys.size, USER.width), dtype=np.float32)
    order, parts = USER.split(keys)
    packed = {index: pack(keys[order][own], gradients[order][own]) for index, own in parts}
    return Push(pusher, number, np.float32(0.1), 1, clock=clock), packed


def client_of(job: Job, table: SparseTable, pusher: Pusher = A, **options: bool) -> ShardedParameterClient:
    return job.client(pusher, codecs=Codecs.of(Wire(), tables=[table]), refresh=lambda: job.placement, **options)


def exact(client: ShardedParameterClient, job: Job, table: SparseTable) -> np.ndarray:
    (rows,) = client.pull_rows({replace(table, pull="fp32"): EVERY}, job.held())
    return rows


def whole(table: SparseTable, push: Push, packed: dict[int, np.ndarray]) -> np.ndarray:
    """Gradients of all rows, as a shard receives them."""
    gradient = np.zeros((EVERY.size, table.width), np.float32)
    for index, one in packed.items():
        keys, rows = unpack(numbers(row_payloads.part_of(index, 0, one, table, push)), table.width)
        gradient[keys] = rows
    return gradient


def stepped(gradients: list[np.ndarray]) -> np.ndarray:
    """Rows after steps of these gradients by adagrad at its plain formula."""
    rows, rule = USER.initial(EVERY), make_row_rule("adagrad", {})
    states = tuple(np.full_like(rows, value) for value in rule.state.values())
    for number, gradient in enumerate(gradients, 1):
        rule.apply_reference(np, rows, gradient, states, np.float32(0.1), number)
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_same_bits_on_every_way(start: Callable[..., Job], name: str) -> None:
    """Over shared memory beside the dense numbers, by direct streams and by gRPC; a pull rounds what the shard has."""
    table = replace(USER, push=name)
    pushes = [made_push(A, number) for number in (1, 2, 3)]
    expected = stepped([whole(table, *one) for one in pushes])
    rounded = np.empty(expected.size, np.float32)
    BFloat16.decode(BFloat16().encode(expected.reshape(-1)).data, rounded)
    for shares, direct in ((True, True), (False, True), (False, False)):
        job = start(spans=DENSE, tables={table: "adagrad"})
        client = client_of(job, table, shares_memory=shares, direct=direct)
        values = client.array(job.placement.size)
        values[:] = 1
        for push, packed in pushes:
            client.push(values, job.held(0), push, rows=packed)
        np.testing.assert_array_equal(exact(client, job, table), expected)
        (found,) = client.pull_rows({table: EVERY}, job.held())
        np.testing.assert_array_equal(found, rounded.reshape(expected.shape))
        row, number, beside = BYTES[name]
        payloads = sum(len(packed) for _, packed in pushes)
        dense = 0 if client.shared_sent else 3 * 4 * job.placement.size
        assert client.sent - dense == 3 * 25 * (row + number * table.width) + beside * payloads


@pytest.mark.parametrize("name", NAMES)
def test_a_follower_has_the_rows_of_its_leader(name: str) -> None:
    table = replace(USER, push=name)
    with closing(Chained(spans=DENSE, tables={table: "adagrad"})) as job:
        for number in range(2):
            job.whole(number)
        client = client_of(job, table)
        for push, packed in (made_push(A, number) for number in (1, 2)):
            client.push(job.full(1.0), job.held(0), push, rows=packed)
        before = exact(client, job, table)
        for number in range(2):
            job.promote(number)
        np.testing.assert_array_equal(exact(client_of(job, table, B), job, table), before)
        assert (before != table.initial(EVERY)).any()


def test_a_round_is_the_mean_of_what_arrives(start: Callable[..., Job]) -> None:
    table = replace(USER, push="int8")
    job = start(spans=DENSE, tables={table: "adagrad"}, staleness=0)
    rounds = [wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])]
    for number in range(2):
        job.configure(number, membership=wire.Membership(member_epoch=1, rounds=rounds))
    pushes = {pusher: made_push(pusher, 1) for pusher in (A, B)}
    with ThreadPoolExecutor(2) as pool:
        for one in [
            pool.submit(client_of(job, table, pusher).push, job.full(1.0), job.held(0), push, rows=packed)
            for pusher, (push, packed) in pushes.items()
        ]:
            one.result(60)
    half = np.float32(0.5)
    mean = sum((half * whole(table, *one) for one in pushes.values()), np.zeros((EVERY.size, 4), np.float32))
    np.testing.assert_array_equal(exact(client_of(job, table), job, table), stepped([mean]))


@pytest.mark.parametrize(
    ("index", "codec", "why"),
    [
        (0, segments.CODEC_ROWS_BF16, "segment 0: numbers in codec 11, which does not encode them"),
        (USER.first, segments.CODEC_BF16, f"segment {USER.first}: rows in codec 3, which does not encode them"),
        (USER.first, segments.CODEC_ROWS_BF16, f"segment {USER.first}: 8 bytes with 0 keys are not 6 numbers"),
    ],
)
def test_rows_and_numbers_have_codecs_of_their_own(
    start: Callable[..., Job], index: int, codec: segments.Codec.ValueType, why: str
) -> None:
    job = start(spans=DENSE, tables={USER: "sgd"})
    number = next(place.shard for place in job.placement.places if index in place.segments)
    opening = job.opening(Push(A, 1, np.float32(0.1)), number)
    part = wire.PushRequest(segments=[segments.Segment(index=index, length=6, data=bytes(8), codec=codec)])
    assert why in status(lambda: list(job.stubs[number].Push(iter([opening, part]))))[1]
