"""The cost of a coordinator by its number of members.

    python -m benchmarks.coordinator.members [--members 16,64,256,1000] [--past 0] [--seconds 10] [--every 0]
        [--registry valkey] [--tls]

A coordinator, its registry and one shard are processes of their own; the members are simulated here, and call Join,
Beat, Report and Lease as workers do, by real stubs and on real connections. They compute and push nothing: a lease is
reported as done with the request for the next one, in one call. All members have joined before the clock starts.

Closed loop (`--every 0`): 16 threads take the members in turn, without a pause; a row gives what the coordinator can
serve. Paced (`--every 10`): each member asks for a lease every so many seconds, reports its progress within it, and
sends heartbeats, at the intervals that the coordinator sets; a row gives the delays at that load. The columns:

    past        members that have joined, had a lease, and left before the clock starts (`--past 0,10000`: rows of each)
    leases per s
                leases granted; each with one report and one commit
    cpu ms      processor time of the coordinator for each of them; of a closed loop without heartbeats, which have a
                phase of their own (`beat ms`)
    bytes       added to the registry's file for each of them
    removed     members that the coordinator removed

`--tls`: with TLS and tokens, as on machines that do not trust each other.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report, runs
from dbelief.core.layout import Layout
from dbelief.core.placement import Placement
from dbelief.core.push import Push, Pusher
from dbelief.errors import RuntimeFailure
from dbelief.process.clock import SystemClock
from dbelief.registry import EmbeddedRegistry
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.client.shard_client import ShardedParameterClient
from dbelief.rpc.pb import coordination_pb2 as wire
from dbelief.rpc.wire.convert import layout_to_wire, placement_from_wire
from dbelief.security.identity import load as load_credentials

FEATURES = 10
LAYOUT = Layout.whole({"0.weight": (FEATURES, 1), "0.bias": (1,)})
BATCH, PUSHES = 10, 64
DEADLINE_S = 120.0
PHASES = {"compute": 1.5, "fetch": 0.5, "push": 0.25, "wait": 0.125, "gather": 0.0625}
STALENESS = [9, 30, 20, 4, 1]
CALLERS = 16
REPORT_EVERY_S = 0.5  # of a worker
BEAT_S = 5.0
QUIET_S = 2.0
"""Seconds without a commit after which no past member is unsettled."""
BEATS_S = 2.0
"""Between heartbeats of those that have joined while others join."""


def job(members: int, beat_s: float = BEAT_S) -> dict[str, Any]:
    """A job whose leases never end; `beat_s`: the timeout of heartbeats."""
    return {
        "name": "members",
        "model": {"layers": [{"dense": 1}], "loss": "square"},
        "data": {"source": "synthetic", "kind": "regression", "samples": 1_000_000, "features": FEATURES, "noise": 0.0},
        "strategy": {
            "name": "downpour",
            "batch": BATCH,
            "lease": BATCH * PUSHES,
            "rule": {"name": "sgd", "rate": 0.1},
            "warm_start": None,
        },
        "evaluate": {"every": 10**12},
        "snapshots": {"every_s": None},
        "deadlines": {"beat_s": beat_s},
        "limits": {"wall_s": 36_000},
        "shards": 1,
        "replicas": members,
    }


@dataclass
class Member:
    """One simulated worker: what it has joined as, and its lease."""

    client: CoordinatorClient
    id: int = 0
    incarnation: int = 0
    run_id: int = 0
    first: int = 0  # numbers that initial values took
    pushes: int = 0  # of its finished leases
    lease: int = 0
    placement: Placement | None = None
    beat_every_s: float = 0.0
    report_every_s: float = 0.0
    called_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def join(self, layout: list[wire.Tensor], token: int) -> None:
        """Join as a replica."""
        reply = self.client.call(
            "Join",
            wire.JoinRequest(
                role=wire.ROLE_REPLICA,
                job="members",
                name=f"simulated-{token}",
                layout=layout,
                token=token,
            ),
        )
        self.id, self.incarnation, self.run_id = reply.id, reply.incarnation, reply.run_id

    def beat(self) -> wire.BeatReply:
        """Send a heartbeat; raises RuntimeFailure where the coordinator has removed this member."""
        epoch = self.placement.epoch if self.placement is not None else 0
        reply = self._call_beat(placement_epoch=epoch)
        if not reply.member:
            raise RuntimeFailure(f"replica {self.id} was removed")
        self.beat_every_s = reply.beat_every_s
        if reply.HasField("placement"):
            self.placement = placement_from_wire(reply.placement)
        return reply

    def leave(self) -> None:
        """Leave the job."""
        self._call_beat(leaving=True, reason="it is past")

    def report(self, pushes: int) -> None:
        """Report so many pushes of its lease."""
        self._call_report(self._progress(pushes))

    def work(self) -> None:
        """Request the next lease, and report the one that it holds as done with the request."""
        asked_s = time.monotonic()
        request = wire.LeaseRequest(
            replica=self.id,
            incarnation=self.incarnation,
            run_id=self.run_id,
            last_lease=self.lease,
            report=self._progress(PUSHES) if self.lease else None,
        )
        reply = self.client.call("Lease", request)
        self.waits_s.append(time.monotonic() - asked_s)
        if not reply.HasField("training"):
            raise RuntimeFailure(f"replica {self.id} wanted a lease and got {reply.WhichOneof('work')}: {reply.stop}")
        self.pushes += PUSHES if self.lease else 0
        self.called_s, self.lease = asked_s, reply.training.lease

    def initialise(self) -> None:
        """Push the initial values, all zeros."""
        while not (self.beat().initialise and self.placement is not None):
            time.sleep(0.02)
        pusher = Pusher(self.id, self.incarnation)
        client = ShardedParameterClient("members", self.placement, pusher=pusher, deadline_s=DEADLINE_S)
        try:
            held = np.zeros(len(self.placement.spans), np.int64)
            client.push(np.zeros(self.placement.size, np.float32), held, Push(pusher, 1, assign=True))
        finally:
            client.close()
        self.first = 1
        self._call_report(self._request(initialised_in=self.placement.epoch))
        while self.beat().state != wire.STATE_READY:
            time.sleep(0.02)

    def _call_beat(self, **fields: Any) -> wire.BeatReply:
        request = wire.BeatRequest(
            role=wire.ROLE_REPLICA, id=self.id, incarnation=self.incarnation, run_id=self.run_id, **fields
        )
        reply: wire.BeatReply = self.client.call("Beat", request)
        return reply

    def _progress(self, pushes: int) -> wire.ReportRequest:
        """Report on all its pushes, so many of them in its lease."""
        position, pushes = BATCH * pushes, self.pushes + pushes
        return self._request(
            progress=wire.Progress(
                lease=self.lease,
                position=position,
                sequence=self.first + pushes,
                pushes=pushes,
                samples=BATCH * pushes,
                steps=pushes,
                loss_sum=0.1 * BATCH * pushes,
                staleness_sum=1.5 * pushes,
            ),
            wire=wire.WireFigures(sent=pushes * 4_000, received=pushes * 4_000),
        )

    def _request(self, **fields: Any) -> wire.ReportRequest:
        seconds = {phase: seconds * self.pushes for phase, seconds in PHASES.items()}
        staleness = [self.pushes * count for count in STALENESS]
        return wire.ReportRequest(seconds=seconds, staleness=staleness, **fields)

    def _call_report(self, request: wire.ReportRequest) -> None:
        request.replica, request.incarnation, request.run_id = self.id, self.incarnation, self.run_id
        self.called_s = time.monotonic()
        reply: wire.ReportReply = self.client.call("Report", request)
        if reply.beat_now:
            raise RuntimeFailure(f"replica {self.id} was removed")
        self.report_every_s = reply.report_every_s


class Cluster:
    """A coordinator with its registry and a shard, and the simulated members."""

    def __init__(
        self,
        run: runs.Run,
        members: int,
        registry_url: str,
        registry: Path | None,
        tls: bool = False,
        beat_s: float = BEAT_S,
    ) -> None:
        self.run = run
        shown = _credentials(run.folder / "certs") if tls else {"coordinator": [], "ps": []}
        self._arguments = ["--registry", registry_url, "--no-pictures", "--name", "coordinator", *shown["coordinator"]]
        self.coordinator, members_options = run.coordinator(job(members, beat_s), DEADLINE_S, self._arguments)
        run.start("ps", ["ps", *members_options, *shown["ps"]])
        self._address = members_options[1]
        self.clients = [CoordinatorClient(self._address, patience_s=DEADLINE_S) for _ in range(min(members, CALLERS))]
        self.members = [Member(self.clients[number % len(self.clients)]) for number in range(members)]
        self._registry = registry

    def start(self) -> float:
        """The first member joins and pushes the initial values, then the others join; seconds of these joins."""
        layout = layout_to_wire(LAYOUT)
        # Of all that send heartbeats the coordinator takes the first one for the initial values.
        self.members[0].join(layout, 1)
        self.members[0].initialise()
        joined, ready = [self.members[0]], threading.Event()

        def keep() -> None:  # thousands join for longer than a heartbeat's timeout
            while not ready.wait(BEATS_S):
                for member in joined[:]:
                    member.beat()

        def join(member: Member, number: int) -> None:
            if number:
                member.join(layout, number + 1)
                joined.append(member)

        with ThreadPoolExecutor(1) as thread:
            beats, began_s = thread.submit(keep), time.monotonic()
            try:
                self.each(join)
                took_s = time.monotonic() - began_s
            finally:
                ready.set()
            beats.result()
        return took_s

    def pass_by(self, past: int) -> None:
        """So many further members join, have a lease, and leave, while the others send heartbeats."""
        layout, count = layout_to_wire(LAYOUT), len(self.clients)

        def some(first: int) -> None:
            for turn, number in enumerate(range(first, past, count)):
                member = Member(self.clients[first])
                member.join(layout, len(self.members) + number + 1)
                member.work()
                member.report(PUSHES)
                member.leave()
                self.members[(first + turn) % len(self.members)].beat()  # also those of threads that have ended

        in_threads(count, some)
        written = -1
        while past and written != self.written():  # until the shards have fenced them all
            written = self.written()
            time.sleep(QUIET_S)
            self.each(lambda member, _: member.beat())

    def fail_over(self) -> None:
        """Kill the coordinator, and start another one under its name and address."""
        self.coordinator.kill()
        self.coordinator.wait()
        command = ["coordinator", "job.yaml", "--set", f"output={self.run.folder}", "--listen", self._address]
        self.coordinator = self.run.start("coordinator-2", [*command, *self._arguments])

    def each(self, do: Callable[[Member, int], object]) -> None:
        """Call `do` for every member and its number, by one thread a connection."""
        count = len(self.clients)
        in_threads(count, lambda first: [do(self.members[n], n) for n in range(first, len(self.members), count)])

    def cpu_s(self) -> float:
        """Processor time of the coordinator so far, in seconds."""
        return runs.processor_s([self.coordinator])

    def written(self) -> int:
        """Bytes of the registry's files."""
        files = self._registry.rglob("*") if self._registry is not None else []
        return sum(file.stat().st_size for file in files if file.is_file())

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients:
            client.close()


