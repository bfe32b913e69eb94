"""Tables over gRPC: rows pulled by key and pushed with the dense numbers, through restarts, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import numpy as np
import pytest

from dbelief.checkpoint.set_storage import LocalSets
from dbelief.codec import make_codec
from dbelief.core.layout import make_segments
from dbelief.core.placement import Fetch, Placement
from dbelief.core.push import Push, Pusher
from dbelief.errors import DbeliefError, UserError
from dbelief.optim import make_row_rule
from dbelief.rpc.client import sorted_rows
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.pb.segments_pb2 import SharedArray, SharedRows
from dbelief.rpc.server import server
from dbelief.rpc.wire import bulk, message_socket
from dbelief.rpc.wire.payloads import Codecs
from dbelief.sparse.row_hash import table_salt
from dbelief.sparse.table import SparseTable, pack
from tests.ps_server.replication.chained import Chained
from tests.ps_server.replication.test_migration import give, hold, moved
from tests.ps_server.replication.test_recovery import Dying
from tests.ps_server.servers import A, B, Job

pytestmark = pytest.mark.processes

IDS = 200
DENSE = make_segments([(0, 61)], 8)
USER = SparseTable("user", 4, table_salt(0, "user"), 0.5, 0.1, len(DENSE), 5)
ITEM = SparseTable("item", 2, table_salt(0, "item"), 0.0, 0.1, len(DENSE) + 5, 3)
RULES = {USER: "adagrad", ITEM: "ftrl"}
EVERY = np.arange(IDS)
Start = Callable[..., Job]


class Replica:
    """A client, its pushes in order, and what every table's rows must be by its pushes alone."""

    def __init__(self, job: Job, pusher: Pusher = A, **options: Any) -> None:
        self.job, self.pusher = job, pusher
        self.client: ShardedParameterClient = job.client(pusher, **options)
        self.values = self.client.array(job.placement.size)
        self.values[:] = 1.0
        self.versions, self.sequence = job.held(), 0
        self.rows = {table: table.initial(EVERY) for table in RULES}
        rules = {table: make_row_rule(rule, {}) for table, rule in RULES.items()}
        self.states = {
            table: tuple(np.full_like(self.rows[table], value) for value in rule.state.values())
            for table, rule in rules.items()
        }

    def push(self, rng: np.random.Generator) -> int:
        """Push a gradient of 1 and random rows; the bytes of what is pushed."""
        self.sequence += 1
        packed: dict[int, np.ndarray] = {}
        for table, rule in RULES.items():
            keys = rng.choice(IDS, rng.integers(0, 60), replace=False)
            gradients = rng.standard_normal((keys.size, table.width), dtype=np.float32)
            order, parts = table.split(keys)
            packed |= {index: pack(keys[order][own], gradients[order][own]) for index, own in parts}
            whole = np.zeros_like(self.rows[table])
            whole[keys] = gradients
            made, states = make_row_rule(rule, {}), self.states[table]
            made.apply_reference(np, self.rows[table], whole, states, np.float32(0.1), self.sequence)
        push = Push(self.pusher, self.sequence, np.float32(0.1))
        self.client.push(self.values, self.versions, push, rows=packed)
        return sum(values.nbytes for values in packed.values()) + 4 * self.job.placement.size

    def read(self) -> list[np.ndarray]:
        return self.client.pull_rows(dict.fromkeys(RULES, EVERY), self.versions)


def same(replica: Replica) -> bool:
    """Whether all tables have the rows that the replica's own pushes make, bit for bit."""
    return all((found == rows).all() for found, rows in zip(replica.read(), replica.rows.values(), strict=True))


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("direct", [True, False])
def test_rows_travel_with_the_dense_numbers(start: Start, shares: bool, direct: bool) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES), shares_memory=shares, direct=direct)
    assert same(replica)
    rng = np.random.default_rng(0)
    pushed = sum(replica.push(rng) for _ in range(10))
    assert same(replica)
    np.testing.assert_allclose(replica.job.read(), -1.0, rtol=1e-6)
    read = sum(rows.nbytes for rows in replica.rows.values())
    here = replica.client.shared_sent, replica.client.shared_received, replica.client.sent, replica.client.received
    assert here == ((pushed, 2 * read, 0, 0) if shares else (0, 0, pushed, 2 * read))
    assert replica.job.counted("shared_bytes_total", direction="sent") == 2 * read * shares
    assert replica.job.counted("shared_bytes_total", direction="received") == pushed * shares
    assert replica.versions[USER.first :].tolist() == [10] * 8


