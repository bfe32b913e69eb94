"""Samples a second of several hosts on slow links, as multiples of those of one host alone, by strategy.

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.workers.slow_links
        [--model network] [--hosts 2,4] [--links 50:5:0.1,10:50:0.1] [--wait 0.02,0.2] [--ways diloco-32,sync-sgd]
        [--seconds 40]

A link is MBIT:MS:LOSS, of each host to a switch (hostnet: harness/hosts.py). Each host has a shard and a worker, and
the first one the coordinator. A worker waits for so long in each mini-batch, in place of computing, so that two cores
carry all hosts. The model is a network of the job file, or a script: the character GPT (waiting_gpt.py), also by peers
over gloo, a rank on each host: torch DDP, and torchft's DiLoCo, where torchft is installed. One host alone trains
without a network; the GPT by torch without dbelief. Completed rounds of all hosts are counted, from two seconds after a
run's first progress event on: let --seconds be ten rounds or more; a run with fewer than five lasts longer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import hosts, options, report, runs
from benchmarks.harness.extras import has_torchft, needs_torch
from dbelief.rundir.events import read_events

BATCH = 8
NETWORK = {"layers": [{"dense": 560}, "relu", {"dense": 560}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}
"""356,170 parameters."""
SAMPLES = 100_000
"""Long epochs: at the end of one, rounds are short."""
DATA = {"source": "synthetic", "kind": "classes", "samples": SAMPLES, "features": 64, "classes": 10, "noise": 0.1}
MODELS: dict[str, dict[str, Any]] = {
    "network": {"model": NETWORK, "data": DATA},
    "gpt": {"model": {"source": "script"}, "data": {"source": "script", "train": SAMPLES}},
}
"""The script's has 818,048 parameters."""
FOLDER = Path(__file__).parent
SCRIPT = [sys.executable, str(FOLDER / "waiting_gpt.py")]
ADAMW = {"name": "adamw", "rate": 0.001}
SMALL = {"push": "int8", "pull": "bf16"}
SMALLER = {"push": "int4", "pull": "bf16"}
SETTLED_S = 2.0
"""After the first progress event, until which the processes warm up."""
LEAST_ROUNDS = 5
"""With a delay, hosts drift by up to a round: ten give the speed to some percent."""
LONGEST, START_S = 6, 120.0
"""A run may take so many times --seconds, beyond its start."""
LAST_LINES = 10
"""Of each process, where one has ended."""
Events = Sequence[Mapping[str, Any]]
"""With `elapsed_s`, seconds, and `samples`, of all hosts so far."""


def diloco(steps: int, delay: int = 0, /, **wire: str) -> dict[str, Any]:
    strategy = {"name": "diloco", "batch": BATCH, "steps": steps, "delay": delay, "inner": ADAMW}
    return {"strategy": strategy, "wire": wire}


WAYS: dict[str, dict[str, Any]] = {
    "downpour": {"strategy": {"name": "downpour", "batch": BATCH, "rule": ADAMW, "warm_start": None}},
    "downpour-20": {
        "strategy": {
            "name": "downpour",
            "batch": BATCH,
            "rule": ADAMW,
            "n_push": 20,
            "n_fetch": 20,
            "overlap": True,
            "warm_start": None,
        }
    },
    "sync-sgd": {"strategy": {"name": "sync-sgd", "form": "shards", "batch": BATCH, "rule": ADAMW}},
    "diloco-32": diloco(32),
    "diloco-32-delay": diloco(32, 32),
    "diloco-32-int8": diloco(32, **SMALL),
    "diloco-32-int8-delay": diloco(32, 32, **SMALL),
    "diloco-32-int4-delay": diloco(32, 32, **SMALLER),
    "diloco-128": diloco(128),
    "diloco-128-int8": diloco(128, **SMALL),
    "diloco-128-int8-delay": diloco(128, 64, **SMALL),
    "diloco-128-int8-delay-128": diloco(128, 128, **SMALL),
    "diloco-128-int4-delay-128": diloco(128, 128, **SMALLER),
    "diloco-256-int4-delay-256": diloco(256, 256, **SMALLER),
}


@dataclass(frozen=True)
class Peer:
    """Another program that trains the GPT: what a rank of it runs, and its steps between two exchanges."""

    command: Sequence[str]
    steps: int = 1


def torchft(steps: int, delay: int = 0) -> Peer:
    """DiLoCo of torchft, whose exchanges travel for so many steps."""
    words = (BATCH, steps, delay)
    return Peer([sys.executable, str(FOLDER / "waiting_gpt_torchft.py"), *map(str, words)], steps)


