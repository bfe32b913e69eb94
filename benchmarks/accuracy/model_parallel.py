"""Test accuracy of a model cut over ranks against the whole one: the same job on each grid, and the pushes of ranks.

    DBELIEF_DATA=... python -m benchmarks.accuracy.model_parallel [--job examples/mnist.yaml]
        [--grids 1 2] [--replicas 2] [--seeds 0,1,2]

Everything but the grid stays the same. Beside the test accuracy stand the ranks that pushed to each shard: every
segment of the run's last snapshot set has a ledger of its pushers, rank by rank.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import options, report, training
from dbelief.checkpoint.checksummed_json import read_checksummed

MANIFESTS = 2
"""Format of a shard's manifest that is read here (`dbelief.checkpoint.shard_file`)."""


def ranks_by_shard(run: Path) -> dict[str, list[int]]:
    """The ranks that pushed into each shard, by the last snapshot set of a run.

    Raises AssertionError where two ranks pushed into one segment.
    """
    last = max((run / "snapshots").glob("*/set.json")).parent
    found: dict[str, list[int]] = {}
    for path in sorted(last.glob("shard-*.json")):
        pushers = [{row[3] for row in segment["ledger"]} for segment in read_checksummed(path, MANIFESTS)["segments"]]
        assert all(len(ranks) <= 1 for ranks in pushers), f"{path}: a segment with several ranks"
        found[path.stem] = sorted(set[int]().union(*pushers))
    return found


def run_of(arguments: Any, grid: str, seed: int) -> dict[str, Any]:
    """Train once on a grid such as "2" or "2,2"."""
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        fields = options.fields_of(arguments) | {"grid": f"[{grid}]"}
        row = training.train(arguments.job, arguments.replicas[0], seed, folder, fields)
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        return row | {"grid": grid, "ranks_by_shard": ranks_by_shard(run)}


def main() -> None:
    parser = training.training_parser(__doc__, replicas="2")
    parser.add_argument("--grids", nargs="+", default=["1", "2"])
    arguments = parser.parse_args()
    rows = [run_of(arguments, grid, seed) for seed in arguments.seeds for grid in arguments.grids]
    table = Table("grid", "test accuracy, each seed", "median", "ranks at each shard", title="Ranks")
    results = []
    for grid in arguments.grids:
        mine = [row for row in rows if row["grid"] == grid]
        each, median = training.accuracies(mine)
        where = sorted({json.dumps(row["ranks_by_shard"]) for row in mine})
        results.append({"grid": grid, "median": median, "ranks_by_shard": where})
        table.add_row(grid, report.two_digits(each), f"{median:.2f}", " ".join(where))
    report.show(table, {"results": results, "runs": rows})


if __name__ == "__main__":
    main()
