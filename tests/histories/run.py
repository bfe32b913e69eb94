"""One history of real processes: starts a job and its clients, carries out the plan's faults, merges the records."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.faults.process_faults import pause
from tests.processes.conftest import Operator, Role, operating, wait_for

from .client import SEGMENT, Options
from .plan import Kind, Plan, Transport
from .proxy import Proxy
from .recorded import merge

CLIENTS, MOST_CLIENTS, SHARDS = 4, 6, 2
"""Clients at first; and with those that replace killed ones; shards."""
READER = 0.97
"""Share of pulls among the calls of the first client: it is the last to find out that a leader was replaced."""
SEGMENTS = 3 * SHARDS
"""As many as a small model's shards have, so that each is of `SEGMENT` numbers."""
BUCKETS = 2 * SHARDS
"""Of a table, which follow the segments."""
UNPLANNED_S = 30.0
"""How long before the event of a promotion that no fault asked for its leader may have been unreachable, in seconds."""

MODEL = f"""
import numpy as np

class Counters:
    def parameters(self, rng):
        return {{"w": np.zeros({SEGMENTS * SEGMENT}, np.float32)}}

    def loss_and_gradient(self, views, batch, out):
        raise NotImplementedError
"""
JOB = """
name: recorded
model: {{{model}}}
data: {{{data}}}
tables: {{{tables}}}
strategy: {strategy}
limits: {{samples: 1000000000}}
evaluate: {{every: 1000000000}}
shards: {shards}
replication: {replication}
replicas: {replicas}
snapshots: {{every_s: null}}
deadlines: {{beat_s: 4, lease_s: 2}}
"""
DOWNPOUR = "{{name: downpour, batch: 1, staleness: {staleness}, rule: {{name: sgd, rate: 1.0}}, warm_start: {warm}}}"
TABLE = f"counts: {{width: {MOST_CLIENTS}, rule: {{name: sgd, rate: 1.0}}, init: zeros, buckets: {BUCKETS}}}"
ELASTIC = "{name: async-easgd, batch: 1, rate: 0.1, rho: 1.0}"


@dataclass
class Recorded:
    """A history, and what happened during it.

    Attributes
    ----------
    lines
        As `checker.py` describes them.
    calls
        Calls of clients, each on all segments.
    faults
        How often each kind of fault has really happened.
    lost
        Pushes and exchanges that shards reported as lost.
    """

    lines: list[dict[str, Any]]
    calls: int
    faults: Counter[str]
    lost: int


