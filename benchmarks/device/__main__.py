"""Check of all that needs a CUDA device, part after part, and measurements of it.

    python -m benchmarks.device [PART ...] [--json FILE] [--logs FOLDER]
    python -m benchmarks.device --stand-in

Each part is a process of its own with a bound in seconds, 8 minutes together: one that fails, crashes or takes longer
stops no other. Without a name all parts run, in this order:

    tests        kernels      rules        jobs         script
    copies       replicas     ranks        third_stack  memory

MNIST's jobs need DBELIEF_DATA, the folder that holds mnist/; what is missing is left out, with the reason. With
--stand-in the same parts run at small sizes on the stand-in for CuPy among the tests: that they run is checked, their
figures mean nothing. Exit code 1 where a part failed or took too long, 2 where there is no device.
"""

from __future__ import annotations

import argparse
import json
import traceback
from pathlib import Path

from rich.console import Console

from benchmarks.device import machine, table
from benchmarks.device.bounds import PARTS, Part, chosen
from benchmarks.device.check import BAD, check
from benchmarks.device.findings import Findings
from benchmarks.harness import options
from dbelief.process.terminal.console import cli_errors, format_error


def parse() -> argparse.Namespace:
    """Parse the command line; the hidden options are for the processes of this command itself."""
    parser = options.new_parser(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of: {', '.join(PARTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the results are written, beside the table")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where the output of each part is kept")
    parser.add_argument("--stand-in", action="store_true", help="on the stand-in for CuPy, at small sizes")
    parser.add_argument("--findings", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--describe", action="store_true", help=argparse.SUPPRESS)
    words = parser.parse_args()
    try:
        words.parts = chosen(words.parts)
    except ValueError as error:
        parser.error(str(error))
    return words


def run_here(part: Part, found: Findings, small: bool) -> None:
    """Run a part in this process, and exit."""
    try:
        part.measure(found, small)
    except Exception as error:
        traceback.print_exc()
        found.failed(format_error(error))
        raise SystemExit(1) from None


def main() -> None:
    """Run the command."""
    words = parse()
    if words.describe:
        print(json.dumps(machine.describe()))
        return
    if words.findings is not None:
        (part,) = words.parts
        run_here(part, Findings(words.findings), words.stand_in)
        return
    results = check(words.parts, words.stand_in, words.logs)
    Console(stderr=True).print(table.make(results["measured"], results["parts"], words.stand_in))
    if words.json is None:
        print(json.dumps(results))
    else:
        words.json.write_text(json.dumps(results, indent=1) + "\n")
    raise SystemExit(int(any(row["state"] in BAD for row in results["parts"])))


with cli_errors():
    main()
