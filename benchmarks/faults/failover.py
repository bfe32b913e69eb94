"""Failover of replicated shards under load: the pause of pushes, and whether any push is lost or counts twice.

    python -m benchmarks.faults.failover [--strategy downpour|diloco|tables] [--kills 20] [--shards 2] [--clients 3]
        [--parameters 200_000] [--seed 0] [--settles 2] [--scale 30:5,70:3]

A coordinator, two processes for each shard, and clients with custom loops that push gradients of small whole numbers as
fast as they can, by plain SGD at rate 1: so the parameters, whatever the order, are minus the sum of all pushes,
exactly. One process after another gets SIGKILL, a leader or a follower of some shard, drawn by the seed; a replacement
is started at once, which has to wait for its place: the coordinator detects the death by the lease only. The next kill
follows when all shards have their followers again.

Reported are: the longest push of each kill, from its call to its acknowledgement, over all clients (the failover's time
where a leader is killed); and in the end how many numbers of the parameters differ from the sum of the clients' own
logs of acknowledged pushes.

With --strategy diloco two learners train in place of the clients, which count their samples (`counting.py`): how many
numbers differ from the counts, and how many samples these lack or have twice, over all rows of the model. With
--strategy tables two replicas of a script push the rows of a table (`row_counting.py`, which needs torch).

--scale 30:5,70:3 scales the job to five shards after 30 kills, and to three after 70, while it trains.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from rich.table import Table

import dbelief
from benchmarks.faults import counting, row_counting
from benchmarks.harness import options, report, runs
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire

ROLES = ("leader", "follower")
LIMIT_S = 60.0


class Load(Protocol):
    """What pushes while shards are killed."""

    def trains(self) -> bool | None:
        """Whether it has pushed; None before."""
        ...

    def longest_s(self, since_s: float) -> float | None:
        """The longest push that ended after this moment."""
        ...

    def end(self, coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
        """Stop, and compare the parameters with what was acknowledged; the figures."""
        ...

    def close(self) -> None:
        """Stop, after a failure too."""
        ...


class Pushing:
    """A client that pushes whole numbers until `stop`, and logs acknowledged pushes."""

    def __init__(self, address: str, number: int, seed: int) -> None:
        self._client = dbelief.connect(address, LIMIT_S)
        self._rng = np.random.default_rng([seed, number])
        self.sum = np.zeros(self._client.pull()["w"].size, np.int64)
        self.took: list[tuple[float, float]] = []  # start of each push, and its duration
        self.lost = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._client.pull()
            gradient = self._rng.integers(-3, 4, self.sum.size)
            began_s = time.monotonic()
            pushed = self._client.push({"w": gradient.astype(np.float32)}, rate=1.0)
            self.took.append((began_s, time.monotonic() - began_s))
            self.sum += gradient
            self.lost += pushed.lost

    def stop(self) -> None:
        """Stop after the acknowledgement of its current push."""
        self._stop.set()
        self._thread.join()

    def read(self) -> np.ndarray:
        """The current parameters."""
        return self._client.pull()["w"].copy()

    def close(self) -> None:
        """Leave the job."""
        self._client.close()


class Servers:
    """Two processes for each shard, known by the addresses they listen at."""

    def __init__(self, run: runs.Run, coordinator: list[str], shards: int) -> None:
        self._run, self._options = run, coordinator
        self._numbers = itertools.count()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._client = CoordinatorClient(coordinator[1])
        for _ in range(2 * shards):
            self.start()

    def start(self) -> None:
        """One more."""
        name = f"ps-{next(self._numbers)}"
        address = f"127.0.0.1:{runs.free_port()}"
        self.processes[address] = self._run.start(name, ["ps", *self._options, "--listen", address])

    def standing(self) -> tuple[list[str], list[str]] | None:
        """Addresses of leaders and of followers; None while a death is not detected, or a shard has no follower."""
        status = self._client.call("Status", wire.StatusRequest(placement=True))
        shards = [member for member in status.members if member.role == wire.ROLE_SHARD]
        there = {int(member.name.rpartition(":")[2]) for member in shards if member.state not in ("left", "died")}
        followed = sum(member.state == "following" for member in shards)
        if there != {process.pid for process in self.processes.values()} or 2 * followed < len(there):
            return None
        leaders = [place.address for place in status.placement.shards]
        running = [address for address, process in self.processes.items() if process.poll() is None]
        return leaders, [address for address in running if address not in leaders]

    def scale(self, shards: int) -> None:
        """Have so many shards from now on: more processes are started, or those that the job does without end."""
        before = self._client.call("Scale", wire.ScaleRequest(shards=shards)).before
        for _ in range(2 * (shards - before)):
            self.start()
        runs.wait_for(lambda: self._ended(2 * max(0, before - shards)), f"{shards} shards", LIMIT_S)
        runs.wait_for(lambda: len((self.standing() or [()])[0]) == shards or None, f"{shards} shards", LIMIT_S)

    def _ended(self, count: int) -> bool | None:
        """Whether so many processes have ended by themselves; they are forgotten then."""
        ended = [address for address, process in self.processes.items() if process.poll() == 0]
        if len(ended) < count:
            return None
        for address in ended:
            del self.processes[address]
        return True

    def kill(self, address: str) -> None:
        """Kill one, and start another in its place."""
        process = self.processes.pop(address)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.start()

    def close(self) -> None:
        """Close the connection to the coordinator."""
        self._client.close()


class Clients:
    """All clients with custom loops."""

    def __init__(self, address: str, count: int, seed: int) -> None:
        self._all: list[Pushing] = []
        try:
            for number in range(count):
                self._all.append(Pushing(address, number, seed))
        except BaseException:
            self.close()
            raise

    def trains(self) -> bool | None:
        """See `Load`."""
        return all(one.took for one in self._all) or None

    def longest_s(self, since_s: float) -> float | None:
        """See `Load`."""
        return max(seconds for one in self._all for began_s, seconds in one.took if began_s + seconds >= since_s)

    def end(self, coordinator: subprocess.Popen[bytes]) -> dict[str, Any]:
        """See `Load`."""
        for one in self._all:
            one.stop()
        wrong = int(np.count_nonzero(self._all[0].read() != -sum(one.sum for one in self._all)))
        took = [seconds for one in self._all for _, seconds in one.took]
        lost = sum(one.lost for one in self._all)
        found = {"acknowledged": len(took), "reported_lost": lost, "wrong_numbers": wrong}
        return {**found, "median_push_s": statistics.median(took)}

    def close(self) -> None:
        """See `Load`."""
        for one in self._all:
            one.stop()
            one.close()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    shards, parameters, seed = arguments.shards, arguments.parameters, arguments.seed
    scale = dict(arguments.scale)
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    with runs.temporary_run("failover") as run:
        job, begin = load_of(arguments, run)
        coordinator, address = run.coordinator({**job, "shards": shards, "replication": 2}, LIMIT_S)
        servers = Servers(run, address, shards)
        load: Load | None = None
        try:
            load = begin(address)
            runs.wait_for(load.trains, "the first pushes", LIMIT_S)
            for kill in range(arguments.kills):
                if kill in scale:
                    servers.scale(scale[kill])
                leaders, followers = runs.wait_for(servers.standing, "all shards to be followed", LIMIT_S)
                time.sleep(arguments.settles)
                role = rng.choice(ROLES)
                victim = rng.choice(leaders if role == "leader" else followers)
                at_s = time.monotonic()
                servers.kill(victim)
                runs.wait_for(servers.standing, "all shards to be followed", LIMIT_S)
                followed_s = round(time.monotonic() - at_s, 2)
                rows.append({"killed": role, "longest_s": load.longest_s(at_s), "followed_s": followed_s})
                report.progress(rows[-1])
            found = load.end(coordinator)
        finally:
            if load is not None:
                load.close()
            servers.close()
            coordinator.send_signal(signal.SIGTERM)
            left = run.end()
    return {
        "roles": [by_role(role, [row["longest_s"] for row in rows if row["killed"] == role]) for role in ROLES],
        "kills": rows,
        "strategy": arguments.strategy,
        "shards": shards,
        "scaled": list(scale.values()),
        "clients": arguments.clients if arguments.strategy == "downpour" else counting.LEARNERS,
        "parameters": parameters,
        **found,
        "left": left,
    }


def load_of(arguments: argparse.Namespace, run: runs.Run) -> tuple[dict[str, Any], Callable[[list[str]], Load]]:
    """The job of a strategy, and what starts its load with the options of a member."""
    seed = arguments.seed
    if arguments.strategy == "diloco":
        return counting.job_of(run, arguments.parameters, seed), lambda given: counting.Learners(run, given, seed)
    if arguments.strategy == "tables":
        return row_counting.job_of(run, seed), lambda given: row_counting.Replicas(run, given, seed)
    job = run.own_loops(arguments.parameters, {"name": "sgd", "rate": 1.0})
    return job, lambda given: Clients(given[1], arguments.clients, seed)


def scaled(text: str) -> list[tuple[int, int]]:
    """Kills and shards of --scale."""
    pairs = [part.split(":") for part in text.split(",") if part]
    return [(int(kills), int(shards)) for kills, shards in pairs]


def by_role(role: str, longest: list[float | None]) -> dict[str, Any]:
    """The longest pushes after the kills of a role, where they are timed."""
    known = [seconds for seconds in longest if seconds is not None]
    median = statistics.median(known) if known else None
    return {"killed": role, "kills": len(longest), "median_s": median, "longest_s": max(known, default=None)}


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    timed = "median_push_s" in found
    title = (
        f"{found['acknowledged']:,} pushes of {found['parameters']:,} numbers acknowledged by {found['shards']} shards "
        f"to {found['clients']} clients"
        + (f"; undisturbed {found['median_push_s'] * 1e3:.1f} ms each" if timed else "")
        + f"; {found['wrong_numbers']} numbers differ from what was acknowledged, "
        f"{found['reported_lost']} pushes reported as lost"
        + ("" if timed else f", {found['lost']} samples lost and {found['doubled']} doubled")
    )
    table = Table("killed", "kills", "longest push, median", "longest of all", title=title)
    for row in found["roles"]:
        if row["kills"]:
            seconds = ["" if row[name] is None else f"{row[name]:.2f} s" for name in ("median_s", "longest_s")]
            table.add_row(row["killed"], str(row["kills"]), *seconds)
    report.show(table, found)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--strategy", choices=("downpour", "diloco", "tables"), default="downpour")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=scaled, default=[], help="KILLS:SHARDS,...: scale after so many kills")
    parser.add_argument("--settles", type=float, default=2.0, help="seconds of undisturbed pushes before each kill")
    found = measure(parser.parse_args())
    show(found)
    if found["wrong_numbers"] or found["reported_lost"] or found["left"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
