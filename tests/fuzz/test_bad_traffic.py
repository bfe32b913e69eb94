"""Bad messages at every port of a job: no process fails or grows, no weight changes, and training continues."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

import dbelief
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.security import Credentials, identity
from dbelief.training.client import Client
from tests.fuzz.attack import Attacker, strike
from tests.fuzz.messages import Fuzzer
from tests.fuzz.recording import recording
from tests.processes.conftest import Operator, Role

pytestmark = pytest.mark.processes

Roles = Callable[[str], Credentials]

SEED = 20_261_122
THREADS = 2
PARTS = 10
"""In how many parts the bad messages are sent; resident memory is read after each."""
GROWTH = 1.10
"""Most that a process may grow by, from the first half of all messages to the second, the first tenth left out."""
SWELLING = 4 << 20
"""Bytes that are no growth: pages of the allocator's, of which a small process has few."""

GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What callers hear where a job ends by itself, and its servers with it; how they ended their exit codes tell."""

MODEL = """
import numpy as np

class Table:
    def parameters(self, rng):
        return {"rows": rng.integers(-8, 8, (300, 1000)).astype(np.float32)}
    def loss_and_gradient(self, views, batch, out):
        raise NotImplementedError
"""
IDLE = """
name: besieged
model: {python: "table.py:Table"}
data: {source: none}
strategy: {name: downpour, rule: {name: sgd, rate: 1}}
limits: {wall_s: 3600}
shards: 2
replicas: 0
"""
TRAINS = """
name: besieged
model: {layers: [{dense: 32}, relu, {dense: 10}], loss: softmax_cross_entropy}
data: {source: digits}
strategy: STRATEGY
limits: {samples: SAMPLES}
shards: 2
replicas: 2
"""
DOWNPOUR = "{name: downpour, batch: 16, rule: {name: adagrad, rate: 0.03}}"
IN_STEP = "{name: sync-sgd, batch: 16, rule: {name: momentum, mu: 0.9, rate: 0.05}}"


class Besieged:
    """A job's processes with credentials, all of their ports known."""

    def __init__(self, operator: Operator, folders: Mapping[str, Path], job: str, workers: int) -> None:
        self.operator = operator
        file, mine = operator.folder / "job.yaml", folders["ours"]
        file.write_text(job)
        (operator.folder / "table.py").write_text(MODEL)

        def options(role: str) -> tuple[str, ...]:
            return ("--metrics", "127.0.0.1:0", "--credentials", str(mine / role))

        first, self.address = operator.coordinator(file, *options("coordinator"), "--page", "127.0.0.1:0")
        shards = [
            operator.start(f"ps-{n}", "ps", "--coordinator", self.address, *options("ps"), "--listen", "127.0.0.1:0")
            for n in range(2)
        ]
        others = [
            operator.start(f"worker-{n}", "worker", "--coordinator", self.address, *options("worker"))
            for n in range(workers)
        ]
        self.roles: list[Role] = [first, *shards, *others]
        self.servers = {
            "coordinator": [self.address],
            "ps": [shard.said(r" on (127\.0\.0\.1:\d+)$") for shard in shards],
        }
        metrics = [role.said(r"metrics on https://(127\.0\.0\.1:\d+)/") for role in self.roles]
        page = first.said(r"status page on https://(127\.0\.0\.1:\d+)/")
        self.ports = [*itertools.chain.from_iterable(self.servers.values()), *metrics, page]

    def sizes(self) -> dict[str, int]:
        """Resident bytes of each process."""
        found = {}
        for role in self.roles:
            assert role.process.poll() is None, f"{role.log}: {role.log.read_text()}"
            status = Path(f"/proc/{role.process.pid}/status").read_text()
            (found[role.log.stem],) = [int(line.split()[1]) << 10 for line in status.splitlines() if "VmRSS" in line]
        return found


def _attack(
    besieged: Besieged,
    make: Callable[[int], Fuzzer],
    mine: Credentials,
    count: int,
    first: int,
    until: Callable[[], bool] = lambda: False,
    may_end: Collection[grpc.StatusCode] = (),
) -> Counter[tuple[str, str]]:
    """Send `count` bad messages from the `first` seed on, three of four by gRPC, on a few threads; how they ended."""
    numbers = itertools.count(1)

    def one(seed: int) -> Counter[tuple[str, str]]:
        fuzzer, chance = make(seed), random.Random(seed)
        attacker = Attacker(besieged.servers, mine)
        try:
            while next(numbers) <= count and not until():
                if chance.random() < 0.75:
                    attacker.send(fuzzer.call())
                else:
                    strike(chance.choice(besieged.ports), chance)
                    attacker.outcomes["bytes", "sent"] += 1
            foul = [one for one in attacker.foul if one[1] not in may_end]
            assert not foul, [(call.method, call.kind, code, why) for call, code, why in foul[:3]]
            return attacker.outcomes
        finally:
            attacker.close()

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(one, range(first, first + THREADS)), Counter[tuple[str, str]]())