def test_rows_are_in_the_order_of_their_keys(start: Start) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES))
    replica.push(np.random.default_rng(0))
    keys = np.random.default_rng(1).permutation(IDS)[:77]
    (found,) = replica.client.pull_rows({USER: keys}, replica.versions)
    np.testing.assert_array_equal(found, replica.rows[USER][keys])
    (none,) = replica.client.pull_rows({USER: keys[:0]}, replica.versions)
    assert none.shape == (0, 4)


@pytest.mark.parametrize("direct", [True, False])
def test_rows_beyond_the_longest_message_travel_in_pieces(
    start: Start, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Those of a bucket, of a push and of an answer; requests have the keys of fewer buckets."""
    limit = 2_000
    monkeypatch.setattr(server, "MESSAGES", (server.MESSAGES[0], limit))
    monkeypatch.setattr(message_socket, "_LONGEST", limit)
    replica = Replica(start(spans=DENSE, tables={USER: "sgd"}), direct=direct, shares_memory=False)
    keys = np.arange(500)
    gradients = np.random.default_rng(0).standard_normal((keys.size, USER.width), dtype=np.float32)
    order, parts = USER.split(keys)
    packed = {index: pack(keys[order][own], gradients[order][own]) for index, own in parts}

    def push() -> None:
        replica.client.push(replica.job.full(1.0), replica.versions, Push(A, 1, np.float32(0.1)), rows=packed)

    with pytest.raises(DbeliefError):
        push()
    monkeypatch.setattr(bulk, "LONGEST_PAYLOAD", 1_000)
    monkeypatch.setattr(bulk, "FULL_BYTES", 1_000)
    push()
    (found,) = replica.client.pull_rows({USER: keys}, replica.versions)
    np.testing.assert_array_equal(found, USER.initial(keys) - np.float32(0.1) * gradients)


@pytest.mark.parametrize("shares", [True, False])
def test_a_follower_has_the_rows_of_shared_memory_and_of_pieces(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    monkeypatch.setattr(bulk, "LONGEST_PAYLOAD", 100)
    with closing(Chained(spans=DENSE, tables=RULES)) as job:
        replica = Replica(job, refresh=lambda: job.placement, shares_memory=shares)
        rng = np.random.default_rng(0)
        for number in range(2):
            job.whole(number)
        for _ in range(3):
            replica.push(rng)
        for number in range(2):
            job.promote(number)
        assert same(replica)


def test_too_many_keys_of_a_bucket_name_the_table(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES))
    monkeypatch.setattr(sorted_rows, "MOST_KEYS", 30)
    replica.client.pull_rows({USER: EVERY[:30]}, replica.versions)
    with pytest.raises(UserError, match=r"table 'item': \d+ distinct keys of one bucket in a pull, and 30 are the"):
        replica.client.pull_rows({ITEM: EVERY}, replica.versions)


def test_a_push_without_rows_counts_in_every_bucket(start: Start) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES))
    replica.sequence += 1
    replica.client.push(replica.job.full(1.0), replica.versions, Push(A, 1, np.float32(0.1)), rows={})
    replica.push(np.random.default_rng(0))
    replica.read()
    assert replica.versions[USER.first :].tolist() == [2] * 8


def test_rounds_are_means_in_tables_too(start: Start) -> None:
    """Two replicas that push the same number of samples: half of each."""
    job = start(spans=DENSE, tables=RULES, staleness=0)
    for number in range(2):
        rounds = [wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])]
        job.configure(number, membership=wire.Membership(member_epoch=1, rounds=rounds))
    replicas = [Replica(job, pusher) for pusher in (A, B)]
    threads = [Thread(target=one.push, args=(np.random.default_rng(4),)) for one in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.sequence for one in replicas] == [1, 1]
    assert same(replicas[0]), "both have drawn the same rows: the mean is theirs"
    assert replicas[0].versions[USER.first :].tolist() == [1] * 8, "one step for both pushes"


@pytest.mark.parametrize("sets", [1, 2])
def test_a_restored_shard_goes_on_with_the_rows_of_its_set(start: Start, sets: int, tmp_path: Path) -> None:
    """A second set has what has changed."""
    job = start(spans=DENSE, tables=RULES)
    replica, rng = Replica(job, refresh=lambda: job.placement), np.random.default_rng(0)
    for _ in range(7):
        replica.push(rng)
    for number in range(sets):
        replica.push(rng)
        job.snapshot(folder := tmp_path / f"0-{number}")
        LocalSets(tmp_path).commit(folder.name, "digits", {})
    assert ['"since"' in path.read_text() for path in folder.glob("shard-*.json")] == [sets == 2] * 2
    for number in range(2):
        job.restart(number, folder)
    assert same(replica)
    for _ in range(3):
        replica.push(rng)
    assert same(replica)


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ({"rows": [{"segment": USER.first, "keys": b"12345"}]}, "segment 8: 5 bytes are no keys of rows"),
        ({"rows": [{"segment": 0, "keys": bytes([8, *bytes(7)])}]}, "segment 0: positions outside of its 8 numbers"),
        ({"segments": [USER.first]}, "segment 8 is a bucket of a table, whose rows are read by key"),
        ({"rows": [{"segment": USER.first}], "shared": {}}, "has no block '' of this connection"),
        ({"rows": [{"segment": USER.first}], "segments": [0], "shared": {}}, "which one reply does not list"),
    ],
)
def test_other_requests_are_refused(start: Start, request_: dict[str, Any], match: str) -> None:
    job = start(spans=DENSE, tables=RULES)
    asked = wire.PullRequest(target=job.target(), vector="w", **request_)
    with pytest.raises(grpc.RpcError) as raised:
        list(job.stubs[0].Pull(iter([asked])))
    assert match in (raised.value.details() or "")


def first_keys() -> list[tuple[int, np.ndarray]]:
    """Each bucket of the users, and its keys."""
    order, parts = USER.split(EVERY)
    return [(index, EVERY[order[own]]) for index, own in parts]


def attached(replica: Replica, area: np.ndarray) -> SharedArray:
    """A reference to an array that the first shard has attached."""
    replica.client.pull(area, replica.versions)
    location = replica.client._sharing.find(area)
    assert location is not None
    return SharedArray(block=location.block.name, offset=location.offset)


USER_ROW = first_keys()[0][1][:1], np.ones((1, USER.width), np.float32)
ROWS = {"segments": [USER.first], "versions": [0], "starts": [0], "lengths": [6]}


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (ROWS | {"starts": [1 << 40]}, "segment 8: 6 numbers at 1099511627776 are not within a block of 61"),
        (ROWS | {"lengths": [62]}, "segment 8: 62 numbers at 0 are not within a block of 61"),
        (ROWS | {"lengths": [7]}, "segment 8: 7 numbers at 0 are no rows of its table"),
        (ROWS | {"lengths": []}, "references to rows in shared memory with 0 to 1 entries each"),
        (ROWS | {"segments": [0]}, "segment 0: lies in shared memory, and the opening does not say where"),
        (ROWS | {"segments": [99]}, "segment 99"),
    ],
)
def test_other_rows_in_shared_memory_are_refused(start: Start, rows: dict[str, Any], match: str) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES))
    area = replica.client.array(replica.job.placement.size)
    opening = replica.job.opening(Push(A, 1, np.float32(0.1)))
    opening.opening.shared_rows.CopyFrom(attached(replica, area))
    area[:] = 0
    opening.rows.CopyFrom(SharedRows(**rows))
    place = replica.job.placement.places[0]
    stream = replica.client._streams.acquire(place.address, "Push")
    stream.give([opening.SerializeToString()])
    with pytest.raises(grpc.RpcError) as raised:
        stream.answer()
    assert match in (raised.value.details() or "")


def test_rows_in_shared_memory_are_written_where_they_were_asked_for(start: Start) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES))
    area = replica.client.array(replica.job.placement.size)
    reference = attached(replica, area)
    area[:] = np.nan
    key, index = next((int(keys[0]), index) for index, keys in first_keys() if index == USER.first)
    area[1:3].view(np.int64)[:] = key
    stream = replica.client._streams.acquire(replica.job.placement.places[0].address, "Pull")
    for at, match in ((5, ""), (58, f"segment {index}: 4 numbers at 58 are not within a block of 61")):
        rows = [wire.RowKeys(segment=index, count=1, keys_at=1, rows_at=at)]
        asked = wire.PullRequest(target=replica.job.target(), vector="w", rows=rows, shared=reference)
        stream.give([asked.SerializeToString()])
        if match:
            with pytest.raises(grpc.RpcError) as raised:
                stream.answer()
            assert match in (raised.value.details() or "")
        else:
            stream.answer()
    np.testing.assert_array_equal(area[5:9], USER.initial(np.array([key]))[0])
    assert np.isnan(area[[0, 3, 4, *range(9, 61)]]).all()


def test_an_area_of_a_call_that_failed_is_not_used_again(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(start(spans=DENSE, tables=RULES))
    assert same(replica)
    areas = replica.client._areas
    (before,) = areas._idle
    run = replica.client._run
    monkeypatch.setattr(replica.client, "_run", lambda calls: run([]) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        replica.read()
    assert areas._idle == []
    monkeypatch.setattr(replica.client, "_run", run)
    assert same(replica)
    (after,) = areas._idle
    assert after is not before
    replica.client.close()
    assert areas._idle == []


def test_rows_whose_call_has_numbers_in_messages_travel_with_them(start: Start) -> None:
    """A call that names memory would go over gRPC, and not over a direct stream."""
    job = start(spans=DENSE, tables=RULES)
    codecs = Codecs(pull=make_codec("bf16", {})).compiled()
    replica = Replica(job, codecs=codecs, direct=True)
    out, versions = replica.client.array(job.placement.size), job.held()
    push, packed = Push(A, 1, np.float32(0.1)), {USER.first: pack(*USER_ROW)}
    replica.client.push(replica.values, replica.versions, push, Fetch(out, versions, 0), rows=packed)
    assert replica.client.shared_sent == 0
    assert replica.client.sent == replica.values.nbytes + packed[USER.first].nbytes


def test_a_push_goes_on_where_finished_buckets_have_moved(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its clock is reported to the shard that has them now, for those that wait there."""
    monkeypatch.setattr(bulk, "FULL_BYTES", 1)
    dying = Dying(3, 2)
    job = start(spans=DENSE, tables=RULES, prepare=dying)
    replica, refreshed = Replica(job, refresh=lambda: job.placement, shares_memory=False), Event()
    for number in range(2):
        replica.push(np.random.default_rng(number))
        if not number:
            job.snapshot(tmp_path)

    def when() -> Placement:
        assert refreshed.wait(60)
        return job.placement

    monkeypatch.setattr(replica.client, "_refresh", when)
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(replica.push, np.random.default_rng(2))
        assert dying.stopped.wait(60)
        job.restart(1, tmp_path)
        every = [span.index for span in job.placement.spans]
        give(job, 1, 0, list(job.placement.places[1].segments))
        hold(job, 0, every)
        after = moved(job.placement, 1, 0, every)
        job.placement = replace(after, places=after.places[:1])
        refreshed.set()
        third.result(60)
    assert replica.versions[USER.first :].tolist() != [0] * 8
    monkeypatch.setattr(replica.client, "_refresh", lambda: job.placement)
    (rows, _) = replica.read()
    assert (rows != USER.initial(EVERY)).any()


def test_replicas_with_rows_in_other_buckets_go_on_after_a_restore(start: Start, tmp_path: Path) -> None:
    """A restored bucket waits for what each replica has passed: a pull of rows reports it to all buckets."""
    job = start(spans=DENSE, tables={USER: "sgd"}, staleness=0)
    rounds = [wire.MembersFrom(clock=0, replicas=[A.replica, B.replica])]
    for number in range(2):
        job.configure(number, membership=wire.Membership(member_epoch=1, rounds=rounds))
    order, parts = USER.split(EVERY)
    keys = {pusher: EVERY[order][parts[index][1]][:3] for pusher, index in ((A, 3), (B, 4))}  # both at shard 1
    clients = {pusher: job.client(pusher, refresh=lambda: job.placement, deadline_s=5.0) for pusher in (A, B)}
    versions = {pusher: job.held() for pusher in (A, B)}

    def step(pusher: Pusher, clock: int) -> None:
        clients[pusher].pull(job.full(0.0), versions[pusher], clock=clock)
        clients[pusher].pull_rows({USER: keys[pusher]}, versions[pusher], clock)
        clients[pusher].push(
            job.full(1.0), versions[pusher], Push(pusher, clock + 1, np.float32(1), clock=clock), rows={}
        )

    with ThreadPoolExecutor(2) as pool:
        for clock in range(5):
            if clock == 1:
                job.snapshot(tmp_path)
            if clock == 3:
                job.restart(1, tmp_path, staleness=0)
                job.configure(1, membership=wire.Membership(member_epoch=1, rounds=rounds), ready=True)
            for one in [pool.submit(step, pusher, clock) for pusher in (A, B)]:
                one.result(60)
    read = [job.held(), job.held()]
    for pusher, versions_read in zip((A, B), read, strict=True):
        clients[pusher].pull_rows({USER: EVERY}, versions_read)
    np.testing.assert_array_equal(read[0], read[1])
    rounds_of = [
        segment.rounds for service in job.services for segment in service.controller.require_shard().segments.values()
    ]
    assert rounds_of == [5] * len(job.placement.spans), "each round was closed once in every segment"