def _credentials(folder: Path) -> dict[str, list[str]]:
    """Make credentials, load a worker's here, and return the options of the other roles."""
    subprocess.run([*runs.COMMAND, "certs", str(folder)], check=True, stdout=subprocess.DEVNULL)
    load_credentials(folder / "worker")
    return {role: ["--credentials", str(folder / role)] for role in ("coordinator", "ps")}


def in_threads(count: int, do: Callable[[int], object]) -> None:
    """Call `do` in so many threads with their number; raises what the first of them raised that failed."""
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(do, range(count)))


def closed_loop(cluster: Cluster, seconds: float, act: Callable[[Member], object]) -> int:
    """Every connection's members act in turn, without a pause; how often."""
    done = [0] * len(cluster.clients)
    until_s = time.monotonic() + seconds

    def one(first: int) -> None:
        mine = cluster.members[first :: len(cluster.clients)]
        for member in itertools.cycle(mine):
            if time.monotonic() > until_s:
                return
            act(member)
            done[first] += 1

    in_threads(len(cluster.clients), one)
    return sum(done)


def paced(cluster: Cluster, seconds: float, every_s: float) -> tuple[int, int]:
    """Members ask every `every_s` seconds, report and send heartbeats; leases, and members that were removed."""
    leases, removed = [0] * len(cluster.clients), [0] * len(cluster.clients)
    ends_s = [0.0] * len(cluster.members)
    began_s = time.monotonic()

    def one(first: int) -> None:
        due = []
        for number in range(first, len(cluster.members), len(cluster.clients)):
            member, share = cluster.members[number], number / len(cluster.members)
            due.append((began_s + every_s * share, number, "work"))
            due.append((began_s + member.beat_every_s * share, number, "beat"))
        heapq.heapify(due)
        while due and due[0][0] < began_s + seconds:
            at_s, number, what = heapq.heappop(due)
            time.sleep(max(0.0, at_s - time.monotonic()))
            member = cluster.members[number]
            try:
                if what == "beat":
                    left_s = member.called_s + member.beat_every_s - time.monotonic()
                    if left_s <= 0:
                        member.beat()
                        left_s = member.beat_every_s
                    heapq.heappush(due, (time.monotonic() + left_s, number, "beat"))
                elif what == "report":
                    member.report(round(PUSHES * (1 - (ends_s[number] - at_s) / every_s)))
                else:
                    member.work()
                    leases[first] += 1
                    ends_s[number] = at_s + every_s
                    heapq.heappush(due, (at_s + every_s, number, "work"))
                # As a worker: the report at a lease's end goes with the request for the next one.
                again_s = at_s + max(REPORT_EVERY_S, member.report_every_s)
                if what != "beat" and again_s < ends_s[number]:
                    heapq.heappush(due, (again_s, number, "report"))
            except RuntimeFailure:
                removed[first] += what == "beat"

    in_threads(len(cluster.clients), one)
    return sum(leases), sum(removed)


