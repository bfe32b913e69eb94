"""Memory of a worker and of a shard that train a large model: how many vectors each holds, and at its peak.

    python -m benchmarks.workers.memory [--millions 100] [--pushes 8] [--transports shm tcp]

One worker and one shard, each a process of its own, and a model of one array. The worker computes no more than the
gradient's numbers. After some pushes, and a snapshot set, the mappings of both are read from /proc: a vector is as many
bytes as the parameters are. Peaks (`VmHWM`) are those since the process's start.

    now, peak   resident memory; a process without a model has about 90 MiB
    large       its mappings of which half a vector or more is resident, in vectors each
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs

DEADLINE_S = 600.0
MODEL = """
import numpy as np

class Flat:
    def parameters(self, rng):
        return {"w": np.zeros(SIZE, np.float32)}

    def loss_and_gradient(self, views, batch, out):
        out["w"].fill(1e-3)
        return 1.0
"""


def measure(millions: int, pushes: int, transport: str) -> list[dict[str, Any]]:
    """Rows of the worker and of the shard."""
    with runs.temporary_run("memory") as run:
        (run.folder / "model.py").write_text(MODEL.replace("SIZE", str(1_000_000 * millions)))
        job: dict[str, Any] = {
            "name": run.run.name,
            "model": {"python": "model.py:Flat"},
            "data": {
                "source": "synthetic",
                "kind": "classes",
                "samples": 1000,
                "features": 4,
                "classes": 2,
                "noise": 0.1,
            },
            "strategy": {"name": "downpour", "batch": 1, "rule": {"name": "adagrad", "rate": 0.01}, "warm_start": None},
            "evaluate": {"every": None},
            "limits": {"samples": 1_000_000_000},
            "snapshots": {"every_s": 5.0},
            "shards": 1,
            "replicas": 1,
        }
        _, address = run.coordinator(job, DEADLINE_S)
        way = "--shared-memory" if transport == "shm" else "--no-shared-memory"
        members = {role: run.start(role, [role, *address, way]) for role in ("ps", "worker")}

        def trained() -> bool | None:
            """Whether enough was pushed, and a set is complete; None: not yet."""
            for member in members.values():
                if member.poll() is not None:
                    raise SystemExit("\n".join(run.output("worker")))
            return (run.samples() >= pushes and any((run.run / "snapshots").glob("*/set.json"))) or None

        runs.wait_for(trained, f"{pushes} pushes and a snapshot set", DEADLINE_S)
        return [
            {
                "millions": millions,
                "transport": transport,
                "process": role,
                **_figures(member.pid, 4_000_000 * millions),
            }
            for role, member in members.items()
        ]


def _figures(pid: int, vector: int) -> dict[str, Any]:
    """Resident memory in MiB, and large mappings in vectors, of a process."""
    large = [(name, size / vector) for name, size in _mappings(pid) if size >= vector / 2]
    return {
        "now": runs.status_kib(pid, "VmRSS") / 1024,
        "peak": runs.status_kib(pid, "VmHWM") / 1024,
        "large": sorted(large, key=lambda one: -one[1]),
    }


def _mappings(pid: int) -> list[tuple[str, int]]:
    """Names of mappings, "memory" for those of no file, and their resident bytes."""
    found: list[tuple[str, int]] = []
    name = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            name = " ".join(line.split()[5:]) or "memory"
        elif line.startswith("Rss:"):
            found.append((name, 1024 * int(line.split()[1])))
    return found


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--millions", type=int, default=100, help="parameters, in millions")
    parser.add_argument("--pushes", type=int, default=8, help="before memory is read")
    parser.add_argument("--transports", nargs="+", choices=["shm", "tcp"], default=["shm", "tcp"])
    words = parser.parse_args()
    table = Table("transport", "process", "now, MiB", "peak, MiB", "vectors now", "at the peak", "large")
    rows = []
    for transport in words.transports:
        for row in measure(words.millions, words.pushes, transport):
            rows.append(row)
            report.progress(row)
            memory = row["now"], row["peak"]
            vectors = (mib * (1 << 20) / (4_000_000 * words.millions) for mib in memory)
            large = ", ".join(f"{name} {size:.2f}" for name, size in row["large"])
            table.add_row(
                transport, row["process"], *(f"{one:,.0f}" for one in memory), *(f"{one:.2f}" for one in vectors), large
            )
    report.show(table, {"rows": rows})


if __name__ == "__main__":
    main()