TORCHFT = {
    "torchft-32": torchft(32),
    "torchft-32-delay": torchft(32, 31),  # the longest that it allows
    "torchft-128": torchft(128),
    "torchft-128-delay": torchft(128, 64),
}
ALONE = {"network": "diloco-32", "gpt": "ddp"}
"""Ways of one host alone, by model."""
PEERS = {"ddp": Peer([*SCRIPT, str(BATCH)]), **TORCHFT}


def strategy_of(model: str, way: str) -> dict[str, Any]:
    """Strategy of a way; between two exchanges a script makes the steps itself."""
    strategy: dict[str, Any] = dict(WAYS[way]["strategy"])
    if model == "gpt":
        strategy.pop("inner", None)
        strategy |= {"rule": {"name": "add"}} if "n_push" in strategy else {}
    return strategy


def job_of(model: str, way: str, count: int) -> dict[str, Any]:
    """The job file of a way, for so many hosts."""
    return {
        "name": "links",
        **MODELS[model],
        **WAYS[way],
        "strategy": strategy_of(model, way),
        "limits": {"wall_s": 36_000},
        "evaluate": {"every": 10**12, "keep": "last"},
        "deadlines": {"beat_s": 20},  # a heartbeat waits behind a push of seconds
        "shards": count,
        "replicas": count,
    }


