"""Test accuracy of asynchronous training: the same job at 1, 2, 4 and 8 replicas against one replica.

    DBELIEF_DATA=... python -m benchmarks.accuracy.replicas [--job examples/mnist.yaml]
        [--replicas 1,2,4,8] [--seeds 0,1,2]

Everything but the number of replicas stays the same: hyper-parameters, samples, warm start. Replicas run freely, and
the resulting staleness is printed. The figure is the median test accuracy over the seeds; the test set is used once per
run, at its end.
"""

from __future__ import annotations

import statistics
import tempfile

from rich.table import Table

from benchmarks.harness import options, report, training


def main() -> None:
    arguments = training.training_parser(__doc__, replicas="1,2,4,8").parse_args()
    counts, fields = arguments.replicas, options.fields_of(arguments)
    with tempfile.TemporaryDirectory(prefix="dbelief-") as folder:
        rows = [
            training.train(arguments.job, count, seed, folder, fields) for seed in arguments.seeds for count in counts
        ]
    columns = ("replicas", "test accuracy, each seed", "median", "against one", "staleness", "wall s")
    table = Table(*columns, title="Downpour")
    results = []
    base = None
    for count in counts:
        mine = [row for row in rows if row["replicas"] == count]
        each, median = training.accuracies(mine)
        base = median if base is None else base
        staleness = statistics.mean(row["staleness_mean"] for row in mine)
        wall_s = statistics.median(row["wall_s"] for row in mine)
        results.append({"replicas": count, "median": median, "against_one": median - base, "staleness": staleness})
        figures = f"{median:.2f}", f"{median - base:+.2f}", f"{staleness:.2f}", f"{wall_s:.0f}"
        table.add_row(str(count), report.two_digits(each), *figures)
    report.show(table, {"results": results, "runs": rows})


if __name__ == "__main__":
    main()
