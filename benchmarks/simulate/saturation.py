"""The number of workers at which a coordinator uses a processor wholly: predicted, and by simulated members.

    python -m benchmarks.simulate.saturation [--members 4000] [--known 256] [--beat 20,10,7] [--seconds 60]

Costs of a lease, a report and a heartbeat are measured with `known` members, which call without a pause, and what the
coordinator uses while no member calls. From these the simulation's formulas (`dbelief.simulate.costs`) predict the
share of a processor that `members` need at the leases that the coordinator paces them to, for each timeout of
heartbeats, `deadlines.beat_s`; and the workers at which it is 1. The share is then measured with so many members, which
call by real stubs (coordinator/members.py). "full at, measured" are the workers at which the line through 0 workers,
where only leases and the coordinator itself need the processor, and the measured share reaches 1.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.coordinator import members
from benchmarks.coordinator.members import Cluster, opened, paced
from benchmarks.harness import options, report, runs
from benchmarks.simulate.real_runs.coordinator_load import report_ms
from dbelief.job import Job, build_job
from dbelief.job.lease_size import LEASES_PER_S
from dbelief.simulate.costs import Costs

IDLE_S = 4.0


def known_costs(count: int, seconds: float) -> Costs:
    """Costs of the coordinator's calls, from so many members that call without a pause."""
    with runs.temporary_run("members") as run, opened("valkey", run.folder) as (url, folder):
        cluster = Cluster(run, count, url, folder)
        try:
            _begin(cluster)
            found = members.measured(cluster, seconds, 0.0)
            report_s = 1e-3 * report_ms(cluster, seconds / 2)
            idle = idle_share(cluster)
        finally:
            cluster.close()
    return Costs(lease_s=1e-3 * found["cpu_ms"], report_s=report_s, beat_s=1e-3 * found["beat_ms"], idle=idle)


def used_share(count: int, beat_s: float, seconds: float) -> dict[str, Any]:
    """Share of a processor that the coordinator uses with so many members at its pace; members that it removed."""
    with runs.temporary_run("members") as run, opened("valkey", run.folder) as (url, folder):
        cluster = Cluster(run, count, url, folder, beat_s=beat_s)
        try:
            _begin(cluster)
            idle = idle_share(cluster)
            before_s, began_s = cluster.cpu_s(), time.monotonic()
            leases, removed = paced(cluster, seconds, count / LEASES_PER_S)
            took_s = time.monotonic() - began_s
            share = (cluster.cpu_s() - before_s) / took_s
        finally:
            cluster.close()
    return {"share": share, "idle": idle, "leases_per_s": leases / took_s, "removed": removed}


def idle_share(cluster: Cluster) -> float:
    """Share of a processor that the coordinator uses while no member calls."""
    cluster.each(lambda member, _: member.beat())
    before_s, began_s = cluster.cpu_s(), time.monotonic()
    time.sleep(IDLE_S)
    idle = (cluster.cpu_s() - before_s) / (time.monotonic() - began_s)
    cluster.each(lambda member, _: member.beat())
    return idle


def _begin(cluster: Cluster) -> None:
    """All join, and have their first lease."""
    cluster.start()
    cluster.each(lambda member, _: member.beat())
    cluster.each(lambda member, _: member.work())


def row_of(costs: Costs, job: Job, count: int, measured: dict[str, Any]) -> dict[str, Any]:
    """Predicted and measured, of one timeout of heartbeats."""
    fixed = costs.idle + LEASES_PER_S * costs.lease_s
    predicted = costs.coordinator_share(job, count, LEASES_PER_S)
    of_workers = measured["share"] - fixed
    full = count * (1 - fixed) / of_workers if of_workers > 0 else float("inf")
    return {
        "beat_s": job.deadlines.beat_s,
        "members": count,
        "predicted_share": round(predicted, 3),
        **{name: round(value, 3) for name, value in measured.items()},
        "predicted_full": costs.saturation(job),
        "measured_full": round(full),
        "error": round(predicted / measured["share"] - 1, 3),
    }


def main() -> None:
    """Measure costs, predict, and measure."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--members", type=int, default=4000)
    parser.add_argument("--known", type=int, default=256, help="members with which costs are measured")
    parser.add_argument("--beat", type=options.numbers, default="20,10,7", help="timeouts of heartbeats, in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    arguments = parser.parse_args()
    costs = known_costs(arguments.known, arguments.seconds / 4)
    rows = []
    for beat_s in arguments.beat:
        job = build_job(members.job(arguments.members, beat_s), Path())
        rows.append(row_of(costs, job, arguments.members, used_share(arguments.members, beat_s, arguments.seconds)))
        report.progress(rows[-1])
    table = Table(
        "heartbeat timeout, s", "share of a processor: predicted", "measured", "full at: predicted", "measured"
    )
    for row in rows:
        shares = (f"{row[name]:.2f}" for name in ("predicted_share", "share"))
        table.add_row(f"{row['beat_s']:g}", *shares, f"{row['predicted_full']:,}", f"{row['measured_full']:,}")
    known = {name: round(1e3 * getattr(costs, name), 3) for name in ("lease_s", "report_s", "beat_s")}
    report.show(table, {"known": arguments.known, "costs_ms": known, "idle": round(costs.idle, 4), "rows": rows})


if __name__ == "__main__":
    main()