@dataclass
class Run:
    """The processes of one history, and its faults so far."""

    plan: Plan
    operator: Operator
    calls: int
    address: str = ""
    clients: list[Role] = field(default_factory=list)
    leaders: dict[int, Role] = field(default_factory=dict)
    proxies: list[Proxy] = field(default_factory=list)
    windows: dict[int, tuple[float, float]] = field(default_factory=dict)  # by shard: its promotion
    faults: Counter[str] = field(default_factory=Counter)

    # -- processes ---------------------------------------------------------------------------------------

    def credentials(self, role: str) -> list[str]:
        """Options of a process with this role."""
        if self.plan.transport is not Transport.TLS:
            return []
        return ["--credentials", str(self.operator.folder / "certs" / role)]

    def start_shard(self, name: str) -> Role:
        """Start a shard, or a follower where all shards are there; behind a proxy where links are cut."""
        links: list[str] = []
        if self.plan.kind is Kind.CUT:
            proxy = Proxy()
            self.proxies.append(proxy)
            links = ["--listen", f"127.0.0.1:{proxy.target}", "--advertise", f"127.0.0.1:{proxy.port}"]
            links.append("--no-direct-streams")  # which would not go through the proxy
            if self.plan.transport is not Transport.TLS:
                links.append("--insecure")  # the token of a process on loopback names its port, which is the proxy's
        return self.operator.start(name, "ps", "--coordinator", self.address, *links, *self.credentials("ps"))

    def start_client(self, number: int) -> None:
        """Start a client program."""
        options = Options(
            self.address,
            number,
            MOST_CLIENTS,
            str(self.operator.folder),
            self.calls // CLIENTS,
            self.plan.transport is Transport.SHARED_MEMORY,
            READER if number == 0 else 0.5,
            self.plan.exchanges,
            self.plan.staleness,
            SEGMENTS if self.plan.tables else 0,
        )
        launcher = ["env", "-C", str(Path(__file__).parents[2])]
        if self.plan.transport is Transport.TLS:
            launcher.append(f"DBELIEF_CREDENTIALS={self.operator.folder / 'certs' / 'worker'}")
        program = [sys.executable, "-m", "tests.histories.client"]
        arguments = json.dumps(asdict(options))
        self.clients.append(self.operator.start(f"client-{number}", arguments, launcher=launcher, program=program))
        wait_for(lambda: self._has_begun(number), f"client {number} to begin")

    def _has_begun(self, number: int) -> bool:
        path = self.operator.folder / f"client-{number}.jsonl"
        assert self.clients[-1].process.poll() is None, self.clients[-1].log.read_text()
        return path.exists() and path.stat().st_size > 500

    def start(self) -> None:
        """Start the job with its shards, followers and clients."""
        plan, folder = self.plan, self.operator.folder
        (folder / "counters.py").write_text(MODEL)
        staleness = "null" if plan.staleness is None else str(plan.staleness)
        strategy = DOWNPOUR.format(staleness=staleness, warm="{samples: 0}" if plan.staleness else "null")
        job = folder / "job.yaml"
        model, data = f'python: "{folder}/counters.py:Counters"', f"source: {'digits' if plan.staleness else 'none'}"
        if plan.tables:
            model, data = "source: script", "source: script, train: 1000"
        job.write_text(
            JOB.format(
                model=model,
                data=data,
                tables=TABLE if plan.tables else "",
                strategy=ELASTIC if plan.exchanges else strategy,
                shards=SHARDS,
                replication=1 + plan.followers,
                replicas=CLIENTS if plan.staleness else 0,
            )
        )
        if plan.transport is Transport.TLS:
            assert self.operator.start("certs", "certs", str(folder / "certs")).ends() == 0
        _, self.address = self.operator.coordinator(job, *self.credentials("coordinator"))
        shards = [self.start_shard(f"ps-{number}") for number in range(SHARDS)]
        self.leaders = {int(role.said(r"shard (\d+) of job")): role for role in shards}
        if plan.followers:
            for number in range(SHARDS):
                self.start_shard(f"follower-{number}").said(r"shard (\d+) of job")
        for number in range(CLIENTS):
            self.start_client(number)
        if plan.followers:
            self.operator.until("recorded", "followed", SHARDS)

    # -- faults ------------------------------------------------------------------------------------------

    def break_things(self) -> None:
        """Let the faults of the plan happen, one after the other."""
        faults = {
            Kind.CLIENTS: self._clients,
            Kind.MOVE: self._move,
            Kind.KILL: self._promote,
            Kind.PAUSE: self._pause,
            Kind.DEPOSE: self._promote,
            Kind.CUT: self._cut,
            Kind.STALENESS: self._clients,
        }
        faults[self.plan.kind]()

    def _clients(self) -> None:
        rng = self.plan.random
        for number in range(CLIENTS, MOST_CLIENTS):
            time.sleep(rng.uniform(0.3, 1.0))
            paused, killed = rng.sample([client for client in self.clients if client.process.poll() is None], 2)
            pause(paused.process.pid, rng.uniform(0.1, 1.0))
            self.faults["client paused"] += 1
            killed.kill()
            self.clients.remove(killed)
            self.faults["client killed"] += 1
            self.start_client(number)

    def _move(self) -> None:
        for shards, times in ((3, 1), (1, 2)):
            time.sleep(self.plan.random.uniform(0.1, 0.5))
            scale = self.operator.start(
                f"scale-{shards}", "scale", "ps", str(shards), self.address, *self.credentials("operator")
            )
            assert scale.ends() == 0, scale.log.read_text()
            if shards == 3:
                self.start_shard("ps-2")
            self.operator.until("recorded", "scaled", times)
            self.faults["segments moved"] += 1

    def _promote(self) -> None:
        """Let each leader fail, and its follower be promoted; a paused one resumes after that."""
        rng = self.plan.random
        for times, (shard, leader) in enumerate(rng.sample(sorted(self.leaders.items()), SHARDS), 1):
            time.sleep(rng.uniform(0.2, 1.0))
            began_s = time.monotonic()
            if self.plan.kind is Kind.KILL:
                leader.kill()
                self.operator.until("recorded", "promoted", times)
                self.faults["leader killed, follower promoted"] += 1
            else:
                leader.process.send_signal(signal.SIGSTOP)
                try:
                    self.operator.until("recorded", "promoted", times)
                    self.start_client(CLIENTS + times - 1)  # it knows the new leader alone: the former one is behind
                    time.sleep(rng.choice([0.0, rng.uniform(0.0, 1.0)]))
                finally:
                    leader.process.send_signal(signal.SIGCONT)
                leader.ends()  # it finds out that it was replaced
                self.faults["leader paused, follower promoted, leader resumed"] += 1
            self.windows[shard] = began_s, time.monotonic()

    def _pause(self) -> None:
        rng = self.plan.random
        for _ in range(5):
            time.sleep(rng.uniform(0.1, 0.5))
            pause(rng.choice(list(self.leaders.values())).process.pid, rng.uniform(0.05, 1.0))
            self.faults["leader paused"] += 1

    def _cut(self) -> None:
        """Cut and stall the links to leaders and followers, from clients, the coordinator and each other."""
        rng = self.plan.random
        for _ in range(6):
            time.sleep(rng.uniform(0.1, 0.6))
            proxy, seconds = rng.choice(self.proxies), rng.uniform(0.0, 1.0)
            if rng.random() < 0.7:
                proxy.cut(seconds)
                self.faults["link cut"] += 1
            else:
                proxy.stall(seconds)
                self.faults["link stalled"] += 1
            time.sleep(seconds)

    # -- the end -----------------------------------------------------------------------------------------

    def end(self) -> Recorded:
        """Let the clients make the rest of their calls, and merge what they have recorded."""
        (self.operator.folder / "stop").touch()
        for client in self.clients:
            assert client.ends() == 0, client.log.read_text()
        segments = SEGMENTS + BUCKETS * self.plan.tables
        lines, calls, lost = merge(sorted(self.operator.folder.glob("client-*.jsonl")), segments)
        return Recorded(lines + self._promotions(), calls, self.faults, lost)

    def close(self) -> None:
        """Break all links for good."""
        for proxy in self.proxies:
            proxy.close()

    def _promotions(self) -> list[dict[str, Any]]:
        """Windows of all promotions, also of those that no fault asked for: a busy machine may miss heartbeats."""
        behind_s = time.time() - time.monotonic()
        windows = dict(self.windows)
        for row in self.operator.events("recorded", "promoted"):
            if row["shard"] not in windows:
                at_s = datetime.fromisoformat(row["time"]).timestamp() - behind_s
                windows[row["shard"]] = at_s - UNPLANNED_S, at_s + 1.0
                self.faults["unplanned promotion"] += 1
        of_each = SEGMENTS // SHARDS, BUCKETS // SHARDS * self.plan.tables
        return [
            {"promotion": True, "segment": first + segment, "start": start, "end": end}
            for shard, (start, end) in windows.items()
            for first, share in zip((0, SEGMENTS), of_each, strict=True)
            for segment in range(shard * share, (shard + 1) * share)
        ]


def record(plan: Plan, folder: Path, calls: int) -> Recorded:
    """Record one history.

    Parameters
    ----------
    folder
        An empty one, for the processes' files.
    calls
        Calls of clients, at least; each is an operation on each segment, and on each bucket of a table.

    Raises
    ------
    AssertionError
        A wait exceeded its deadline, or a process ended otherwise than planned. All processes have ended in any case.
    """
    with ExitStack() as stack:
        operator = stack.enter_context(operating(folder))
        run = Run(plan, operator, calls)
        stack.callback(run.close)
        run.start()
        run.break_things()
        return run.end()
