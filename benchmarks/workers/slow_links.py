"""Samples a second of several hosts on slow links, as multiples of those of one host alone, by strategy.

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.workers.slow_links
        [--hosts 2,4] [--links 50:5:0.1,10:50:0.1] [--wait 0.02] [--ways diloco-32,sync-sgd] [--seconds 40]

A link is MBIT:MS:LOSS, of each host to a switch (hostnet: harness/hosts.py). Each host has a shard and a worker, and
the first one the coordinator. A worker waits for so long in each mini-batch, in place of computing, so that two cores
carry all hosts. Samples are counted from two seconds after the first progress event of a run.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import hosts, options, report, runs
from dbelief.rundir.events import read_events

BATCH = 8
MODEL = {"layers": [{"dense": 560}, "relu", {"dense": 560}, "relu", {"dense": 10}], "loss": "softmax_cross_entropy"}
"""356,170 parameters."""
DATA = {"source": "synthetic", "kind": "classes", "samples": 100_000, "features": 64, "classes": 10, "noise": 0.1}
"""Long epochs: at the end of one, rounds are short."""
ADAM = {"name": "adam", "rate": 0.001}
SMALL = {"push": "int8", "pull": "bf16"}
SETTLED_S = 2.0
"""After the first progress event, until which the processes warm up."""


def diloco(steps: int, delay: int = 0, /, **wire: str) -> dict[str, Any]:
    strategy = {"name": "diloco", "batch": BATCH, "steps": steps, "delay": delay, "inner": ADAM}
    return {"strategy": strategy, "wire": wire}


WAYS: dict[str, dict[str, Any]] = {
    "downpour": {"strategy": {"name": "downpour", "batch": BATCH, "rule": ADAM, "warm_start": None}},
    "downpour-20": {
        "strategy": {
            "name": "downpour",
            "batch": BATCH,
            "rule": ADAM,
            "n_push": 20,
            "n_fetch": 20,
            "overlap": True,
            "warm_start": None,
        }
    },
    "sync-sgd": {"strategy": {"name": "sync-sgd", "form": "shards", "batch": BATCH, "rule": ADAM}},
    "diloco-32": diloco(32),
    "diloco-32-int8": diloco(32, **SMALL),
    "diloco-32-int8-delay": diloco(32, 32, **SMALL),
    "diloco-128-int8": diloco(128, **SMALL),
    "diloco-128-int8-delay": diloco(128, 64, **SMALL),
}


def job_of(way: Mapping[str, Any], count: int, seconds: float) -> dict[str, Any]:
    """The job file of a way, for so many hosts."""
    return {
        "name": "links",
        "model": MODEL,
        "data": DATA,
        **way,
        "limits": {"wall_s": seconds},
        "evaluate": {"every": 10**12, "keep": "last"},
        "shards": count,
        "replicas": count,
    }


def one(way: Mapping[str, Any], count: int, seconds: float, hostnet: Path | None, link: Sequence[str]) -> float:
    """Samples a second of a run; on loopback where there is no link."""
    events, _ = finished(way, count, seconds, hostnet, link)
    settled = [event for event in events if event["elapsed_s"] >= events[0]["elapsed_s"] + SETTLED_S]
    first, last = settled[0], settled[-1]
    return float((last["samples"] - first["samples"]) / (last["elapsed_s"] - first["elapsed_s"]))


def finished(
    way: Mapping[str, Any], count: int, seconds: float, hostnet: Path | None, link: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Progress events and the summary of a run; on loopback where there is no link."""
    prefix = f"dbl{os.getpid() % 10_000}"
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(runs.temporary_run("links"))
        if hostnet is not None:
            rate, delay, loss = link
            bad = ("--delay-ms", delay, "--loss-pct", loss)
            stack.enter_context(hosts.network(hostnet, prefix, count, float(rate), 3 * seconds + 120, *bad))

        def on(host: int) -> list[str]:
            return hosts.inside(prefix, host) if hostnet else []

        def at(host: int) -> str:
            return hosts.address(host) if hostnet else "127.0.0.1"

        file, ready = run.folder / "job.yaml", run.folder / "address"
        file.write_text(json.dumps({**job_of(way, count, seconds), "output": str(run.folder)}))
        listen = ["--listen", f"{at(1)}:0", "--ready-file", str(ready)]
        coordinator = run.start("coordinator", ["coordinator", str(file), *listen], on(1))
        runs.wait_for(lambda: ready.exists() or None, "the coordinator", 60.0)
        for host in range(1, count + 1):
            member = ["--coordinator", ready.read_text(), "--number", str(host - 1)]
            run.start(f"ps-{host}", ["ps", *member, "--listen", f"{at(host)}:0"], on(host))
            # Namespaces of one machine have one file system, and could share memory past the link.
            run.start(f"worker-{host}", ["worker", *member, "--no-shared-memory"], on(host))
        runs.wait_for(coordinator.poll, "the end of the job", 2 * seconds + 120)
        events = [event for event in read_events(run.run / "events.jsonl") if event["event"] == "progress"]
        if left := run.end():
            raise SystemExit(f"{len(left)} processes were left")
        return events, run.summary()


def main() -> None:
    """Measure all ways on all links, each beside one host alone."""
    parser = options.new_parser(__doc__)
    hosts.add_hostnet(parser)
    parser.add_argument("--hosts", type=options.numbers, default=[2, 4])
    parser.add_argument("--links", type=options.words, default=["50:5:0.1", "10:50:0.1"])
    parser.add_argument("--wait", type=float, default=0.02)
    parser.add_argument("--ways", type=options.words, default=list(WAYS))
    parser.add_argument("--seconds", type=float, default=40.0)
    arguments = parser.parse_args()
    if hosts.left_out(__file__, arguments.hostnet):
        return
    os.environ |= {"DBELIEF_INSECURE": "1", "DBELIEF_COMPUTE_WAIT": str(arguments.wait)}
    rows: list[dict[str, Any]] = []
    for link in arguments.links:
        alone = one(WAYS["diloco-32"], 1, arguments.seconds, None, ())
        for way in arguments.ways:
            row: dict[str, Any] = {"link": link.replace(":", ", "), "way": way, "alone": round(alone, 1)}
            for count in arguments.hosts:
                found = one(WAYS[way], count, arguments.seconds, arguments.hostnet, link.split(":"))
                row[f"hosts_{count}"] = round(found / alone, 3)
            report.progress(row)
            rows.append(row)
    heads = [f"{count} hosts" for count in arguments.hosts]
    table = Table(
        "Mbit/s, ms, % lost", "way", *heads, title=f"{1000 * arguments.wait:g} ms a mini-batch, over one alone"
    )
    for row in rows:
        table.add_row(row["link"], row["way"], *(f"{row[f'hosts_{count}']:.2f}" for count in arguments.hosts))
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
