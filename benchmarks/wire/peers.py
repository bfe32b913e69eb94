"""dbelief's pulls and pushes beside torch's gloo, torch RPC and Ray, those that are installed.

    python -m benchmarks.wire.peers [--transport both] [--sizes 1,16,64,160] [--rounds 25]

The same rounds as those of `dbelief bench wire`, with gloo among the ways that alternate. torch RPC and Ray keep cores
busy: each is measured in separate rounds, together with the socket. x is the socket's time over that of the way.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import options, report
from benchmarks.wire import ray_peer, torch_peer
from dbelief.errors import RuntimeFailure
from dbelief.rpc.grpc_settings import limit_threads, prepare_process
from dbelief.tools.bench.baselines import Socket
from dbelief.tools.bench.control_socket import Line
from dbelief.tools.bench.interleave import MeasuredWay
from dbelief.tools.bench.peers import run_peer
from dbelief.tools.bench.wire import measure_size, measure_ways
from dbelief.tools.bench.wire_table import ways_table
from dbelief.tools.bench.workers import TRANSPORTS

KINDS: dict[str, Callable[[Line], None]] = {
    "gloo": torch_peer.be_rank,
    "torch-rpc": torch_peer.be_agent,
    "ray": ray_peer.be_driver,
}
"""The function that each kind of peer process runs."""


@dataclass(frozen=True)
class Other:
    """A third-party baseline, measured where it is installed; `busy`: its background threads keep cores busy."""

    name: str
    package: str
    make: Callable[[ExitStack, Path], MeasuredWay]
    busy: bool


def installed(largest_mib: int, missing: dict[str, str]) -> list[Other]:
    """The baselines that are installed; the others are recorded in `missing`."""
    all_of_them = [
        Other(torch_peer.Gloo.name, "torch", torch_peer.Gloo, busy=False),
        Other(torch_peer.TorchRpc.name, "torch", torch_peer.TorchRpc, busy=True),
        Other(ray_peer.Ray.name, "ray", partial(ray_peer.Ray, largest=largest_mib << 20), busy=True),
    ]
    found = [other for other in all_of_them if importlib.util.find_spec(other.package)]
    missing |= {other.name: f"{other.package} is not installed" for other in all_of_them if other not in found}
    return found


def begin(stack: ExitStack, folder: Path, others: Sequence[Other], missing: dict[str, str]) -> list[MeasuredWay]:
    """The baselines that start; the others are recorded in `missing`."""
    ways: list[MeasuredWay] = []
    for other in others:
        try:
            ways.append(other.make(stack, folder))
        except RuntimeFailure as error:
            missing[other.name] = str(error)
    return ways


def measure(folder: Path, transports: Sequence[str], sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """All figures; of a row, `beside` is the way that keeps cores busy, if it is of such rounds."""
    missing: dict[str, str] = {}
    others = installed(max(sizes), missing)
    with ExitStack() as stack:
        calm = begin(stack, folder, [other for other in others if not other.busy], missing)
        rows = [{**row, "beside": None} for row in measure_ways(folder, transports, sizes, rounds, others=calm)]
    for other in (other for other in others if other.busy):
        with ExitStack() as stack:
            if ways := begin(stack, folder, [other], missing):
                ways.append(Socket(stack, folder))
                rows += [{**row, "beside": other.name} for mib in sizes for row in measure_size(ways, mib, rounds)]
    return {"rounds": rounds, "cores": os.cpu_count(), "missing": missing, "ways": rows}


def show(found: dict[str, Any]) -> None:
    """Print the figures as tables, and as JSON."""
    console = Console(stderr=True)
    for mib, beside in dict.fromkeys((row["mib"], row["beside"]) for row in found["ways"]):
        table = ways_table([row for row in found["ways"] if (row["mib"], row["beside"]) == (mib, beside)])
        if beside:
            table.title = f"{table.title}, {beside} beside it"
        console.print(table)
    for name, reason in found["missing"].items():
        console.print(f"{name} took no part: {reason}", markup=False)
    report.print_figures(found)


def main() -> None:
    parser = options.new_parser(__doc__)
    parser.add_argument("--transport", choices=(*TRANSPORTS, "both"), default="both")
    parser.add_argument("--sizes", type=options.ascending, default=[1, 16, 64, 160], help="of the vector, MiB")
    parser.add_argument("--rounds", type=int, default=25, help="of each size; four times as many below 32 MiB")
    parser.add_argument("--peer", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--connect", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    prepare_process()
    if arguments.peer is not None:
        limit_threads(1)
        run_peer(KINDS[arguments.peer], arguments.connect)
        return
    transports = TRANSPORTS if arguments.transport == "both" else (arguments.transport,)
    with tempfile.TemporaryDirectory(prefix="dbelief-bench-") as folder:
        show(measure(Path(folder), transports, arguments.sizes, arguments.rounds))


if __name__ == "__main__":
    main()
