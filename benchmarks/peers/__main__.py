"""dbelief beside the systems that people use: speed, cost, failures, a slow worker, slow links, lines of code.

    DBELIEF_DATA=... [DBELIEF_HOSTNET=...] python -m benchmarks.peers [--rounds 3] [--systems "torch DDP,dbelief"]
        [--parts speed,kills,slow,link] [--seconds 4] [--json FILE]
    python -m benchmarks.peers --plot PICTURE.png --json FILE

MNIST, 784-256-10 with ReLU, plain SGD, mini-batches of 64 for each of two workers, one thread each. Every system is
used as its documentation has it, in a virtual environment of its own below `.cache/peers` (made at the first call), one
at a time; each run is made of new processes. Rounds alternate over the systems; the figures are medians.

    speed   samples/s in a phase; seconds from the first sample to 97 % test accuracy; processor time of all processes;
            bytes over the loopback of a network namespace of their own (shared memory is not counted)
    kills   SIGKILL to a worker, to a server (what holds the parameters, or the store by which ranks meet), to the
            coordinator (launcher, lighthouse, driver, first peer, SuperLink). A supervisor starts again what ended,
            `--away` seconds later. "yes": training goes on before that. Samples lost and doubled: `reports.py`; those
            of dbelief as its summary counts them
    slow    one worker sleeps nine step times before each step
    link    each worker, and the server, on a host with a link of 50 Mbit/s and 5 ms; left out without hostnet

With --rows several commands, of some systems or parts each, make one table; --rounds 0 prints that of the rows so far.
What cannot be installed or does not run is named with its reason. A cell is bold where a peer is better (`table.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.harness import hosts, options, report
from benchmarks.peers import plot, table
from benchmarks.peers.comparison import Comparison, names_of
from benchmarks.peers.systems import ROLES, SYSTEMS

PARTS = ("speed", "kills", "slow", "link")
NEEDS = ["DBELIEF_DATA", "DBELIEF_HOSTNET"]
WIDTH = 160


def parse() -> argparse.Namespace:
    """Parse the command line."""
    names = [system.name for system in SYSTEMS]
    parser = options.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", type=names_of, default=names, help='with ";" between: ' + "; ".join(names))
    parser.add_argument("--parts", type=options.words, default=list(PARTS))
    parser.add_argument("--roles", type=options.words, default=list(ROLES), help="that are killed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples of a mini-batch of a worker")
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measured phase")
    parser.add_argument("--away", type=float, default=3.0, help="seconds until a process that ended is started again")
    parser.add_argument("--start", type=float, default=120.0, help="bound of a start, in seconds")
    parser.add_argument("--longest", type=float, default=30.0, help="bound of the waits for accuracy and speed, in s")
    parser.add_argument("--mbit", type=float, default=50.0, help="of a link")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of a link")
    parser.add_argument("--rows", type=Path, help="JSON lines: earlier parts' rows, and where new ones are added")
    parser.add_argument("--json", type=Path, help="file of the figures, beside the table")
    parser.add_argument("--plot", type=Path, help="draw a picture of the figures in --json, and end")
    hosts.add_hostnet(parser)
    found = parser.parse_args()
    if unknown := set(found.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: no part; there are {', '.join(PARTS)}")
    if unknown := set(found.roles) - set(ROLES):
        parser.error(f"{', '.join(sorted(unknown))}: no role; there are {', '.join(ROLES)}")
    if found.plot and not found.json:
        parser.error("--plot needs --json")
    return found


def main() -> None:
    """Run the command."""
    words = parse()
    if words.plot:
        plot.draw(json.loads(words.json.read_text())["figures"], words.plot)
        return
    if "DBELIEF_DATA" not in os.environ:
        raise SystemExit("DBELIEF_DATA names no folder that has mnist/")
    if "link" in words.parts:
        hosts.left_out(__file__, words.hostnet)
    comparison = Comparison(words)
    comparison.measure()
    found = comparison.figures()
    for one in table.tables(found):
        Console(stderr=True, width=WIDTH).print(one)
    for row in found["failed"]:
        print(f"{row['system']}, {row['part']} {row['role'] or ''}: {row['failed']}", file=sys.stderr)
    if words.json:
        measured = report.origin(report.own_command())
        file = {"measured": measured, "needs": NEEDS, "figures": found, "tables": table.recipes(found)}
        words.json.write_text(json.dumps(file, indent=1) + "\n")
    report.print_figures(found)


main()
