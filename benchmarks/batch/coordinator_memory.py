"""Memory of the coordinator of a batch method, at 1 and at 50 million parameters.

    python -m benchmarks.batch.coordinator_memory [--sizes 1000000,50000000] [--iterations 8]

Real processes, by hand: coordinator, two shards, one replica; a quadratic whose gradient costs one pass over it. The
figure is the most that was ever resident (VmHWM), from the start to the end of the job: initial values, iterations, a
snapshot set, the test, and the export of the model. It is to grow by less than 10 MB. At 50 million numbers the shards
take 12 GiB, and the run folder 8.
"""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, runs

DEADLINE_S = 500.0
LIMIT_MB = 10.0
MODEL = '''
import numpy as np


class Wide:
    """A quadratic in {size} numbers, with curvatures from 1 to 30."""

    def parameters(self, rng):
        return {{"w": np.zeros({size}, np.float32)}}

    def loss_and_gradient(self, views, batch, out):
        curvature = np.linspace(1, 30, {size}, dtype=np.float32)
        np.subtract(views["w"], 1, out=out["w"])
        loss = float(curvature @ out["w"] ** 2) / 2 / {size}
        out["w"] *= curvature
        out["w"] /= {size}
        return loss
'''


def job(iterations: int) -> dict[str, Any]:
    return {
        "name": "wide",
        "model": {"python": "wide.py:Wide"},
        "data": {"source": "synthetic", "kind": "regression", "samples": 100, "features": 1, "noise": 0.0},
        "strategy": {"name": "sandblaster", "portion": 80, "history": 3, "iterations": iterations},
        "evaluate": {"every": None},
        "snapshots": {"every_s": None, "every_iterations": iterations // 2},
        "deadlines": {"beat_s": 60.0},
        "shards": 2,
        "replicas": 1,
    }


def one(size: int, iterations: int) -> dict[str, Any]:
    """Run the job once; the coordinator's memory, in MB."""
    with runs.temporary_run("wide") as run:
        (run.folder / "wide.py").write_text(MODEL.format(size=size))
        coordinator, members = run.coordinator(job(iterations), DEADLINE_S)
        for role in ("ps", "ps", "worker"):
            run.start(f"{role}-{len(run.started)}", [role, *members])
        most_mb = 0.0

        def ended() -> int | None:
            nonlocal most_mb
            most_mb = max(most_mb, peak_mb(coordinator.pid))
            return coordinator.poll()

        events = run.finish(ended, DEADLINE_S)
        return {
            "parameters": size,
            "peak_mb": most_mb,
            "iterations": max(event["iteration"] for event in events if event["event"] == "iteration"),
            "sets": sum(event["event"] == "snapshot" for event in events),
        }


def peak_mb(pid: int) -> float:
    """The most that a process has ever had resident, in MB; 0 once it is gone."""
    try:
        return runs.status_kib(pid, "VmHWM") * 1024 / 1e6
    except (OSError, IndexError):  # ended, or a zombie
        return 0.0


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--sizes", type=options.numbers, default="1000000,50000000", help="numbers of parameters")
    parser.add_argument("--iterations", type=int, default=8)
    arguments = parser.parse_args()
    results = []
    for size in arguments.sizes:
        results.append(one(size, arguments.iterations))
        report.progress(results[-1])
    table = Table("parameters", "coordinator's peak, MB", "against the first", "iterations", "snapshot sets")
    grows = [row["peak_mb"] - results[0]["peak_mb"] for row in results]
    for row, more in zip(results, grows, strict=True):
        table.add_row(
            f"{row['parameters']:,}", f"{row['peak_mb']:.1f}", f"{more:+.1f}", str(row["iterations"]), str(row["sets"])
        )
    report.show(table, {"results": results, "limit_mb": LIMIT_MB})
    raise SystemExit(0 if max(grows) < LIMIT_MB else 1)


if __name__ == "__main__":
    main()
