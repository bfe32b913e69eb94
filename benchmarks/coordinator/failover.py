"""A coordinator that is killed, and started again under its name, while many members ask for work.

    python -m benchmarks.coordinator.failover [--members 16,1000] [--rounds 3]

The members are simulated, as in `benchmarks.coordinator.members`; their calls are repeated until they are answered. The
columns, medians of the rounds:

    first s     from the kill to the first lease; most of it is the start of the process
    all s       to the last member's lease
    lost        members that the new coordinator does not have, in all rounds
    status ms   time of `dbelief status`'s call with all members
"""

from __future__ import annotations

import time
from typing import Any

from rich.table import Table

from benchmarks.coordinator.members import Cluster, opened
from benchmarks.harness import options, report, runs, timing


def one(members: int) -> dict[str, Any]:
    """One failover."""
    with runs.temporary_run("members") as run, opened("valkey", run.folder) as (url, folder):
        cluster = Cluster(run, members, url, folder)
        try:
            cluster.start()
            cluster.each(lambda member, _: member.beat())
            cluster.each(lambda member, _: member.work())
            cluster.fail_over()
            killed_s = time.monotonic()
            cluster.members[0].work()
            first_s = time.monotonic() - killed_s
            cluster.each(lambda member, _: member.work())
            all_s = time.monotonic() - killed_s
            asked_s = time.monotonic()
            status = cluster.clients[0].status()
            status_ms = (time.monotonic() - asked_s) * 1e3
            present = [row for row in status.members if row.state not in ("died", "left")]
            lost = members + 1 - len(present)  # and the shard
            return {"members": members, "first_s": first_s, "all_s": all_s, "lost": lost, "status_ms": status_ms}
        finally:
            cluster.close()


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--members", type=options.numbers, default="16,1000", help="numbers of members")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rows: dict[int, list[dict[str, Any]]] = {members: [] for members in arguments.members}
    for _ in range(arguments.rounds):
        for members, mine in rows.items():
            mine.append(one(members))
            report.progress(mine[-1])
    table = Table("members", "first s", "all s", "lost", "status ms")
    medians = []
    for members, mine in rows.items():
        middle = timing.medians(mine, "first_s", "all_s", "status_ms")
        lost = sum(row["lost"] for row in mine)
        figures = (f"{middle[name]:.2f}" for name in ("first_s", "all_s"))
        table.add_row(str(members), *figures, str(lost), f"{middle['status_ms']:.1f}")
        medians.append({"members": members, **middle, "lost": lost})
    report.show(table, {"medians": medians, "rows": [row for mine in rows.values() for row in mine]})


if __name__ == "__main__":
    main()
