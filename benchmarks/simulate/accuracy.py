"""How well real runs are predicted that the simulation was not calibrated on.

    python -m benchmarks.simulate.accuracy [--folder runs/simulate] [--calm 0.5]

FOLDER is that of runs.py. Costs are fitted to the records of the configurations for the calibration; one of the other
configurations is simulated with them, without what was measured of it. A row is a configuration and a measure; its
error is |predicted - measured| / measured, where the measured value counts as `LEAST` at least. Printed at the end, for
each measure and for all of them: the median error, the 90 % quantile, and the rows whose error is above 15 % or which
have no prediction. The same of `calm` runs: those during which other programs used at most so many processors.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from benchmarks.harness import options, report
from benchmarks.simulate import simulated
from benchmarks.simulate.plan import CALIBRATION, PREDICTED
from benchmarks.simulate.runs import FLEET, FOLDER, JOB, RUN
from dbelief.simulate.costs import Costs

LEAST: Mapping[str, float] = {
    "samples_per_s": 1.0,
    "staleness_mean": 0.5,
    "bytes_sent_per_s": 1_000.0,
    "bytes_received_per_s": 1_000.0,
    "failover_s": 0.5,
    "leases_per_s": 1.0,
    "lease_ms": 0.01,
    "beat_ms": 0.01,
    "report_ms": 0.01,
}
"""The measures, and the values below which a difference is not compared with the value itself."""
MISS = 0.15
ALL = "all"
Record = Mapping[str, Any]
Row = dict[str, Any]


class Predictor(Protocol):
    """What is checked."""

    def calibrated(self, runs: Sequence[Record]) -> Any:
        """Costs of the product's parts on this machine, from records of runs (runs.py)."""
        ...

    def predict(self, configuration: Record, costs: Any) -> Mapping[str, float | None]:
        """Values of the measures, of `LEAST`, for a configuration.

        It has the fields of plan.py, `step`, seconds of a mini-batch alone and their spread, and `job_file` and
        `fleet_file`, the paths of these files.
        """
        ...


class Simulation:
    """The product's."""

    def calibrated(self, runs: Sequence[Record]) -> Costs:
        """See `Predictor`."""
        return simulated.costs_of(runs)

    def predict(self, configuration: Record, costs: Costs) -> Mapping[str, float | None]:
        """See `Predictor`."""
        return simulated.predicted(configuration, costs)


def records(folder: Path) -> list[Record]:
    """All records of a folder that have a measurement, by number, with the paths of their files."""
    found: list[Record] = []
    for file in sorted(folder.glob(f"*/{RUN}")):
        record = json.loads(file.read_text())
        if record["error"] is None:
            files = {"job_file": str(file.with_name(JOB)), "fleet_file": str(file.with_name(FLEET))}
            found.append({**record, "configuration": {**record["configuration"], **files}})
    return found


def error_of(measure: str, value: float, predicted: float | None) -> float:
    """See the module; infinite where there is no prediction."""
    if predicted is None or not math.isfinite(predicted):
        return math.inf
    return abs(predicted - value) / max(abs(value), LEAST[measure])


def rows_of(record: Record, predicted: Mapping[str, float | None]) -> list[Row]:
    """A row for each measure that the record has."""
    one = record["configuration"]
    rows = []
    for measure in LEAST:
        if (value := record["measured"].get(measure)) is not None:
            mine = predicted.get(measure)
            row = {"number": one["number"], "name": record["name"], "measure": measure, "measured": value}
            rows.append({**row, "predicted": mine, "error": error_of(measure, value, mine), "others": record["others"]})
    return rows


def compared(found: Sequence[Record], predictor: Predictor) -> list[Row]:
    """Rows of all records that are to be predicted."""
    parts = {
        part: [record for record in found if record["configuration"]["part"] == part]
        for part in (CALIBRATION, PREDICTED)
    }
    costs = predictor.calibrated(parts[CALIBRATION])
    rows = []
    for record in parts[PREDICTED]:
        configuration = {**record["configuration"], "step": record.get("step")}
        rows += rows_of(record, predictor.predict(configuration, costs))
    return rows


def summed_up(rows: Iterable[Row]) -> dict[str, Any]:
    """Number of errors, median, 90 % quantile, and misses; None where there is no error, or it is infinite."""
    errors = [row["error"] for row in rows]
    median, most = (_quantile(errors, share) for share in (0.5, 0.9))
    return {"of": len(errors), "median": median, "quantile_90": most, "misses": sum(error > MISS for error in errors)}


def _quantile(errors: Sequence[float], share: float) -> float | None:
    """By the nearest error above: between two of them there may be an infinite one."""
    found = float(np.quantile(errors, share, method="higher")) if errors else math.inf
    return round(found, 4) if math.isfinite(found) else None


def summaries(rows: Sequence[Row], calm: float) -> list[dict[str, Any]]:
    """By measure, and of all of them: of all runs, and of calm ones."""
    found = []
    for measure in (*LEAST, ALL):
        mine = [row for row in rows if measure in (row["measure"], ALL)]
        if mine:
            quiet = summed_up(row for row in mine if row["others"] <= calm)
            found.append({"measure": measure, **summed_up(mine), "calm": quiet})
    return found


def _shown(value: float | None, digits: str = ",.4g") -> str:
    return "" if value is None else format(value, digits)


def _percent(error: float | None) -> str:
    return "" if error is None or math.isinf(error) else f"{100 * error:.1f} %"


def _table_of(rows: Sequence[Row]) -> Table:
    table = Table("", "configuration", "measure", "measured", "predicted", "error", "others")
    for row in rows:
        numbers = (_shown(row["measured"]), _shown(row["predicted"]), _percent(row["error"]), _shown(row["others"]))
        table.add_row(str(row["number"]), row["name"], row["measure"], *numbers)
    for one in summaries(rows, math.inf):
        found = f"median {_percent(one['median'])}, 90 % {_percent(one['quantile_90'])}"
        table.add_row("", f"{one['of']} of all", one["measure"], "", "", found, f"{one['misses']} misses")
    return table


def main() -> None:
    """Compare, and print all rows."""
    parser = options.new_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--calm", type=float, default=0.5, help="processors that other programs may use")
    arguments = parser.parse_args()
    found = records(arguments.folder)
    if not found:
        print(f"accuracy.py: left out, {arguments.folder} has no runs (benchmarks.simulate.runs)", file=sys.stderr)
        return
    rows = compared(found, Simulation())
    finite = [{**row, "error": None if math.isinf(row["error"]) else round(row["error"], 4)} for row in rows]
    misses = [row for row, whole in zip(finite, rows, strict=True) if whole["error"] > MISS]
    figures = {"summaries": summaries(rows, arguments.calm), "misses": misses, "rows": finite}
    report.show(_table_of(rows), figures, width=160)


if __name__ == "__main__":
    main()
