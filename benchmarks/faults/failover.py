"""Failover of replicated shards under load: the pause of pushes, and whether any push is lost or counts twice.

    python -m benchmarks.faults.failover [--kills 20] [--shards 2] [--clients 3] [--parameters 200k] [--seed 0]

A coordinator, two processes for each shard, and clients with custom loops that push gradients of small whole numbers as
fast as they can, by plain SGD at rate 1: so the parameters, whatever the order, are minus the sum of all pushes,
exactly. One process after another gets SIGKILL, a leader or a follower of some shard, drawn by the seed; a replacement
is started at once, which has to wait for its place: the coordinator detects the death by the lease only. The next kill
follows when all shards have their followers again.

Reported are: the longest push of each kill, from its call to its acknowledgement, over all clients (the failover's time
where a leader is killed); and in the end how many numbers of the parameters differ from the sum of the clients' own
logs of acknowledged pushes.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
from rich.table import Table

import dbelief
from benchmarks.harness import options, report, runs
from dbelief.rpc.client.coordinator_client import CoordinatorClient
from dbelief.rpc.pb import coordination_pb2 as wire

ROLES = ("leader", "follower")
LIMIT_S = 60.0
SETTLES_S = 2.0
"""Duration of undisturbed pushes before each kill."""


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

    def kill(self, address: str) -> None:
        """Kill one, and start another in its place."""
        process = self.processes.pop(address)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.start()

    def close(self) -> None:
        """Close the connection to the coordinator."""
        self._client.close()


def measure(kills: int, shards: int, clients: int, parameters: int, seed: int) -> dict[str, Any]:
    """All figures."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    with runs.temporary_run("failover") as run:
        job = run.own_loops(parameters, {"name": "sgd", "rate": 1.0})
        coordinator, address = run.coordinator({**job, "shards": shards, "replication": 2}, LIMIT_S)
        servers = Servers(run, address, shards)
        pushing: list[Pushing] = []
        try:
            pushing = [Pushing(address[1], number, seed) for number in range(clients)]
            for _ in range(kills):
                leaders, followers = runs.wait_for(servers.standing, "all shards to be followed", LIMIT_S)
                time.sleep(SETTLES_S)
                role = rng.choice(ROLES)
                victim = rng.choice(leaders if role == "leader" else followers)
                at_s = time.monotonic()
                servers.kill(victim)
                runs.wait_for(servers.standing, "all shards to be followed", LIMIT_S)
                rows.append({"killed": role, "longest_s": _longest(pushing, at_s)})
            for one in pushing:
                one.stop()
            wrong = int(np.count_nonzero(pushing[0].read() != -sum(one.sum for one in pushing)))
            acknowledged = sum(len(one.took) for one in pushing)
            lost = sum(one.lost for one in pushing)
        finally:
            for one in pushing:
                one.stop()
                one.close()
            servers.close()
            coordinator.send_signal(signal.SIGTERM)
            left = run.end()
    quiet = [seconds for one in pushing for _, seconds in one.took]
    return {
        "roles": [by_role(role, [row["longest_s"] for row in rows if row["killed"] == role]) for role in ROLES],
        "kills": rows,
        "shards": shards,
        "clients": clients,
        "parameters": parameters,
        "acknowledged": acknowledged,
        "reported_lost": lost,
        "wrong_numbers": wrong,
        "median_push_s": statistics.median(quiet),
        "left": left,
    }


def _longest(pushing: list[Pushing], since_s: float) -> float:
    """The longest push that ended after this moment."""
    return max(seconds for one in pushing for began_s, seconds in one.took if began_s + seconds >= since_s)


def by_role(role: str, longest: list[float]) -> dict[str, Any]:
    """The longest pushes after the kills of a role."""
    median = statistics.median(longest) if longest else None
    return {"killed": role, "kills": len(longest), "median_s": median, "longest_s": max(longest, default=None)}


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    title = (
        f"{found['acknowledged']:,} pushes of {found['parameters']:,} numbers acknowledged by {found['shards']} shards "
        f"to {found['clients']} clients; undisturbed {found['median_push_s'] * 1e3:.1f} ms each; "
        f"{found['wrong_numbers']} numbers differ from the clients' logs, "
        f"{found['reported_lost']} pushes reported as lost"
    )
    table = Table("killed", "kills", "longest push, median", "longest of all", title=title)
    for row in found["roles"]:
        if row["kills"]:
            table.add_row(row["killed"], str(row["kills"]), f"{row['median_s']:.2f} s", f"{row['longest_s']:.2f} s")
    report.show(table, found)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = measure(arguments.kills, arguments.shards, arguments.clients, arguments.parameters, arguments.seed)
    show(found)
    if found["wrong_numbers"] or found["reported_lost"] or found["left"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
