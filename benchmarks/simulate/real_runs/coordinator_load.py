"""The load of a coordinator by simulated members (`coordinator/members.py`), and what a call of each kind costs it."""

from __future__ import annotations

from typing import Any

from benchmarks.coordinator.members import PUSHES, Cluster, Member, closed_loop, measured, opened
from benchmarks.harness import runs
from benchmarks.simulate.plan import Configuration
from benchmarks.simulate.real_runs.measured import processors, processors_used

REPORTS_SHARE = 0.25
"""Of the seconds, for reports alone."""


def coordinator_load(one: Configuration, seconds: float) -> dict[str, Any]:
    """Figures of a configuration of this kind, in so many seconds, a half of them for leases in a closed loop."""
    with runs.temporary_run("members") as run, opened("valkey", run.folder) as (url, folder):
        cluster = Cluster(run, one.members, url, folder)
        try:
            join_s = cluster.start()
            cluster.each(lambda member, _: member.beat())
            cluster.each(lambda member, _: member.work())
            for member in cluster.members:
                member.waits_s.clear()
            before = processors({"coordinator": cluster.coordinator})
            leases_s = seconds if one.every_s else seconds / 2
            found = measured(cluster, leases_s, one.every_s)
            took_s = leases_s if one.every_s else 1.5 * leases_s  # with its heartbeats
            used, others = processors_used(before, processors({"coordinator": cluster.coordinator}), took_s)
            if not one.every_s:
                found["report_ms"] = report_ms(cluster, REPORTS_SHARE * seconds)
        finally:
            cluster.close()
    names = {"cpu_ms": "lease_ms", "median_ms": "answer_ms"}
    figures = {names.get(name, name): value for name, value in found.items()}
    return {"measured": {**figures, "join_s": join_s}, "processors": used, "others": others}


def report_ms(cluster: Cluster, seconds: float) -> float:
    """Processor milliseconds of the coordinator for a report of one more push; up to those of a lease."""
    reported = dict.fromkeys(map(id, cluster.members), 0)

    def report(member: Member) -> None:
        reported[id(member)] = min(PUSHES - 1, reported[id(member)] + 1)
        member.report(reported[id(member)])

    before_s = cluster.cpu_s()
    reports = closed_loop(cluster, seconds, report)
    return 1e3 * (cluster.cpu_s() - before_s) / reports