def one(members: int, past: int, seconds: float, every_s: float, registry: str, tls: bool) -> dict[str, Any]:
    """The figures of one number of members."""
    with runs.temporary_run("members") as run, opened(registry, run.folder) as (url, folder):
        cluster = Cluster(run, members, url, folder, tls)
        try:
            join_s = cluster.start()
            cluster.pass_by(past)
            cluster.each(lambda member, _: member.beat())
            cluster.each(lambda member, _: member.work())  # the first lease has no report before it
            for member in cluster.members:
                member.waits_s.clear()
            return {"members": members, "past": past, "join_s": join_s, **measured(cluster, seconds, every_s)}
        finally:
            cluster.close()


def measured(cluster: Cluster, seconds: float, every_s: float) -> dict[str, Any]:
    """Leases, and in a closed loop heartbeats apart."""
    cpu_s, written, began_s, removed = cluster.cpu_s(), cluster.written(), time.monotonic(), 0
    if every_s:
        leases, removed = paced(cluster, seconds, every_s)
    else:
        leases = closed_loop(cluster, seconds, Member.work)
    took_s = time.monotonic() - began_s
    waits_s = sorted(wait_s for member in cluster.members for wait_s in member.waits_s)
    figures = {
        "leases_per_s": leases / took_s,
        "cpu_ms": (cluster.cpu_s() - cpu_s) / leases * 1e3,
        "median_ms": statistics.median(waits_s) * 1e3,
        "p99_ms": waits_s[int(0.99 * len(waits_s))] * 1e3,
        "bytes": (cluster.written() - written) / leases,
        "removed": removed,
    }
    if not every_s:
        cpu_s = cluster.cpu_s()
        beats = closed_loop(cluster, seconds / 2, Member.beat)
        figures["beat_ms"] = (cluster.cpu_s() - cpu_s) / beats * 1e3
    return figures


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[tuple[str, Path | None]]:
    """A registry of this kind: its URL, and its folder."""
    if kind == "memory":
        yield "memory:", None
        return
    with EmbeddedRegistry(folder / "registry", clock=SystemClock()) as registry:
        yield registry.url, folder / "registry"


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--members", type=options.numbers, default="16,64,256,1000", help="numbers of members")
    parser.add_argument("--past", type=options.numbers, default="0", help="numbers of members that have left")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each row")
    parser.add_argument("--every", type=float, default=0.0, help="seconds between a member's leases; 0: closed loop")
    parser.add_argument("--registry", choices=["valkey", "memory"], default="valkey")
    parser.add_argument("--tls", action="store_true", help="with credentials of `dbelief certs`")
    arguments = parser.parse_args()
    rows = []
    for members, past in itertools.product(arguments.members, arguments.past):
        rows.append(one(members, past, arguments.seconds, arguments.every, arguments.registry, arguments.tls))
        report.progress(rows[-1])
    digits = {"join_s": 2, "leases_per_s": 0, "cpu_ms": 2, "median_ms": 1, "p99_ms": 1, "bytes": 0, "beat_ms": 3}
    table = Table("members", "past", *(name.replace("_", " ") for name in digits), "removed")
    for row in rows:
        figures = (f"{row[name]:,.{places}f}" if name in row else "" for name, places in digits.items())
        table.add_row(str(row["members"]), str(row["past"]), *figures, str(row["removed"]))
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
