"""The coordinator's programs on shards behind gRPC servers: the numbers of one process, on any number of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from coordinator.cluster.rebalance import apply_migration
from coordinator.core.effects import MigrateSegments
from coordinator.core.ledgers import Applied
from coordinator.runtime.shard_client import ShardClient
from coordinator.sandblaster.lbfgs import Lbfgs
from dbelief.checkpoint.set_storage import LocalSets
from dbelief.checkpoint.shard_file import verify_shards
from dbelief.core.layout import Kind, SegmentSpan, assign_segments, make_segments
from dbelief.core.placement import Placement, ShardPlacement
from dbelief.core.push import LedgerRow, Push, Pusher
from dbelief.core.vector_program import dots, lincomb
from dbelief.errors import Moved, Rejected, Unavailable
from dbelief.job.load import parse_job
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import parameters_pb2 as wire
from dbelief.rpc.server.server import Server
from dbelief.telemetry.metrics import Metrics
from ps_server.rpc.servicer import ShardService
from tests.local_vectors import LocalSpace

SIZE = 700
WRITER = Pusher(0, 1)
JOB = """
name: programs
model: {layers: [{dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: {name: downpour, batch: 16, rule: {name: sgd, rate: 0.05}}
limits: {epochs: 1}
"""
Prepare = Callable[[ShardService], None]


class Cluster:
    """Shards that hold `size` zeros, and the coordinator's hand on them."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        count: int,
        size: int = SIZE,
        prepare: Prepare | None = None,
        spans: tuple[SegmentSpan, ...] = (),
    ):
        services = [ShardService(Metrics("ps")) for _ in range(count)]
        for number, service in enumerate(services):
            service.controller.index = number
            if prepare is not None:
                prepare(service)
        servers = [Server("127.0.0.1:0", service.register) for service in services]
        spans = spans or tuple(make_segments([(0, size)], 30))
        runs = assign_segments(spans, count)
        self.placement = Placement(
            1, spans, tuple(ShardPlacement(n, servers[n].address, 1, (run,)) for n, run in enumerate(runs))
        )
        self.dead: set[int] = set()
        self.shards = ShardClient(
            parse_job(JOB, folder, "job"),
            lambda: 1,
            lambda place: place.shard in self.dead,
            LocalSets(folder / "snapshots"),
        )
        for server in servers:
            stack.callback(server.close, 0.0)
        stack.callback(self.shards.close)
        self.servers = servers
        self.client = ShardedParameterClient("programs", self.placement, pusher=WRITER, deadline_s=10.0)
        stack.callback(self.client.close)
        self.shards.assign(self.placement)
        self._numbers: dict[str, int] = {}
        self.write("w", np.zeros(size))
        self.shards.make_ready()

    def write(self, vector: str, values: np.ndarray) -> None:
        number = self._numbers[vector] = self._numbers.get(vector, 0) + 1
        held = np.zeros(len(self.placement.spans), np.int64)
        self.client.push(values.astype(np.float32), held, Push(WRITER, number, vector=vector, assign=True))

    def read(self, vector: str) -> np.ndarray:
        out = np.empty(self.placement.size, np.float32)
        self.client.pull(out, np.full(len(self.placement.spans), -1, np.int64), vector=vector)
        return out


@contextmanager
def cluster(folder: Path, count: int, **options: Any) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, folder, count, **options)


def gradients(steps: int) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """The same convex quadratic's gradient, for each step."""
    rng = np.random.default_rng(5)
    scales, centre = np.geomspace(1, 40, SIZE), rng.standard_normal(SIZE)
    for _ in range(steps):
        yield lambda w: scales * (w - centre)


def descended(space: ShardClient | LocalSpace, write: Callable[[str, np.ndarray], None], steps: int) -> list[float]:
    """Steps of one length along L-BFGS's directions in some space; the squared norms of the gradients."""
    method, w, norms = Lbfgs(4), np.zeros(SIZE), []
    step: float | None = None
    reference = LocalSpace({"gradient": np.zeros(SIZE)})
    exact = Lbfgs(4)
    for gradient in gradients(steps):
        write("gradient", gradient(w))
        reference.vectors["gradient"][:] = gradient(w)
        for one, where in ((method, space), (exact, reference)):
            one.absorb(where.run(one.inner_products(step)))
            where.run(one.direction()[0])
        norms.append(float(method.gram[-1, -1]))
        step = 0.02
        w = w + step * reference.vectors["direction"]
    return norms


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_directions_are_those_of_one_process(tmp_path: Path, count: int) -> None:
    local = LocalSpace({"gradient": np.zeros(SIZE)})

    def write(vector: str, values: np.ndarray) -> None:
        local.vectors[vector][:] = values

    with cluster(tmp_path, count) as here:
        expected = descended(local, write, 8)
        norms = descended(here.shards, here.write, 8)
        assert norms == pytest.approx(expected, rel=1e-6)
        for name in ("direction", "s.0", "s.3", "y.0", "y.3", "previous"):
            wanted = local.vectors[name]
            assert np.linalg.norm(here.read(name) - wanted) <= 1e-5 * np.linalg.norm(wanted), name


def test_scalars_do_not_depend_on_the_number_of_shards(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(SIZE)
    program = [lincomb("v", (0.3, "w")), dots(("v", "w"), ("w", "w"))]
    found = []
    for count in (1, 2, 3, 7, 30):  # the last has more shards than segments
        with cluster(tmp_path, count) as here:
            here.shards.run([lincomb("w", (0.0, "w"))])
            here.write("x", values)
            here.shards.run([lincomb("w", (1.0, "x"))])
            found.append(here.shards.run(program))
    for one in found:
        assert one == pytest.approx(found[0], rel=1e-12)


def test_a_call_whose_answer_is_lost_is_carried_out_once(tmp_path: Path) -> None:
    lost: list[int] = []

    def loses_one_answer(service: ShardService) -> None:
        operate = type(service).Operate

        def once(request: wire.OperateRequest, context: grpc.ServicerContext) -> wire.OperateReply:
            reply: wire.OperateReply = operate(service, request, context)
            if not lost:
                lost.append(request.command.id)
                context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
            return reply

        service.Operate = once  # type: ignore[method-assign]

    with cluster(tmp_path, 2, prepare=loses_one_answer) as here:
        here.write("x", np.ones(SIZE))
        here.shards.run([lincomb("x", (2.0, "x"))])
        assert lost
        assert (here.read("x") == 2).all()


def test_wrong_program_is_refused_and_dead_shard_is_named(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as here:
        with pytest.raises(Rejected, match=r"shard 0 at .*operation 1, dots w x: reads 'x', which holds nothing"):
            here.shards.run([dots(("w", "x"))])
        here.servers[1].close(0.0)
        here.dead.add(1)
        with pytest.raises(Unavailable, match=r"shard 1 at "):
            here.shards.run([dots(("w", "w"))])


def count_bytes(shards: ShardClient) -> list[int]:
    """The sizes of all that is sent from now on."""
    counted: list[int] = []
    call = shards._begin

    def counting(place: ShardPlacement, method: str, request: Any, timeout_s: float) -> Any:
        counted.append(request.ByteSize())
        return call(place, method, request, timeout_s)

    shards._begin = counting  # type: ignore[method-assign]
    return counted


def test_sent_bytes_do_not_grow_with_vectors(tmp_path: Path) -> None:
    sizes = []
    for size in (100, 10_000):
        with cluster(tmp_path, 2, size=size) as here:
            counted = count_bytes(here.shards)
            method = Lbfgs(4)
            here.write("gradient", np.ones(size))
            for step in (None, 0.1, 0.1):
                method.absorb(here.shards.run(method.inner_products(step)))
                here.shards.run(method.direction()[0])
            sizes.append(len(counted))
            sizes.append(sum(counted))
    assert sizes[0] == sizes[2] == 3 * 2 * 2, "two round trips a step"
    assert abs(sizes[1] - sizes[3]) < 100


def test_segments_migrate_and_ownership_is_sent_again(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as here:
        values = np.random.default_rng(1).standard_normal(SIZE).astype(np.float32)
        here.write("x", values)
        first = here.placement.places[0]
        move = MigrateSegments(0, 2, tuple(first.segments)[-3:])
        assert here.shards.migrate(move) > 0
        with pytest.raises(Moved, match="is at another shard now"):
            here.read("x")
        here.shards.set_ownership((0, 2))  # as the placement still has it: the move is undone
        assert (here.read("x") == values).all()
        here.shards.migrate(move)
        here.shards.placement = here.client.placement = apply_migration(here.placement, move)
        for _ in range(2):
            here.shards.set_ownership((0, 2))
            assert (here.read("x") == values).all()
        held = [here.shards.stats(place).segments for place in here.shards.placement.places]
        assert held == [place.count for place in here.shards.placement.places]
        here.dead.add(0)
        here.servers[0].close(0.0)
        here.shards.set_ownership((0, 1, 2))
        with pytest.raises(Unavailable, match="shard 0 at "):
            here.shards.migrate(MigrateSegments(0, 1, (0,)))


def test_migrated_segments_are_served_after_the_commit(tmp_path: Path) -> None:
    """A client that missed two moves knows the segments where they are to be; the coordinator dies before that."""
    with cluster(tmp_path, 2) as here:
        there = MigrateSegments(0, 1, tuple(here.placement.places[0].segments)[-3:])
        back = MigrateSegments(1, 0, there.segments)
        earlier = apply_migration(here.placement, there)
        for move in (there, back):
            here.shards.migrate(move)
            here.shards.placement = here.client.placement = apply_migration(
                here.shards.placement or here.placement, move
            )
            here.shards.set_ownership((0, 1))
        late = ShardedParameterClient("programs", earlier, ("sgd", {}), Pusher(1, 2), deadline_s=10.0)
        try:
            here.shards.migrate(there)
            ones, held = np.ones(SIZE, np.float32), np.zeros(len(earlier.spans), np.int64)
            with pytest.raises(Rejected, match="is at another shard now"):
                late.push(ones, held, Push(Pusher(1, 2), 1, np.float32(1.0)))
            here.shards.set_ownership((0, 1))  # the next coordinator, first of all
            late.placement = here.client.placement
            late.push(ones, held, Push(Pusher(1, 2), 1, np.float32(1.0)))
        finally:
            late.close()
        np.testing.assert_array_equal(here.read("w"), -1.0)


def test_ledgers_name_the_lease_and_the_position_of_the_last_push(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as here:
        pusher = Pusher(1, 2)
        client = ShardedParameterClient("programs", here.placement, ("sgd", {}), pusher, deadline_s=10.0)
        ones, held = np.ones(SIZE, np.float32), np.zeros(len(here.placement.spans), np.int64)
        try:
            for sequence, (lease, position) in enumerate([(3, 10), (3, 20), (7, 5)], 1):
                client.push(ones, held, Push(pusher, sequence, np.float32(0.0), lease=lease, position=position))
                applied = {1: Applied(LedgerRow(1), 1), 2: Applied(LedgerRow(sequence, lease, position), sequence)}
                assert here.shards.ledgers() == applied
            move = MigrateSegments(0, 1, tuple(here.placement.places[0].segments)[-3:])
            here.shards.migrate(move)
            here.shards.placement = apply_migration(here.placement, move)
            here.shards.set_ownership((0, 1))
            assert here.shards.fence([2]) == applied
        finally:
            client.close()


def test_ledgers_of_fixed_segments_count_nothing(tmp_path: Path) -> None:
    """Replicas push to the first shard only, and to half of the second."""
    kinds = [Kind.TRAINED, Kind.SUMMED, Kind.SUMMED, Kind.FIXED, Kind.FIXED, Kind.FIXED]
    spans = tuple(SegmentSpan(index, 10 * index, 10, kind) for index, kind in enumerate(kinds))
    with cluster(tmp_path, 3, size=60, spans=spans) as here:
        pusher = Pusher(1, 2)
        client = ShardedParameterClient("programs", here.placement, ("sgd", {}), pusher, part=(0, 30), deadline_s=10.0)
        try:
            held = np.zeros(len(spans), np.int64)
            for sequence in (1, 2):
                push = Push(pusher, sequence, np.float32(0.5), lease=3, position=10 * sequence)
                client.push(np.ones(30, np.float32), held, push)
        finally:
            client.close()
        assert here.shards.ledgers()[2] == Applied(LedgerRow(2, 3, 20), 2)
        assert here.shards.fence([2])[2] == Applied(LedgerRow(2, 3, 20), 2)
        np.testing.assert_array_equal(here.read("w"), np.repeat([-1, 2, 2, 0, 0, 0], 10))
        move = MigrateSegments(0, 2, (1,))  # the third shard is pushed to from now on
        here.shards.migrate(move)
        here.shards.placement = apply_migration(here.placement, move)
        here.shards.set_ownership((0, 2))
        assert here.shards.ledgers()[2] == Applied(LedgerRow(2, 3, 20), 2)


def test_migration_to_a_dead_shard_fails_and_is_undone(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as here:
        here.servers[1].close(0.0)
        with pytest.raises(Moved, match="carry: shard at "):
            here.shards.migrate(MigrateSegments(0, 1, (0, 1)))
        with pytest.raises(Unavailable):
            here.shards.set_ownership((0, 1))
        here.dead.add(1)
        here.shards.set_ownership((0, 1))
        assert here.shards.stats(here.placement.places[0]).segments == here.placement.places[0].count


def test_shards_whose_join_is_not_answered_yet_write_a_file_each(tmp_path: Path) -> None:
    """The set of the initial values may be requested before the replies to the shards' joins arrive."""

    def unnumbered(service: ShardService) -> None:
        service.controller.index = -1

    with cluster(tmp_path, 2, prepare=unnumbered) as here:
        written = here.shards.snapshot("000000000000-0001")
        assert written == {"parts": {"shard-0.json": 1, "shard-1.json": 1}, "needs": []}
        rule, segments = "sgd", len(here.placement.spans)
        verify_shards(tmp_path / "snapshots" / "000000000000-0001", "000000000000-0001", "programs", rule, segments)


def test_channels_outside_the_placement_are_limited(tmp_path: Path) -> None:
    with cluster(tmp_path, 1) as here:
        (address,) = here.shards._channels
        for port in range(1, 41):
            here.shards._stub(ShardPlacement(0, f"127.0.0.1:{port}", 1, ()))
        assert address in here.shards._channels
        assert len(here.shards._channels) < 12
        here.shards.stats(here.placement.places[0])