def speed(events: Events, round_samples: int) -> float | None:
    """Samples a second, by a line through the times at which rounds of all hosts were completed.

    None: fewer than `LEAST_ROUNDS` were, after `SETTLED_S`.
    """
    first_seen_s: dict[int, float] = {}  # by number of completed rounds
    for event in events:
        first_seen_s.setdefault(event["samples"] // round_samples, event["elapsed_s"])
    settled_s = events[0]["elapsed_s"] + SETTLED_S
    seen = {rounds: at_s for rounds, at_s in first_seen_s.items() if at_s >= settled_s}
    if len(seen) < LEAST_ROUNDS:
        return None
    return statistics.linear_regression(list(seen.values()), list(seen)).slope * round_samples


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run: those of a network, or, where its prefix is empty, all this machine."""

    count: int
    prefix: str = ""

    def inside(self, host: int) -> list[str]:
        """The prefix of a command that runs on a host, counted from 1."""
        return hosts.inside(self.prefix, host) if self.prefix else []

    def address(self, host: int) -> str:
        """IP address of a host, counted from 1."""
        return hosts.address(host) if self.prefix else "127.0.0.1"


def one(model: str, way: str, count: int, seconds: float, hostnet: Path | None = None, link: str = "") -> float:
    """Samples a second of a run; on loopback where there is no link."""
    with on_hosts(count, seconds, hostnet, link) as (run, used):
        script = SCRIPT if model == "gpt" else ()
        peer = PEERS.get(way)
        read = start_peer(run, used, peer) if peer else start_job(run, used, job_of(model, way, count), script)
        steps = peer.steps if peer else WAYS[way]["strategy"].get("steps", 1)

        def found() -> float | None:
            events = found_in(run, read, seconds)
            return None if events is None else speed(events, count * BATCH * steps)

        return runs.wait_for(found, f"{LEAST_ROUNDS} rounds of {count} hosts", LONGEST * seconds + START_S)


def finished(job: Mapping[str, Any], seconds: float, hostnet: Path | None = None, link: str = "") -> dict[str, Any]:
    """The summary of a job, which ends by itself after so many seconds; as many hosts as it has replicas."""
    with on_hosts(job["replicas"], seconds, hostnet, link) as (run, used):
        start_job(run, used, job)
        runs.wait_for(run.started[0].poll, "the end of the job", 2 * seconds + START_S)
        if left := run.end():
            raise SystemExit(f"{len(left)} processes were left")
        return run.summary()


@contextlib.contextmanager
def on_hosts(count: int, seconds: float, hostnet: Path | None, link: str) -> Iterator[tuple[runs.Run, Hosts]]:
    """A run, and its hosts: those of a network with such links, for some time; of this machine where there is none."""
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(runs.temporary_run("links"))
        used = Hosts(count)
        if hostnet is not None:
            used = Hosts(count, f"dbl{os.getpid() % 10_000}")
            rate, delay, loss = link.split(":")
            bad = ("--delay-ms", delay, "--loss-pct", loss)
            stack.enter_context(
                hosts.network(hostnet, used.prefix, count, float(rate), LONGEST * seconds + 2 * START_S, *bad)
            )
        yield run, used


def found_in(run: runs.Run, read: Callable[[], Events], seconds: float) -> Events | None:
    """Events of progress, once they span so many seconds; `SystemExit` where a process of the run has ended."""
    if any(process.poll() is not None for process in run.started):
        logs = (run.output(log.stem)[-LAST_LINES:] for log in sorted(run.folder.glob("*.log")))
        raise SystemExit("\n".join(itertools.chain.from_iterable(logs)))
    events = read()
    return events if events and events[-1]["elapsed_s"] - events[0]["elapsed_s"] >= seconds else None


def start_job(run: runs.Run, used: Hosts, job: Mapping[str, Any], script: Sequence[str] = ()) -> Callable[[], Events]:
    """Start a job with a shard and a worker on each host; what reads its progress."""
    file, ready = run.folder / "job.yaml", run.folder / "address"
    file.write_text(json.dumps({**job, "output": str(run.folder)}))
    listen = ["--listen", f"{used.address(1)}:0", "--ready-file", str(ready)]
    run.start("coordinator", ["coordinator", str(file), *listen], used.inside(1))
    runs.wait_for(lambda: ready.exists() or None, "the coordinator", 60.0)
    words = ["--", *script] if script else []
    for host in range(1, used.count + 1):
        member = ["--coordinator", ready.read_text(), "--number", str(host - 1)]
        run.start(f"ps-{host}", ["ps", *member, "--listen", f"{used.address(host)}:0"], used.inside(host))
        # Namespaces of one machine have one file system, and could share memory past the link.
        run.start(f"worker-{host}", ["worker", *member, "--no-shared-memory", *words], used.inside(host))
    events = run.run / "events.jsonl"
    return lambda: [event for event in read_events(events) if event["event"] == "progress"] if events.exists() else []


def start_peer(run: runs.Run, used: Hosts, peer: Peer) -> Callable[[], Events]:
    """Start a rank of a peer on each host; what reads the progress of the first one."""
    settings = {"WORLD_SIZE": str(used.count), "MASTER_ADDR": used.address(1), "MASTER_PORT": "29500"}
    settings["GLOO_SOCKET_IFNAME"] = "eth0"
    for rank in range(used.count):
        command = [*used.inside(rank + 1), *peer.command]
        own = {"RANK": str(rank), "OWN_ADDR": used.address(rank + 1)}
        run.start_program(f"rank-{rank}", command, {**settings, **own})
    return lambda: [json.loads(line) for line in run.output("rank-0") if line.startswith("{") and line.endswith("}")]


def installed(ways: Sequence[str]) -> list[str]:
    """The ways without those of torchft where it is not installed, which is said."""
    left = TORCHFT if not TORCHFT.keys().isdisjoint(ways) and not has_torchft() else {}
    return [way for way in ways if way not in left]


def main() -> None:
    """Measure all ways on all links, each beside one host alone."""
    parser = options.new_parser(__doc__)
    hosts.add_hostnet(parser)
    parser.add_argument("--model", choices=list(MODELS), default="network")
    parser.add_argument("--hosts", type=options.numbers, default=[2, 4])
    parser.add_argument("--links", type=options.words, default=["50:5:0.1", "200:5:0.1", "10:50:0.1"])
    parser.add_argument("--wait", type=options.words, default=["0.02"])
    parser.add_argument("--ways", type=options.words)
    parser.add_argument("--seconds", type=float, default=40.0)
    arguments = parser.parse_args()
    known = [*WAYS, *PEERS] if arguments.model == "gpt" else list(WAYS)
    ways = arguments.ways or known
    if unknown := set(ways) - {*known}:
        parser.error(f"no way of {arguments.model} is called {min(unknown)!r}, only {', '.join(known)}")
    if hosts.left_out(__file__, arguments.hostnet):
        return
    if arguments.model == "gpt":
        needs_torch()
        ways = installed(ways)
        if not ways:
            return
    os.environ["DBELIEF_INSECURE"] = "1"
    rows: list[dict[str, Any]] = []
    for wait in arguments.wait:
        os.environ["DBELIEF_COMPUTE_WAIT"] = wait
        alone = one(arguments.model, ALONE[arguments.model], 1, arguments.seconds)
        for link, way in itertools.product(arguments.links, ways):
            row: dict[str, Any] = {"model": arguments.model, "wait_s": float(wait), "link": link.replace(":", ", ")}
            row |= {"way": way, "alone": round(alone, 1)}
            for count in arguments.hosts:
                measured = one(arguments.model, way, count, arguments.seconds, arguments.hostnet, link)
                row[f"hosts_{count}"] = round(measured / alone, 3)
            report.progress(row)
            rows.append(row)
    heads = [f"{count} hosts" for count in arguments.hosts]
    table = Table("ms a mini-batch", "Mbit/s, ms, % lost", "way", *heads, title=f"{arguments.model}, over one alone")
    for row in rows:
        found = (f"{row[f'hosts_{count}']:.2f}" for count in arguments.hosts)
        table.add_row(f"{1000 * row['wait_s']:g}", row["link"], row["way"], *found)
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
