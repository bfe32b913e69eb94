"""Limits of pulls and pushes over TCP, for a quiet machine of two cores.

    python -m benchmarks.wire.limits [--rounds 25] [--pushes 400]

Runs `dbelief bench wire` over TCP for 160 MiB and for four workers on one shard, and ends with 1 where a figure is on
the wrong side of its limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.harness.options import new_parser

AT_LEAST = {"pull": 0.75, "push": 0.68, "round trip": 0.71}
"""The socket's time over ours."""
AT_MOST = 3.0
"""Of four workers' pushes, p99 over p50."""
WIRE = ["--seconds", "3600", "--transport", "tcp", "--sizes", "160", "--workers", "4", "--shards", "1"]


def missed(found: dict[str, Any]) -> list[str]:
    """A message for each missed limit."""
    ratios = {row["what"]: row["x"] for row in found["ways"] if row["way"] == "dbelief, tcp"}
    (pushes,) = (row for row in found["crowds"] if row["what"] == "push")
    wrong = [f"{what}: {ratios[what]:.2f}, wanted at least {x}" for what, x in AT_LEAST.items() if ratios[what] < x]
    even = pushes["p99_over_p50"]
    return wrong + ([f"p99 over p50: {even:.2f}, wanted at most {AT_MOST}"] if even > AT_MOST else [])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--pushes", type=int, default=400)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "dbelief", "bench", "wire", "--json", *WIRE]
    command += ["--rounds", str(arguments.rounds), "--turns", str(arguments.pushes)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    wrong = missed(found)
    for one in wrong:
        print(one, file=sys.stderr)
    print(json.dumps(found))
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
