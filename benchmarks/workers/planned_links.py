"""Samples a second of two hosts on slow links, as `dbelief plan` predicts them, and as they are measured.

    DBELIEF_HOSTNET=path/of/hostnet python -m benchmarks.workers.planned_links
        [--settings 50:5:8:small:560,10:50:128:small:560] [--wait 0.02] [--seconds 25]

A setting is MBIT:MS:H:WIRE:WIDTH: links and hosts as in slow_links.py, without loss; DiLoCo with H steps, whose wire is
float32 (plain) or int8 and bf16 (small), of a network with two hidden layers of WIDTH. H may be `enough`, the steps
that the plan names for a share of computing of 95 %: `200:5:enough:small:4960` has 25 million parameters. Each network
is first trained by one host alone, and the plan has the time of a mini-batch from that run: `planned` and `measured`
are multiples of its samples a second. `computing` is the share of the replicas' time, and `planned_computing` that with
the mini-batches of the same run, which take another time where processors are shared; `exchange_s` the seconds of a
round beside computing. The least squares of these over all settings are the constants of dbelief/plan/exchange.py.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.harness import hosts, options, report
from benchmarks.workers import slow_links
from dbelief.job import Job, build_job
from dbelief.plan import Speeds, make_plan
from dbelief.plan.exchange import Hosts
from dbelief.plan.shard_traffic import fetched_bytes, pushed_bytes

HOSTS = 2
SETTINGS = [
    "50:5:8:small:560",
    "50:5:32:plain:560",
    "200:5:8:plain:560",
    "200:5:32:small:1400",
    "10:50:32:small:560",
    "10:50:128:small:560",
]
ENOUGH = "enough"
ALONE_STEPS = 32
"""Steps of a round of one host alone, which exchanges with its own shard: few enough for 25 million parameters."""
LEAST_ROUNDS = 3
WIRES: dict[str, dict[str, str]] = {"plain": {}, "small": slow_links.SMALL}


def way_of(steps: int, wire: str, width: int, round_s: float, seconds: float) -> dict[str, Any]:
    """DiLoCo with a lease that lasts for the run: between two leases nothing is exchanged in one call."""
    way = slow_links.diloco(steps, **WIRES[wire])
    lease = steps * slow_links.BATCH * max(LEAST_ROUNDS, math.ceil(seconds / round_s))
    layers = [{"dense": width}, "relu", {"dense": width}, "relu", {"dense": 10}]
    return {
        **way,
        "strategy": {**way["strategy"], "lease": lease},
        "model": {"layers": layers, "loss": "softmax_cross_entropy"},
    }


def job_of(way: dict[str, Any], count: int, seconds: float) -> dict[str, Any]:
    """The job file of a way, for so many hosts."""
    return {**slow_links.job_of("network", "diloco-32", count), **way, "limits": {"wall_s": seconds}}


def shares(summary: dict[str, Any]) -> tuple[float, float, float]:
    """Of a replica: samples a second, seconds of a mini-batch, and seconds of a round in which it pushes.

    Without its first fetch, and what it waits for at the begin and the end.
    """
    times = summary["phase_seconds"].values()
    computed_s = sum(one["compute"] + one["data"] for one in times)
    pushed_s = sum(one["push"] for one in times)
    rate = summary["samples"] / (computed_s + pushed_s)
    return rate, computed_s / summary["steps"], pushed_s / summary["pushes"]


def planned(way: dict[str, Any], link: tuple[float, float], step_s: float) -> tuple[Job, Any]:
    """The job, and its planned exchanges; the delay of a link is that from host to switch."""
    rate, delay_ms = link
    job = build_job(job_of(way, HOSTS, 1.0), Path(), "job")
    speeds = Speeds(latency_s=2e-3 * delay_ms, bandwidth=rate * 1e6 / 8, step_s=step_s)
    return job, make_plan(job, speeds=speeds).communication.exchange


def measured(
    setting: str, alone: dict[int, tuple[float, float]], wait_s: float, seconds: float, hostnet: Path
) -> dict[str, Any]:
    """One row, and the terms of its exchange."""
    rate, delay, steps, wire, width = setting.split(":")
    if int(width) not in alone:
        way = way_of(ALONE_STEPS, "plain", int(width), ALONE_STEPS * wait_s, seconds)
        alone[int(width)] = shares(slow_links.finished(job_of(way, 1, seconds), seconds))[:2]
    rate_alone, step_s = alone[int(width)]
    link = (float(rate), float(delay))
    if steps == ENOUGH:
        steps = planned(way_of(1, wire, int(width), 1.0, 1.0), link, step_s)[1].steps_enough
    job, exchange = planned(way_of(int(steps), wire, int(width), 1.0, 1.0), link, step_s)
    round_s = exchange.computed_s + exchange.waited_s
    way, seconds = way_of(int(steps), wire, int(width), round_s, seconds), max(seconds, LEAST_ROUNDS * round_s)
    summary = slow_links.finished(job_of(way, HOSTS, seconds), seconds, hostnet, f"{rate}:{delay}:0")
    found, own_step_s, exchange_s = shares(summary)
    _, at_own_step = planned(way, link, own_step_s)
    size = sum(of(job.wire, summary["parameters"]) for of in (pushed_bytes, fetched_bytes))
    return {
        "link": f"{rate} Mbit/s, {delay} ms",
        "steps": int(steps),
        "wire": wire,
        "parameters": summary["parameters"],
        "step_ms": round(1e3 * step_s, 1),
        "own_step_ms": round(1e3 * own_step_s, 1),
        "rounds": summary["pushes"] // HOSTS,
        "planned": round(exchange.gain, 3),
        "measured": round(HOSTS * found / rate_alone, 3),
        "planned_computing": round(at_own_step.share, 3),
        "computing": round(own_step_s * int(steps) / (own_step_s * int(steps) + exchange_s), 3),
        "planned_exchange_s": round(exchange.travel_s, 4),
        "exchange_s": round(exchange_s, 4),
        "round_trip_s": 4e-3 * float(delay),
        "bytes_s": round(Hosts.of(HOSTS, HOSTS).busiest * size * 8e-6 / float(rate), 4),
    }


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Round trips, and multiples of the bytes' time, of an exchange: least squares of relative errors."""
    terms = np.array([[row["round_trip_s"], row["bytes_s"]] for row in rows])
    found = np.array([row["exchange_s"] for row in rows])
    (trips, slowdown), *_ = np.linalg.lstsq(terms / found[:, None], np.ones(len(rows)), rcond=None)
    return {"round_trips": round(float(trips), 2), "slowdown": round(float(slowdown), 2)}


def main() -> None:
    """Measure all settings."""
    parser = options.new_parser(__doc__)
    hosts.add_hostnet(parser)
    parser.add_argument("--settings", type=options.words, default=SETTINGS)
    parser.add_argument("--wait", type=float, default=0.02)
    parser.add_argument("--seconds", type=float, default=25.0)
    arguments = parser.parse_args()
    if hosts.left_out(__file__, arguments.hostnet):
        return
    os.environ |= {"DBELIEF_INSECURE": "1", "DBELIEF_COMPUTE_WAIT": str(arguments.wait)}
    rows: list[dict[str, Any]] = []
    alone: dict[int, tuple[float, float]] = {}
    for setting in arguments.settings:
        rows.append(measured(setting, alone, arguments.wait, arguments.seconds, arguments.hostnet))
        report.progress(rows[-1])
    table = Table("link", "steps", "wire", "parameters", "planned", "measured", "planned computing", "computing")
    for row in rows:
        shown = [f"{row[name]:.2f}" for name in ("planned", "measured", "planned_computing", "computing")]
        table.add_row(row["link"], str(row["steps"]), row["wire"], f"{row['parameters']:,}", *shown)
    report.show(table, {"rows": rows, **fit(rows)})


if __name__ == "__main__":
    main()
