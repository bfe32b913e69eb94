"""Does a model cut over ranks learn as one that is whole? The same job with each grid, and who pushed where.

    DBELIEF_DATA=... python benchmarks/ranks.py [--job examples/mnist.yaml] [--grids 1 2] [--replicas 2] [--seeds 0,1,2]

Everything but the grid stays the same. Beside the test accuracy stands what the run's last snapshot set tells: in it
every segment has a ledger of those who pushed into it, rank by rank, so that each shard's ranks can be read off.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from replicas import fields_of, one, parser
from rich.console import Console
from rich.table import Table

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
        fields = fields_of(arguments) | {"grid": f"[{grid}]"}
        row = one(arguments.job, arguments.replicas[0], seed, folder, fields)
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        return row | {"grid": grid, "ranks_by_shard": ranks_by_shard(run)}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--grids", nargs="+", default=["1", "2"])
    made.set_defaults(replicas=[2])
    arguments = made.parse_args()
    rows = [run_of(arguments, grid, seed) for seed in arguments.seeds for grid in arguments.grids]
    table = Table("grid", "test accuracy, each seed", "median", "ranks at each shard", title="Ranks")
    results = []
    for grid in arguments.grids:
        mine = [row for row in rows if row["grid"] == grid]
        accuracies = [100 * row["test_accuracy"] for row in mine]
        where = {json.dumps(row["ranks_by_shard"]) for row in mine}
        results.append({"grid": grid, "median": statistics.median(accuracies), "ranks_by_shard": sorted(where)})
        each = " ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        table.add_row(grid, each, f"{results[-1]['median']:.2f}", " ".join(sorted(where)))
    Console(stderr=True).print(table)
    print(json.dumps({"results": results, "runs": rows}))


if __name__ == "__main__":
    main()