def _without_records(seed: int) -> Fuzzer:
    return Fuzzer(seed, {}, alive=frozenset(range(1, 100)))  # lives are numbered from 1


def _least(sizes: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The least of several readings of each process: one reading may include messages in flight, some of megabytes."""
    return {name: min(reading[name] for reading in sizes) for name in sizes[0]}


def _push(client: Client, times: int, first: int = 0) -> None:
    """Integer-valued gradients, so that sums are exact in any order."""
    for number in range(first, first + times):
        client.pull()
        client.push({"rows": np.full((300, 1000), number % 5 - 2, np.float32)}, loss=1.0)


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1_500)])])
def test_a_job_at_rest_stays_as_it_is(
    count: int, operator: Operator, folders: dict[str, Path], ours: Roles, monkeypatch: pytest.MonkeyPatch
) -> None:
    besieged = Besieged(operator, folders, IDLE, workers=0)
    mine = ours("worker")
    monkeypatch.setattr(identity._Identity, "loaded", mine)
    with recording() as recorder:
        # All its calls go over gRPC.
        client = dbelief.connect(besieged.address, shared_memory=False, direct_streams=False)
        with dbelief.connect(besieged.address) as guest:
            _push(guest, 3)
            ended = guest._session.pusher.incarnation
        _push(client, 10)
        rows = client.pull()["rows"].copy()
        genuine = recorder.whole()
    assert {name.rpartition("/")[2] for name in genuine} >= {"Join", "Beat", "Report", "Status", "Push", "Pull"}

    # A bad message may be a complete Join: a report of the guest's with one bit changed would be that member's own.
    alive = frozenset(range(1, 100_000)) - {ended}
    make = functools.partial(Fuzzer, genuine=genuine, alive=alive)
    outcomes = Counter[tuple[str, str]]()
    sizes = []
    # A process keeps the memory of its longest message: seldom drawn, it is no growth whenever it comes.
    attacker = Attacker(besieged.servers, mine)
    for call in make(SEED).longest():
        attacker.send(call)
    attacker.close()
    for part in range(PARTS):
        outcomes += _attack(besieged, make, mine, count // PARTS, SEED + part * THREADS)
        sizes.append(besieged.sizes())
    before, after = _least(sizes[1 : PARTS // 2]), _least(sizes[PARTS // 2 :])
    grown = {name: after[name] / before[name] for name in before}
    print(f"{count:,} bad messages: {dict(sorted(outcomes.items()))}")
    print(f"growth of resident memory: {', '.join(f'{name} {ratio:.3f}' for name, ratio in grown.items())}")
    for name, ratio in grown.items():
        assert ratio <= GROWTH or after[name] - before[name] <= SWELLING, sizes

    assert np.array_equal(client.pull()["rows"], rows)
    _push(client, 5, first=10)
    assert np.array_equal(client.pull()["rows"], rows - sum(number % 5 - 2 for number in range(10, 15)))
    client.close()
    monkeypatch.setattr(identity._Identity, "loaded", ours("operator"))
    coordinator = CoordinatorClient(besieged.address)
    assert coordinator.status().samples == 18
    coordinator.call("Stop", wire.StopRequest(reason="enough"))
    coordinator.close()
    assert [role.ends() for role in besieged.roles] == [0, 0, 0]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("samples", [12_000, 300_000])
@pytest.mark.parametrize("strategy", [DOWNPOUR, IN_STEP], ids=["downpour", "in-step"])
def test_training_beside_it_ends_well(
    samples: int, strategy: str, operator: Operator, folders: dict[str, Path], ours: Roles
) -> None:
    besieged = Besieged(
        operator, folders, TRAINS.replace("STRATEGY", strategy).replace("SAMPLES", str(samples)), workers=2
    )
    if strategy == IN_STEP:
        besieged.ports += [role.said(r"other workers reach it on (127\.0\.0\.1:\d+)") for role in besieged.roles[3:]]
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        attack = pool.submit(_attack, besieged, _without_records, ours("worker"), 1_000_000, SEED, over.is_set, GONE)
        try:
            codes = [role.process.wait(600) for role in besieged.roles]
        finally:
            over.set()
    assert codes == [0] * 5, "\n".join(role.log.read_text() for role in besieged.roles)
    accuracy = operator.summary("besieged")["test_accuracy"]
    print(f"{attack.result().total():,} bad messages beside {samples:,} samples: test accuracy {accuracy:.4f}")
    assert accuracy > 0.9
